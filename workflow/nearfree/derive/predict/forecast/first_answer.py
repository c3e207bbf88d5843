"""The answer to act on: N_max from N = 1, its limit, what more positions cost, and its basis."""

import re
from collections.abc import Iterator

from msgspec import Struct, structs

from nearfree.backends.records import BY_NAME
from nearfree.derive.granularity.releases import Release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.doubts import doubts
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.padding import EAGER, PADDED
from nearfree.derive.predict.forecast.total import ROLES, SUM, step_of
from nearfree.derive.work_model.family import Array, Integers
from nearfree.errors import NearfreeError

COSTS = (2, 4, 8, 16)
"""N whose cost T(N) / T(1) is shown."""
_CITATION = re.compile(
    r"(?P<file>\S+?\.(?:py|cuh?|h|hpp|cpp|json))(?::| L)(?P<first>\d+)-(?P<last>\d+)"
    r"(?: \((?P<sha256>[0-9a-f]{12})\))?"
)
"""A citation of a rule: file, lines and the first digits of the file's SHA-256."""


class SourceRule(Struct, frozen=True, kw_only=True):
    """The source of the limiting rule: a file of a release, its lines, and the file's SHA-256.

    `sha256` is None where the file is cited but not stored.
    """

    package: str
    version: str
    file: str
    lines: tuple[int, int]
    sha256: str | None


class Limiter(Struct, frozen=True, kw_only=True):
    """The module that takes T(N) out of the tolerance.

    `share` is its share of T(1). `term` and `evidence` are those of the predictor. `rule` is None
    where no rule of a release is behind the limit.
    """

    module: str
    share: float
    term: str
    evidence: str
    rule: SourceRule | None


class Basis(Struct, frozen=True, kw_only=True):
    """The regime behind a share of T(1), with its record on public curves.

    `share` belongs to all modules of the regime, `module` is the one with most of it. `kernels` are
    those whose curves or constants the regime uses, empty where it uses shared constants of a
    family. `at_one_position` says that the curves are of one position only, so that constants give
    the growth of T(N).

    `hit`, `within_x2` and `coverage` are shares of `settings` public curves, each predicted with
    only what the regime knows: N_max at the grid point, within a factor of 2, and within its
    interval. They refer to `scored_on`, the kernels with public curves that are nearest to the
    module, and to the regime `scored_as`, which knows less if the module's own regime was not
    scored. None where there are none.
    """

    regime: str
    module: str
    share: float
    kernels: tuple[str, ...] = ()
    at_one_position: bool = False
    scored_on: str | None = None
    scored_as: str | None = None
    hit: float | None = None
    within_x2: float | None = None
    settings: int | None = None
    coverage: float | None = None


class FirstAnswer(Struct, frozen=True, kw_only=True):
    """N_max at a tolerance by the work model from N = 1, and further results of T(N).

    `n_max` is the grid's end where nothing limits up to there (`censored`). `t1_us` is T(1);
    `t1_band` bounds the error of its logarithm in four of five cases, None where no engine's steps
    were published. `cost` is T(N) / T(1) by N; `above` has the first and the last N below N_max at
    which it is above the tolerance, as T(N) is a staircase that may fall, and its largest there.
    From `eager` positions on no CUDA graph is large enough, and a step takes at least the time of
    its launches; None where there is no such N. `bases` are the regimes of the modules, the weakest
    first, and `events` the calibrations behind them. `besides` is the share of T(1) that an
    engine's step takes outside of modules. `doubts` say which products stand on curves of other
    kernels than theirs; T(1) has no band then.
    """

    n_max: int
    low: int
    high: int
    epsilon: float
    censored: bool
    limiter: Limiter | None
    t1_us: float
    t1_band: float | None
    cost: dict[int, float]
    above: tuple[int, int, float] | None
    eager: int | None
    bases: tuple[Basis, ...]
    events: tuple[str, ...]
    besides: float = 0.0
    doubts: tuple[str, ...] = ()


def first_answer(
    forecast: Forecast, place: int, epsilon: float, answerer: Answerer
) -> FirstAnswer | None:
    """Return the first answer on one deployment, None where its T(N) is not known.

    The answerer is that of the forecast: it has the releases' files and the steps' constants.
    """
    total, query = forecast.total, forecast.deployments[place]
    rows = forecast.answers.filter(deployment=place, composition=SUM, baseline=1, epsilon=epsilon)
    if total.refusals[place] is not None or rows.is_empty():
        return None
    row = rows.row(0, named=True)
    step = step_of(answerer.engine_steps, query)
    curve, grid = total.model_us[place], total.grid.tolist()
    shares = forecast.curve(place).row(0, named=True)
    outside = [role for role in total.roles[place].values() if role in ROLES]
    doubted = tuple(map(str, doubts(total, forecast.deployments, place)))
    return FirstAnswer(
        n_max=int(row["n_max"]),
        low=int(row["low"]),
        high=int(row["high"]),
        epsilon=epsilon,
        censored=row["censored"],
        limiter=None if row["censored"] else _limiter(query, row, shares, answerer),
        t1_us=float(curve[0]),
        t1_band=step.band if step and not doubted else None,
        cost={n: float(curve[grid.index(n)] / curve[0]) for n in COSTS if n in grid},
        above=_above(total.grid, curve / curve[0], int(row["n_max"]), 1 + epsilon),
        eager=_eager(forecast, place),
        bases=tuple(_bases(forecast, place)),
        events=tuple(row["calibration"]),
        besides=float(sum(shares[role] for role in outside)),
        doubts=doubted,
    )


