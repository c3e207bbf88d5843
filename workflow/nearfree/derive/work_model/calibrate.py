"""Calibrate constants: from imported curves to a sealed take."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from msgspec import structs

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.derive.granularity.facts import datasheet_facts, with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.truth.datasets import published_truth
from nearfree.derive.truth.truth import narrowed, questions
from nearfree.derive.work_model.constants import (
    COLLECTIVE_STREAM,
    STREAM,
    fitted,
    imported_files,
    recorded_constants,
)
from nearfree.derive.work_model.families import CALIBRATED_DTYPES, FAMILIES
from nearfree.derive.work_model.family import (
    Array,
    Family,
    Fitted,
    Integers,
    boundaries,
    without_neutral,
)
from nearfree.derive.work_model.fit import (
    SOFT,
    Measured,
    band,
    fit,
    residuals,
    selected_curves,
    weights,
)
from nearfree.derive.work_model.moe import MOE_TRITON
from nearfree.derive.work_model.own import CHIP, HOST, MEMORY, OWN_STREAM, own_ratios, scaled
from nearfree.derive.work_model.prepare import Prepared, prepare
from nearfree.derive.work_model.samples import SELECTIONS, Sample, joined, parts, samples
from nearfree.derive.work_model.tried_forms import TRIED
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import (
    BoundaryPublished,
    CalibratedConstant,
    ConstantsCalibrated,
    Event,
    LatencyImported,
)
from nearfree.log.evidence import Take, read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.public import published
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.sources.fetching.cache import Cache, default_cache

FORM, COLLECTIVE_FORM = 2, 3
"""Versions of the forms of T(N) and their fit, and of those of collectives; a change of either
raises it."""


def calibrate(
    layout: Layout,
    platforms: Mapping[str, Platform],
    on: Sequence[str],
    *,
    stream: str,
    epsilon: float,
    collectives: bool = False,
    offline: bool = False,
) -> Seal:
    """Seal the constants fitted to a stream's curves, unless they are sealed already.

    Parameters
    ----------
    on
        The platforms whose curves are fitted; all others are out of sample.
    epsilon
        The tolerance of N_max: curves are fitted up to four times it.
    collectives
        Whether to fit the constants of collectives, or those of everything else.

    Raises
    ------
    EvidenceError
        There are no such curves, or none of a platform.
    ConfigError
        A platform has no facts.
    """
    files = imported_files(layout, stream)
    form = COLLECTIVE_FORM if collectives else FORM
    plan = CalibratePlan(
        source=stream, files=files, platforms=tuple(on), epsilon=epsilon, form=form
    )
    name = take_name(PUBLIC, COLLECTIVE_STREAM if collectives else STREAM, 1, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    # Raise every error before the take is opened.
    curves = read_curves(layout, stream)
    present = set(curves.settings["platform"].unique())
    missing = [platform for platform in on if platform not in present]
    if missing:
        raise EvidenceError(
            f"there is no curve of {missing[0]}",
            remedy=f"Choose from {', '.join(sorted(present))}",
        )
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=offline)
    of_kind = (pl.col("module") == "collective") == collectives
    settings = curves.settings.filter(pl.col("platform").is_in(list(on)), of_kind)
    family_samples = samples(curves.of(settings), datasheet_facts(platforms), resolver)
    if not family_samples:
        raise ConfigError(
            f"no curve of {stream} on {', '.join(on)} is fit for calibration",
            remedy="Give platforms with facts in config/platforms.yaml and 16-bit curves",
        )
    events = [
        _event(without_neutral(FAMILIES[name]), family_samples[name], on, epsilon, files)
        for name in FAMILIES
        if name in family_samples
    ]

    command = f"nearfree calibrate --on {','.join(on)} --stream {stream} --epsilon {epsilon:g}"
    command += " --collectives" if collectives else ""
    return ensure_events(layout, name, plan, command, lambda: events)


def _event(
    family: Family,
    sample: Sample,
    platforms: Sequence[str],
    epsilon: float,
    files: Mapping[str, str],
) -> ConstantsCalibrated:
    """Return a family's constants, fitted to its curves, which `files` (SHA-256 by name) hold."""
    members = sample.curves.select("member", "member_sha256").unique().sort(pl.all())
    values = fit(family, sample.measured, epsilon).values
    groups = sample.curves["platform"]
    if groups.n_unique() == 1:
        groups = sample.curves["backend_version"]
    return ConstantsCalibrated(
        family=family.name,
        dtypes=CALIBRATED_DTYPES,
        constants=tuple(
            constant.calibrated(hypothesis, values[hypothesis][constant.name])
            for hypothesis in family.hypotheses
            for constant in family.constants
        ),
        band=band(family, sample.measured, groups.to_list(), epsilon),
        epsilon=epsilon,
        platforms=tuple(platforms),
        selection=SELECTIONS[family.name],
        curves=sample.curves.height,
        rows_sha256=sample.rows_sha256,
        files=dict(files),
        members=dict(members.iter_rows()),
        tried=TRIED[family.name],
    )


