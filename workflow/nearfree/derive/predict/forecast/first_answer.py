"""The answer to act on: N_max from N = 1, its limit, what more positions cost, and its basis."""

import re
from collections.abc import Iterator

from msgspec import Struct, structs

from nearfree.backends.records import BY_NAME
from nearfree.derive.granularity.releases import Release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.padding import EAGER, PADDED
from nearfree.derive.predict.forecast.step import ROLES
from nearfree.derive.predict.forecast.total import SUM
from nearfree.errors import NearfreeError

COSTS = (2, 4, 8, 16)
"""Numbers of positions whose cost is told."""
_CITED = re.compile(
    r"(?P<file>\S+?\.(?:py|cuh?|h|hpp|cpp|json))(?::| L)(?P<first>\d+)-(?P<last>\d+)"
    r"(?: \((?P<sha256>[0-9a-f]{12})\))?"
)
"""A place as rules cite it: file, lines and the first digits of its SHA-256."""


class SourceRule(Struct, frozen=True, kw_only=True):
    """Where the rule of a limit stands: a file of a release, its lines, and the file's SHA-256.

    `sha256` is None where the file is cited without being kept.
    """

    package: str
    version: str
    file: str
    lines: tuple[int, int]
    sha256: str | None


class Limiter(Struct, frozen=True, kw_only=True):
    """What takes T(N) out of the tolerance.

    `share` is the module's of T(1); `term` and `evidence` are those of the predictor; `rule` is
    None where no rule of a release says it.
    """

    module: str
    share: float
    term: str
    evidence: str
    rule: SourceRule | None


class Basis(Struct, frozen=True, kw_only=True):
    """On what a share of T(1) stands: the modules of one regime, `module` the one with most of it.

    `kernels` are those whose curves or constants speak of it, none where a family's shared ones do;
    `at_one_position` says that their curves are of one position, and how T(N) grows is constants'.

    `hit`, `within_x2` and `coverage` are shares of `settings` public curves, each predicted without
    what the regime does not know: N_max at the grid point, within a factor of 2, and within its
    interval. They are of `scored_on`, kernels as near to the module as any with public curves, and
    of the regime `scored_as`, which knows less where that of the module was not scored; None where
    there are none.
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
    """N_max at a tolerance by the work model from N = 1, and what follows from T(N).

    `n_max` is the grid's end where nothing limits up to there (`censored`). `t1_us` is T(1),
    `t1_band` how far its logarithm may be off in four of five cases, None where no engine's steps
    were published; `cost` is T(N) / T(1) by N. From `eager` positions on no CUDA graph is large
    enough, and a step takes at least what its launches do; None where there is no such N.
    `bases` are the regimes of its modules, the weakest first, and `events` what was fitted for it;
    `besides` is the share of T(1) that an engine's step takes besides modules.
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
    eager: int | None
    bases: tuple[Basis, ...]
    events: tuple[str, ...]
    besides: float = 0.0


def first_answer(
    forecast: Forecast, place: int, epsilon: float, answerer: Answerer
) -> FirstAnswer | None:
    """Return the answer to act on about one deployment, None where its T(N) is not known.

    Parameters
    ----------
    answerer
        What the forecast was made by: it has the releases' files, and what steps take.
    """
    total, query = forecast.total, forecast.deployments[place]
    rows = forecast.answers.filter(deployment=place, composition=SUM, baseline=1, epsilon=epsilon)
    if total.refusals[place] is not None or rows.is_empty():
        return None
    row = rows.row(0, named=True)
    step = answerer.engine_steps.get(query.engine.name) if query.served else None
    curve, grid = total.model_us[place], total.grid.tolist()
    return FirstAnswer(
        n_max=int(row["n_max"]),
        low=int(row["low"]),
        high=int(row["high"]),
        epsilon=epsilon,
        censored=row["censored"],
        limiter=None if row["censored"] else _limiter(forecast, place, row, answerer),
        t1_us=float(curve[0]),
        t1_band=step.band if step else None,
        cost={n: float(curve[grid.index(n)] / curve[0]) for n in COSTS if n in grid},
        eager=_eager(forecast, place),
        bases=tuple(_bases(forecast, place)),
        events=tuple(row["calibration"]),
        besides=_besides(forecast, place),
    )


