"""The stage `project`: from a scope's events to tables of its observations."""

from collections.abc import Iterable

from nearfree.core.setting import Setting
from nearfree.derive.tables.granularity import GRANULARITY, granularity_rows
from nearfree.derive.tables.latency import LATENCY, latency_rows
from nearfree.derive.tables.platforms import PLATFORMS, config_id, platform_rows
from nearfree.derive.tables.schema import EventIds
from nearfree.derive.tables.settings import SETTINGS, setting_row
from nearfree.derive.tables.store import digests, read_table, seals_digest, write_table
from nearfree.derive.tables.time_shares import TIME_SHARES, time_share_rows
from nearfree.derive.tables.tuned import TUNED, tuned_rows
from nearfree.derive.tables.work import WORK, work_rows
from nearfree.errors import EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.curves import Curve, Gathering
from nearfree.log.events import (
    BoundaryPublished,
    HardwareProbed,
    KernelProfiled,
    Payload,
    RuleExtracted,
    RulePublished,
    SharesMeasured,
    TunedIndexed,
    WorkCounted,
)
from nearfree.log.evidence import Take, newest_takes, open_takes
from nearfree.log.names import Layout
from nearfree.log.reader import gc_paused


@gc_paused()
def project(layout: Layout, scope: str, datasheets: dict[str, Platform]) -> None:
    """Write the tables of observations: platforms, settings, latency, work and rules.

    Raises EvidenceError if the scope holds no sealed take.
    """
    takes, curves = _observed(layout, scope)
    if not takes:
        raise EvidenceError(
            f"the log holds nothing sealed for {scope}",
            remedy=f"Measure it where it is ({scope} in `here`), or adopt a recording of it",
        )
    configured = [config_id(name, platform) for name, platform in datasheets.items()]
    config_digests = dict(name.partition("@")[::2] for name in configured)
    made_from = seals_digest(layout, scope) | config_digests

    def ids(*kinds: type[Payload]) -> list[str]:
        return [
            event.event_id for take in takes for kind in kinds for event in take.events_of(kind)
        ]

    setting_ids = [curve.first_id for curve in curves] + ids(BoundaryPublished)
    for table, rows, known_ids in (
        (PLATFORMS, platform_rows(datasheets, takes, scope), ids(HardwareProbed) + configured),
        (SETTINGS, _setting_rows(takes, curves), setting_ids),
        (GRANULARITY, granularity_rows(takes), ids(RulePublished, RuleExtracted)),
        (TUNED, tuned_rows(takes), ids(TunedIndexed)),
    ):
        write_table(layout, scope, table, table.build(table.frame(rows), known_ids), made_from)
    _write_latency(layout, scope, curves, made_from)
    latency = read_table(layout, scope, LATENCY, without=["from_ids"])
    facts = read_table(layout, scope, PLATFORMS)
    shares = TIME_SHARES.frame(time_share_rows(takes, latency))
    known_ids = [*ids(SharesMeasured), *latency["row_id"]]
    share_inputs = made_from | digests(layout, scope, LATENCY)
    write_table(layout, scope, TIME_SHARES, TIME_SHARES.build(shares, known_ids), share_inputs)
    work = WORK.frame(work_rows(takes, latency, facts))
    known_ids = [*ids(WorkCounted, KernelProfiled), *latency["row_id"], *facts["row_id"]]
    made_from |= digests(layout, scope, LATENCY, PLATFORMS)
    write_table(layout, scope, WORK, WORK.build(work, known_ids), made_from)


def _observed(layout: Layout, scope: str) -> tuple[list[Take], list[Curve]]:
    """Return a scope's takes without visits, and the visits as curves, reading line by line.

    Visits are nearly all of a large log.
    """
    takes, curves = [], []
    for name, seal, events in open_takes(layout, scope):
        gathering = Gathering()
        take = Take(name, seal, gathering.others(events))
        takes.append(take)
        curves += gathering.curves(take)
    return takes, curves


def _write_latency(
    layout: Layout, scope: str, curves: list[Curve], made_from: dict[str, str]
) -> None:
    """Write the table of latencies, and free the curves as soon as they are rows."""
    visits = EventIds(
        segment
        for curve in curves
        for visit in curve.visits.values()
        for segment in visit.numbers.items()
    )
    rows = LATENCY.frame(latency_rows(curves))
    curves.clear()
    write_table(layout, scope, LATENCY, LATENCY.build(rows, visits), made_from)


def _setting_rows(takes: list[Take], curves: list[Curve]) -> list[dict[str, object]]:
    grids: dict[tuple[str, str, Setting, int], tuple[str, Iterable[int]]] = {}
    for curve in sorted(curves, key=lambda curve: curve.order):
        key = (curve.take.name.scope, curve.origin, curve.setting, curve.first.baseline)
        grids[key] = curve.first_id, curve.visits
    for take in newest_takes(takes, BoundaryPublished):
        for event in take.events_of(BoundaryPublished):
            data = event.data
            if data.quantity == "n_max":
                key = (data.platform, "published", data.setting, data.baseline)
                grids.setdefault(key, (event.event_id, data.grid))
    return [
        {
            "platform": platform,
            "origin": origin,
            **setting_row(setting),
            "baseline": baseline,
            "grid": sorted(n for n in grid if n >= baseline),
            "from_ids": [event_id],
        }
        for (platform, origin, setting, baseline), (event_id, grid) in grids.items()
    ]