CURVES_A_KERNEL = 3
_PULL = 0.1
"""Residual of a factor e away from 1; it keeps a fit to three curves bounded."""


def launch_floor(
    part: Prepared, fitted: Fitted, n_max: Array, epsilon: float
) -> tuple[float, tuple[int, int], int]:
    """Return the launch floor with the most hits: the middle of their widest range, range and hits.

    Parameters
    ----------
    n_max
        Boundaries of the part's questions, [rows], each a point of its row's grid.
    """
    floors = np.arange(int(HOST.low), int(HOST.high) + 1)
    hits = np.array([_hits(part, fitted, n_max, epsilon, {HOST.name: float(f)}) for f in floors])
    best = np.concatenate([[False], hits == hits.max(), [False]])
    begins, ends = (np.flatnonzero(np.diff(best.astype(int)) == sign) for sign in (1, -1))
    widest = int(np.argmax(ends - begins))
    low, high = int(floors[begins[widest]]), int(floors[ends[widest] - 1])
    return (low + high) / 2, (low, high), int(hits.max())


def _hits(
    part: Prepared, fitted: Fitted, n_max: Array, epsilon: float, own: dict[str, float]
) -> int:
    ratio = own_ratios(part.family, fitted, own, part.features)
    last = boundaries(ratio, part.counts, epsilon, fitted.band).last
    predicted = part.features["n"][np.arange(len(last)), last]
    return int(np.sum(predicted == n_max))