def _besides(forecast: Forecast, place: int) -> float:
    shares = forecast.curve(place).row(0, named=True)
    return float(
        sum(shares[role] for role in forecast.total.roles[place].values() if role in ROLES)
    )


def _eager(forecast: Forecast, place: int) -> int | None:
    """Return the first N whose step no captured graph is large enough for."""
    padding = forecast.total.padding
    steps = padding.steps[place] if padding else []
    grid = forecast.total.grid.tolist()
    return next((n for n, step in zip(grid, steps, strict=False) if step.size is None), None)


def _limiter(forecast: Forecast, place: int, row: dict[str, object], answerer: Answerer) -> Limiter:
    module, evidence = str(row["limiting_module"]), str(row["evidence"] or "")
    term = str(row["limiting_term"] or "")
    share = forecast.curve(place).row(0, named=True)[module]
    return Limiter(
        module=module,
        share=share,
        term=term,
        evidence=evidence,
        rule=_rule(forecast.deployments[place], module, (term, evidence), answerer),
    )


def _rule(
    query: Deployment, module: str, said: tuple[str, str], answerer: Answerer
) -> SourceRule | None:
    """Return the place that the evidence of a limit names, in the release that runs the module."""
    term, evidence = said
    cited = _CITED.match(evidence)
    running = _running(query, module, padded=term.startswith((PADDED, EAGER)))
    if cited is None or running is None:
        return None
    package, release = running
    return SourceRule(
        package=package,
        version=release.version,
        file=cited["file"],
        lines=(int(cited["first"]), int(cited["last"])),
        sha256=_digest(release, cited["file"], cited["sha256"], answerer),
    )


def _running(query: Deployment, module: str, *, padded: bool) -> tuple[str, Release] | None:
    """Return the package whose rules limit a module, and the release under which they are read.

    That is what runs the module, or the engine where its graphs pad the step, or none holds it.
    """
    if padded and query.graphs is not None:
        return query.graphs.engine.name, query.graphs.release
    use = next((each for each in query.uses() if each.role == module), None)
    record = BY_NAME.get(use.setting.backend) if use else None
    if use is None or record is None or record.rules is None or not use.backend_version:
        return None
    return record.package, Release(record.rules.package, use.backend_version)


def _digest(release: Release, file: str, begins: str | None, answerer: Answerer) -> str | None:
    """Return the whole SHA-256 of a file of a release, of which its first digits may be known."""
    try:
        found = answerer.extraction(release)
    except NearfreeError:
        return None
    files = {member.path: member.sha256 for each in found.fetched for member in each.members}
    files |= {tuned.file: tuned.sha256 for tuned in found.tuned}
    digest = files.get(file)
    return digest if digest and digest.startswith(begins or "") else None


def _bases(forecast: Forecast, place: int) -> Iterator[Basis]:
    """Yield on what the modules of a forward stand, from its regime on, the weakest."""
    total = forecast.total
    first = total.latency_us[place, :, 0] / total.model_us[place, 0]
    regimes, weakest = total.regimes[place], total.regime(place)
    stood = {
        at: (each, total.timed.at_one_position(int(total.asked[place, at])))
        for at, each in regimes.items()
        if weakest and each >= weakest
    }
    for regime, at_one_position in sorted({*stood.values()}):
        places = [at for at, each in stood.items() if each == (regime, at_one_position)]
        most = max(places, key=lambda at: first[at])
        asked = int(total.asked[place, most])
        scored, on = total.timed.scored(asked)
        about = Basis(
            regime=str(regime), module=total.roles[place][most], share=float(first[places].sum()),
            kernels=total.timed.spoken_by(asked), at_one_position=at_one_position,
        )  # fmt: skip
        if scored is not None and scored.hit is not None:
            about = structs.replace(
                about, scored_on=on, scored_as=scored.regime, hit=scored.hit,
                within_x2=scored.within_x2, settings=scored.curves, coverage=scored.covered,
            )  # fmt: skip
        yield about
