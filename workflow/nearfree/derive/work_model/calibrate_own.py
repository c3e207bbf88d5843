"""One calibration of a platform's own constants, from its boundaries or curves to a seal."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.derive.granularity.facts import datasheet_facts, with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.truth.boundary_tables import published_truth
from nearfree.derive.truth.truth import narrowed, questions
from nearfree.derive.work_model.constants import fitted, recorded_constants
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Constant
from nearfree.derive.work_model.fit import taken
from nearfree.derive.work_model.moe import MOE_TRITON
from nearfree.derive.work_model.own import CHIP, HOST, MEMORY, STREAM
from nearfree.derive.work_model.own_fit import (
    CURVES_A_KERNEL,
    chosen,
    factors,
    hits_without,
    launch_floor,
)
from nearfree.derive.work_model.prepare import Prepared, prepare
from nearfree.derive.work_model.samples import Sample, joined, parts
from nearfree.errors import EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import (
    BoundaryPublished,
    CalibratedConstant,
    ConstantsCalibrated,
    Event,
    LatencyImported,
    Payload,
)
from nearfree.log.evidence import Take, read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.public import published
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.sources.fetching.cache import Cache, default_cache

FORM = 1
"""Number of what is fitted on a platform, and how; a change of either raises it."""
_REMEDY = "Give 16-bit curves of it, or for `published` a platform of the paper"
PUBLISHED = "published"
"""The name of the paper's boundaries, as a source of a launch floor."""


def calibrate_own(
    layout: Layout,
    platforms: Mapping[str, Platform],
    platform: str,
    *,
    source: str,
    epsilon: float,
    offline: bool = False,
) -> Seal:
    """Make sure that a platform's own constants are sealed, on top of the newest of all families.

    Parameters
    ----------
    source
        `published`, or a stream of imported curves.
    epsilon
        The tolerance that they are fitted at.

    Raises
    ------
    EvidenceError
        There is no calibration to start from, or nothing of the platform that can be fitted.
    """
    base = recorded_constants(layout)
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
    if platform not in {event.data.platform for event in newest.of(kind)}:
        raise EvidenceError(f"{source} holds nothing of {platform}", remedy=_REMEDY)
    files = dict(newest.started.data.plan.files)
    rests_on = {event.event_id: event.hash for event in base.values()}
    plan = CalibratePlan(
        source=stream, files=files | rests_on, platforms=(platform,), epsilon=epsilon, form=FORM
    )

    def events() -> Iterable[Payload]:
        resolver = Resolver(layout, cache=Cache(default_cache()), offline=offline)
        fit = _Fit(platform, epsilon, files, base, datasheet_facts(platforms), resolver)
        if source == PUBLISHED:
            found = list(fit.floor(newest))
        else:
            found = list(fit.factors(read_curves(layout, stream)))
        if not found:
            raise EvidenceError(
                f"{source} holds nothing of {platform} that constants can be fitted to",
                remedy=_REMEDY,
            )
        return found

    command = f"nearfree calibrate --own {platform} --from {source} --epsilon {epsilon:g}"
    return ensure_events(layout, take_name(PUBLIC, STREAM, 1, plan), plan, command, events)


class _Fit(NamedTuple):
    platform: str
    epsilon: float
    files: dict[str, str]
    base: Mapping[str, Event]
    facts: pl.DataFrame
    resolver: Resolver

    def floor(self, take: Take) -> Iterator[ConstantsCalibrated]:
        """Yield the launch floor of fused MoE layers, from printed boundaries."""
        known = narrowed(
            published_truth(take, [self.epsilon]),
            (pl.col("platform") == self.platform) & (pl.col("module") == "moe_ffn"),
        )
        asked = with_facts(questions(known), self.facts)
        for part in prepare(asked, self.resolver):
            if not isinstance(part, Prepared) or part.family.name != MOE_TRITON.name:
                continue
            true = part.rows.select(pl.col("asked").alias("curve"), "setting_key", "grid").join(
                known.boundaries.select("curve", "n_max", "next_n"), on="curve",
                how="left", maintain_order="left",
            )  # fmt: skip
            n_max = true["n_max"].cast(pl.Float64).to_numpy()
            given = fitted(self.base[part.family.name].data)
            value, (low, high), hits = launch_floor(part, given, n_max, self.epsilon)
            without = hits_without(part, given, n_max, self.epsilon)
            scan = (
                f"{HOST.name} from {HOST.low:g} to {HOST.high:g} by 1, the middle of the widest "
                f"range of most hits (taken): {hits} of {len(n_max)} from {low} to {high}"
            )
            yield self._event(
                MOE_TRITON.name,
                {HOST: value},
                selection=f"printed boundaries of fused MoE layers at {self.epsilon:g}",
                curves=len(n_max),
                rows_sha256=sha256(true.drop("curve").write_ndjson().encode()),
                members={},
                tried=(f"no number fitted: {without} of {len(n_max)} hit", scan),
            )

    def factors(self, curves: ImportedCurves) -> Iterator[ConstantsCalibrated]:
        """Yield two factors for each family that has curves."""
        settings = curves.settings.filter(pl.col("platform") == self.platform)
        points = curves.points.join(settings.select("curve"), on="curve", how="semi")
        found: dict[str, list[Sample]] = {}
        for _, family, sample in parts(ImportedCurves(settings, points), self.facts, self.resolver):
            found.setdefault(family, []).append(sample)
        for family in FAMILIES:
            if family in found and family in self.base:
                yield self._factors(family, found[family])

    def _factors(self, family: str, samples: list[Sample]) -> ConstantsCalibrated:
        every = pl.concat([each.curves for each in samples])
        places = chosen(every)
        kept = np.zeros(every.height, dtype=bool)
        kept[places] = True
        measured = taken(joined([each.measured for each in samples]), kept)
        rows = every[places]
        files = rows.select("member", "member_sha256").unique().sort(pl.all())
        given = fitted(self.base[family].data)
        values = factors(FAMILIES[family], given, measured, self.epsilon)
        told = rows.select("setting_key", "backend", "backend_version", "kernel", "latency_us")
        return self._event(
            family,
            {each: values[each.name] for each in (CHIP, MEMORY)},
            selection=f"at most {CURVES_A_KERNEL} curves a kernel, the first, middle and last "
            f"setting by key: {', '.join(rows['event_id'])}",
            curves=rows.height,
            rows_sha256=sha256(told.write_ndjson().encode()),
            members=dict(files.iter_rows()),
            tried=("factors for chip and memory with a weak pull to 1 (taken)",),
        )

    def _event(
        self,
        family: str,
        values: Mapping[Constant, float],
        *,
        selection: str,
        curves: int,
        rows_sha256: str,
        members: dict[str, str],
        tried: tuple[str, ...],
    ) -> ConstantsCalibrated:
        hypothesis = "host" if HOST in values else "own"
        return ConstantsCalibrated(
            family=family,
            dtypes=self.base[family].data.dtypes,
            constants=tuple(
                CalibratedConstant(
                    hypothesis=hypothesis, name=each.name, unit=each.unit, meaning=each.meaning,
                    value=value,
                )
                for each, value in values.items()
            ),
            band=self.base[family].data.band,
            epsilon=self.epsilon,
            platforms=(self.platform,),
            selection=selection,
            curves=curves,
            rows_sha256=rows_sha256,
            files=self.files,
            members=members,
            tried=tried,
        )  # fmt: skip