def chosen(curves: pl.DataFrame) -> Integers:
    """Return the rows of at most three curves per kernel: the first, middle and last setting.

    Parameters
    ----------
    curves
        A row per curve: module, backend, kernel, setting_key and backend_version.
    """
    ordered = curves.with_row_index("place").sort("setting_key", "backend_version", "place")
    groups = ordered.group_by("module", "backend", "kernel", maintain_order=True).agg("place")
    rows = {
        kernel_rows[index]
        for kernel_rows in groups["place"].to_list()
        for index in (0, (len(kernel_rows) - 1) // 2, len(kernel_rows) - 1)
    }
    return np.array(sorted(rows))


def factors(family: Family, fitted: Fitted, measured: Measured, epsilon: float) -> dict[str, float]:
    """Return a platform's factors for chip and memory, fitted to a few measured curves.

    The fit is over their logarithms, with a weak pull to 1.
    """
    from scipy.optimize import least_squares

    weight = weights(family, measured, epsilon)

    def named(logs: Array) -> dict[str, float]:
        return dict(zip((CHIP.name, MEMORY.name), np.exp(logs).tolist(), strict=True))

    def errors(logs: Array) -> Array:
        own = named(logs)
        by_hypothesis = [
            residuals(
                family,
                family.latency_us(measured.features, scaled(fitted.values[name], own), name),
                measured, weight,
            )
            for name in family.hypotheses
        ]  # fmt: skip
        return np.concatenate([*by_hypothesis, _PULL * logs])

    solution = least_squares(
        errors, np.zeros(2), loss="soft_l1", f_scale=SOFT, diff_step=1e-4,
        bounds=(np.log([CHIP.low, MEMORY.low]), np.log([CHIP.high, MEMORY.high])),
    )  # fmt: skip
    return {name: float(f"{value:.4g}") for name, value in named(solution.x).items()}


OWN_FORM = 1
"""Version of the constants that are fitted on a platform and of their fit; a change raises it."""
_REMEDY = "Give 16-bit curves of it, or for `published` a platform of the paper"
PUBLISHED = "published"
"""The paper's boundaries, as the source of a launch floor."""


def calibrate_own(
    layout: Layout,
    platforms: Mapping[str, Platform],
    platform: str,
    *,
    source: str,
    epsilon: float,
    offline: bool = False,
) -> Seal:
    """Seal a platform's own constants, on top of each family's newest ones, unless they are sealed.

    Parameters
    ----------
    source
        `published`, or a stream of imported curves.

    Raises
    ------
    EvidenceError
        There is no calibration to start from, or no data of the platform to fit.
    """
    base = recorded_constants(layout, collectives=False)
    if not base:
        raise EvidenceError("the log holds no constants", remedy="Run `nearfree calibrate` first")
    scope, stream = (PUBLIC, published.STREAM) if source == PUBLISHED else (IMPORTED, source)
    takes = read_scope(layout, scope, stream=stream)
    if not takes:
        raise EvidenceError(
            f"the log holds nothing of {source}", remedy="Import it, or name another source"
        )
    newest = max(takes, key=lambda take: take.order)
    kind = BoundaryPublished if source == PUBLISHED else LatencyImported
    if platform not in {event.data.platform for event in newest.events_of(kind)}:
        raise EvidenceError(f"{source} holds nothing of {platform}", remedy=_REMEDY)
    files = dict(newest.started.data.plan.files)
    base_events = {event.event_id: event.hash for event in base.values()}
    plan = CalibratePlan(
        source=stream,
        files=files | base_events,
        platforms=(platform,),
        epsilon=epsilon,
        form=OWN_FORM,
    )

    def events() -> list[ConstantsCalibrated]:
        resolver = Resolver(layout, cache=Cache(default_cache()), offline=offline)
        fit = _Fit(platform, epsilon, files, base, datasheet_facts(platforms), resolver)
        calibrations = list(
            fit.floor(newest) if source == PUBLISHED else fit.factors(read_curves(layout, stream))
        )
        if not calibrations:
            raise EvidenceError(
                f"{source} holds nothing of {platform} that constants can be fitted to",
                remedy=_REMEDY,
            )
        return calibrations

    command = f"nearfree calibrate --own {platform} --from {source} --epsilon {epsilon:g}"
    return ensure_events(layout, take_name(PUBLIC, OWN_STREAM, 1, plan), plan, command, events)


class _Fit(NamedTuple):
    platform: str
    epsilon: float
    files: dict[str, str]
    base: Mapping[str, Event]
    facts: pl.DataFrame
    resolver: Resolver

    def floor(self, take: Take) -> Iterator[ConstantsCalibrated]:
        """Yield the launch floor of fused MoE layers, from printed boundaries."""
        published_moe = narrowed(
            published_truth(take, [self.epsilon]),
            (pl.col("platform") == self.platform) & (pl.col("module") == "moe_ffn"),
        )
        rows = with_facts(questions(published_moe), self.facts)
        for part in prepare(rows, self.resolver):
            if not isinstance(part, Prepared) or part.family.name != MOE_TRITON.name:
                continue
            truth = part.rows.select(pl.col("asked").alias("curve"), "setting_key", "grid").join(
                published_moe.boundaries.select("curve", "n_max", "next_n"), on="curve",
                how="left", maintain_order="left",
            )  # fmt: skip
            n_max = truth["n_max"].cast(pl.Float64).to_numpy()
            base = fitted(self.base[part.family.name].data)
            value, (low, high), hits = launch_floor(part, base, n_max, self.epsilon)
            base_hits = _hits(part, base, n_max, self.epsilon, {})
            scan = (
                f"{HOST.name} from {HOST.low:g} to {HOST.high:g} by 1, the middle of the widest "
                f"range of most hits (taken): {hits} of {len(n_max)} from {low} to {high}"
            )
            yield self._calibrated(
                MOE_TRITON.name,
                (HOST.calibrated("host", value),),
                selection=f"printed boundaries of fused MoE layers at {self.epsilon:g}",
                curves=len(n_max),
                rows_sha256=sha256(truth.drop("curve").write_ndjson().encode()),
                members={},
                tried=(f"no number fitted: {base_hits} of {len(n_max)} hit", scan),
            )

    def factors(self, curves: ImportedCurves) -> Iterator[ConstantsCalibrated]:
        """Yield two factors for each family that has curves."""
        own_curves = curves.of(curves.settings.filter(pl.col("platform") == self.platform))
        by_family: dict[str, list[Sample]] = {}
        for _, family, sample in parts(own_curves, self.facts, self.resolver):
            by_family.setdefault(family, []).append(sample)
        for family in FAMILIES:
            if family in by_family and family in self.base:
                yield self._factors(family, by_family[family])

    def _factors(self, family: str, samples: list[Sample]) -> ConstantsCalibrated:
        curves = pl.concat([sample.curves for sample in samples])
        chosen_rows = chosen(curves)
        measured = selected_curves(joined([sample.measured for sample in samples]), chosen_rows)
        rows = curves[chosen_rows]
        files = rows.select("member", "member_sha256").unique().sort(pl.all())
        base = fitted(self.base[family].data)
        values = factors(FAMILIES[family], base, measured, self.epsilon)
        digest_columns = rows.select(
            "setting_key", "backend", "backend_version", "kernel", "latency_us"
        )
        constants = tuple(
            constant.calibrated("own", values[constant.name]) for constant in (CHIP, MEMORY)
        )
        return self._calibrated(
            family,
            constants,
            selection=f"at most {CURVES_A_KERNEL} curves a kernel, the first, middle and last "
            f"setting by key: {', '.join(rows['event_id'])}",
            curves=rows.height,
            rows_sha256=sha256(digest_columns.write_ndjson().encode()),
            members=dict(files.iter_rows()),
            tried=("factors for chip and memory with a weak pull to 1 (taken)",),
        )

    def _calibrated(
        self, family: str, constants: tuple[CalibratedConstant, ...], **differing: Any
    ) -> ConstantsCalibrated:
        """Return a family's calibration with the platform's own constants instead."""
        base: ConstantsCalibrated = self.base[family].data
        common = {"epsilon": self.epsilon, "platforms": (self.platform,), "files": self.files}
        return structs.replace(base, constants=constants, **common, **differing)
