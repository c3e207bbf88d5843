"""Table `time_shares`: the shares of modules in a model's forward, timed inside it."""

from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from nearfree.core.boundary import median
from nearfree.core.setting import WHOLE, Setting
from nearfree.derive.tables.columns import CURVE, ORIGINS, amount, count, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import setting_row
from nearfree.log.events import Event, SharesMeasured
from nearfree.log.evidence import Take

TIME_SHARES = Table(
    name="time_shares",
    row="a module's share of a model's forward at one N",
    key=("platform", "stream", "take", "plan8", "setting_key", "n", "role"),
    formula="median over rounds, each module timed inside the forward; share: of their sum",
    code="nearfree.derive.tables.time_shares",
    body={
        **CURVE,
        "n": count("N, positions a request"),
        "baseline": count("the N that ratios refer to"),
        "role": text("the module; `between` is what is none: norms, rotations, sums"),
        "place": count("its place in the forward"),
        "latency_us": amount("its time in one forward, all layers together, median over rounds"),
        "share": amount("that over the sum of all modules' times"),
        "rounds": count("forwards that were timed module by module"),
        "model_us": amount("T(N) of the same take, timed without watching", nullable=True),
        "timer": text("the clock that was read after each module", one_of=("cpu", "cuda_events")),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)

_COPIED_COLUMNS = ("platform", "stream", "take", "plan8", "newest", "baseline", "origin")


def time_share_rows(takes: list[Take], latency: pl.DataFrame) -> Iterator[dict[str, object]]:
    """Yield a row per module of each point of each model.

    Rounds in which another process took the core are left out, unless all rounds are such.
    """
    latency_by_point = {
        (row["stream"], row["take"], row["plan8"], row["setting_key"], row["n"]): row
        for row in latency.filter(pl.col("module").is_in(WHOLE))
        .select(*_COPIED_COLUMNS, "setting_key", "n", "latency_us", "row_id")
        .to_dicts()
    }
    for take in takes:
        points: dict[tuple[Setting, int], list[Event]] = defaultdict(list)
        for event in take.events_of(SharesMeasured):
            points[event.data.setting, event.data.n].append(event)
        for (setting, n), events in points.items():
            row = setting_row(setting)
            name = take.name
            point = latency_by_point.get(
                (name.stream, name.take, name.plan8, row["setting_key"], n)
            )
            if point:
                yield from _rows(events, {**row, "n": n}, point)


def _rows(
    events: list[Event], setting: dict[str, object], point: dict[str, object]
) -> Iterator[dict[str, object]]:
    clean = [event for event in events if not event.data.dirty] or events
    roles = list(clean[0].data.part_us)
    medians_us = {role: median([event.data.part_us[role] for event in clean]) for role in roles}
    total_us = sum(medians_us.values())
    for place, (role, latency_us) in enumerate(medians_us.items(), start=1):
        yield {
            **setting,
            **{name: point[name] for name in _COPIED_COLUMNS},
            "role": role,
            "place": place,
            "latency_us": latency_us,
            "share": latency_us / total_us,
            "rounds": len(clean),
            "model_us": point["latency_us"],
            "timer": clean[0].data.timer,
            "from_ids": [*(event.event_id for event in clean), point["row_id"]],
        }