def _above(grid: Integers, ratio: Array, n_max: int, limit: float) -> tuple[int, int, float] | None:
    """Return the first and last N below N_max whose ratio is above the limit, and their largest."""
    above = (grid < n_max) & (ratio > limit)
    if not above.any():
        return None
    return int(grid[above][0]), int(grid[above][-1]), float(ratio[above].max())


def _eager(forecast: Forecast, place: int) -> int | None:
    """Return the first N whose step is larger than every captured graph."""
    padding = forecast.total.padding
    steps = padding.steps[place] if padding else []
    grid = forecast.total.grid.tolist()
    return next((n for n, step in zip(grid, steps, strict=False) if step.size is None), None)


def _limiter(
    query: Deployment, row: dict[str, object], shares: dict[str, float], answerer: Answerer
) -> Limiter:
    module, evidence = str(row["limiting_module"]), str(row["evidence"] or "")
    term = str(row["limiting_term"] or "")
    return Limiter(
        module=module,
        share=shares[module],
        term=term,
        evidence=evidence,
        rule=_rule(query, module, (term, evidence), answerer),
    )


def _rule(
    query: Deployment, module: str, limit: tuple[str, str], answerer: Answerer
) -> SourceRule | None:
    """Return the source rule that the evidence of a limit cites, in the release that runs it."""
    term, evidence = limit
    citation = _CITATION.match(evidence)
    source = _ruling_release(query, module, padded=term.startswith((PADDED, EAGER)))
    if citation is None or source is None:
        return None
    package, release = source
    return SourceRule(
        package=package,
        version=release.version,
        file=citation["file"],
        lines=(int(citation["first"]), int(citation["last"])),
        sha256=_digest(release, citation["file"], citation["sha256"], answerer),
    )


def _ruling_release(query: Deployment, module: str, *, padded: bool) -> tuple[str, Release] | None:
    """Return the package whose rules limit a module, and the release that they are read from.

    It runs the module; if a graph pads the step, or no graph holds it, it is the engine.
    """
    if padded and query.graphs is not None:
        return query.graphs.engine.name, query.graphs.release
    use = next((use for use in query.uses() if use.role == module), None)
    record = BY_NAME.get(use.setting.backend) if use else None
    if use is None or record is None or record.rules is None or not use.backend_version:
        return None
    return record.package, Release(record.rules.package, use.backend_version)


def _digest(release: Release, file: str, prefix: str | None, answerer: Answerer) -> str | None:
    """Return the full SHA-256 of a release's file, if it begins with the known digits."""
    try:
        extraction = answerer.resolver.extraction(release)
    except NearfreeError:
        return None
    files = {
        member.path: member.sha256 for archive in extraction.fetched for member in archive.members
    }
    files |= {tuned.file: tuned.sha256 for tuned in extraction.tuned}
    digest = files.get(file)
    return digest if digest and digest.startswith(prefix or "") else None


def _bases(forecast: Forecast, place: int) -> Iterator[Basis]:
    """Yield the bases of a forward's modules, beginning with the weakest, the forward's regime."""
    total = forecast.total
    shares = total.latency_us[place, :, 0] / total.model_us[place, 0]
    regimes, weakest = total.regimes[place], total.regime(place)
    standing = {
        module: (regime, total.timed.at_one_position(int(total.asked[place, module])))
        for module, regime in regimes.items()
        if weakest and regime >= weakest
    }
    for regime, at_one_position in sorted({*standing.values()}):
        modules = [
            module for module, value in standing.items() if value == (regime, at_one_position)
        ]
        heaviest = max(modules, key=lambda module: shares[module])
        number = int(total.asked[place, heaviest])
        score, scored_on = total.timed.regime_score(number)
        basis = Basis(
            regime=str(regime),
            module=total.roles[place][heaviest],
            share=float(shares[modules].sum()),
            kernels=total.timed.kernels_of(number),
            at_one_position=at_one_position,
        )
        if score is not None and score.hit is not None:
            basis = structs.replace(
                basis, scored_on=scored_on, scored_as=score.regime, hit=score.hit,
                within_x2=score.within_x2, settings=score.curves, coverage=score.covered,
            )  # fmt: skip
        yield basis
