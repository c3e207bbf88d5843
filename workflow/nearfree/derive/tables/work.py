"""Table `work`: the work of one forward, counted by its adapter or measured by a profiler.

For a counted point, utilisation is C / (T phi) and B / (T beta), with the platform's newest probed
phi and streaming beta, or its datasheet's. A profiler reports its own (paper, app. C.1).
"""

from collections.abc import Iterator
from typing import Any

import polars as pl
from msgspec import UNSET

from nearfree.core.label import setting_key
from nearfree.core.setting import Setting
from nearfree.derive.tables.columns import CURVE, ORIGINS, Column, amount, count, flag, text
from nearfree.derive.tables.platforms import newest_balances
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import setting_row
from nearfree.log.events import Event, KernelProfiled, WorkCounted
from nearfree.log.evidence import Take
from nearfree.units import BYTES_PER_GB, FLOP_PER_GFLOP, GFLOP_PER_TFLOP, US_PER_S

Row = dict[str, Any]
_BASES = ("probed_stream", "datasheet")
_GRAINS = ("blocks", "block_rows", "tiles", "waves")


def _from_zero(meaning: str) -> Column:
    return Column(dtype=pl.Float64(), meaning=meaning, nullable=True, at_least=0.0)


WORK = Table(
    name="work",
    row="the work of one forward at one point of one setting in one take, from one source",
    key=("platform", "stream", "take", "plan8", "setting_key", "n", "source"),
    formula="counted by the adapter, or told by a profiler; AI = FLOPs / bytes",
    paper="sec. 2.3",
    code="nearfree.derive.tables.work",
    body={
        **CURVE,
        "stream": text("the study, or its profile"),
        "newest": flag("whether no newer sealed take of the study has this setting's work"),
        "n": count("N, positions a request"),
        "source": text("who says so: its adapter or a profiler", one_of=("counted", "profiled")),
        "counted_by": text("the rule or code that the count rests on, or the profiler"),
        "flop_logical": amount("C of the module's definition, without padding", nullable=True),
        "flop_executed": _from_zero("C that the kernels do"),
        "bytes": _from_zero("B: each operand once where counted, DRAM traffic where profiled"),
        "blocks": count("row blocks: expert-token blocks, or query tiles times heads",
                        nullable=True),
        "block_rows": count("rows of a block: M_moe, or the query tile", nullable=True),
        "tiles": count("thread blocks of the largest kernel", nullable=True),
        "waves": amount("those tiles over the GPU's SMs", nullable=True),
        "kernels": text("the kernels that ran, each once, separated by semicolons"),
        "kernel_us": amount("time inside kernels, where profiled", nullable=True),
        "intensity_flop_per_byte": _from_zero("AI = flop_executed / bytes"),
        "latency_us": amount("T(N) of this point in the same take", nullable=True),
        "basis": text("whose phi and beta utilisation refers to, none where profiled",
                      nullable=True, one_of=_BASES),
        "compute_utilization": _from_zero("C / (T phi), or tensor throughput where profiled"),
        "bandwidth_utilization": _from_zero("B / (T beta), or DRAM throughput where profiled"),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)  # fmt: skip


def work_rows(
    takes: list[Take], latency: pl.DataFrame, platforms: pl.DataFrame
) -> Iterator[dict[str, object]]:
    """Yield one row per counted point and one per profiled point."""
    facts = _facts(platforms)
    latency_points = latency.select(*_POINT, "row_id", "latency_us", "origin").to_dicts()
    latency_by_point = {tuple(row[name] for name in _POINT): row for row in latency_points}
    points = [
        (take, event)
        for take in takes
        for kind in (WorkCounted, KernelProfiled)
        for event in _last(take, kind)
    ]
    newest: dict[tuple[str, Setting, type], tuple[int, str, str]] = {}
    for take, event in points:
        key = (take.name.stream, event.data.setting, type(event.data))
        newest[key] = max(newest.get(key, take.order), take.order)
    for take, event in points:
        data = event.data
        key = (take.name.stream, data.setting, type(data))
        identity = {
            "platform": take.name.scope,
            "stream": take.name.stream,
            "take": take.name.take,
            "plan8": take.name.plan8,
            "newest": newest[key] == take.order,
            **setting_row(data.setting),
            "n": data.n,
        }
        point = latency_by_point.get(tuple(identity[name] for name in _POINT))
        fact = facts.get((take.name.scope, data.setting.dtype))
        simulated = getattr(take.started.data.plan, "curves", UNSET) is not UNSET
        origin = "simulated" if simulated else "measured"
        yield identity | _columns(event, point, fact) | {"origin": origin}


_POINT = ("stream", "take", "plan8", "setting_key", "n")


def _last(take: Take, kind: type[WorkCounted | KernelProfiled]) -> list[Event]:
    """Return the events of one kind, of several attempts at a point only the last."""
    return list(
        {
            (setting_key(event.data.setting), event.data.n): event for event in take.events_of(kind)
        }.values()
    )


def _facts(platforms: pl.DataFrame) -> dict[tuple[str, str], Row]:
    """Return phi and beta by platform and dtype: the newest probe's, else the datasheet's."""
    rows = newest_balances(platforms).to_dicts()
    return {
        (row["platform"], row["dtype"]): row
        for basis in reversed(_BASES)
        for row in rows
        if row["basis"] == basis
    }


def _columns(event: Event, point: Row | None, fact: Row | None) -> Row:
    """Return the columns of an event, with the point's latency and the platform's utilisation."""
    counted = isinstance(event.data, WorkCounted)
    work = _counted(event) if counted else _profiled(event)
    from_ids = [event.event_id]
    if point:
        from_ids.append(point["row_id"])
    if counted and point and fact:
        work |= _utilization(work, point["latency_us"], fact)
        from_ids.append(fact["row_id"])
    flop, bytes_moved = work["flop_executed"], work["bytes"]
    return work | {
        "kernels": "; ".join(event.data.kernels),
        "intensity_flop_per_byte": flop / bytes_moved if flop is not None and bytes_moved else None,
        "latency_us": point["latency_us"] if point else None,
        "from_ids": from_ids,
    }


def _counted(event: Event) -> Row:
    work = event.data.work
    return {
        "source": "counted",
        "counted_by": work.basis,
        **{name: getattr(work, name) for name in ("flop_logical", "flop_executed", *_GRAINS)},
        "bytes": work.bytes_compulsory,
        **dict.fromkeys(("kernel_us", "basis", "compute_utilization", "bandwidth_utilization")),
    }


def _profiled(event: Event) -> Row:
    data = event.data
    return {
        "source": "profiled",
        "counted_by": data.profiler,
        **dict.fromkeys(("flop_logical", *_GRAINS, "basis")),
        "flop_executed": data.flop,
        "bytes": data.dram_bytes,
        "kernel_us": data.kernel_us,
        "compute_utilization": data.tensor_utilization,
        "bandwidth_utilization": data.dram_utilization,
    }


def _utilization(work: Row, latency_us: float, fact: Row) -> Row:
    seconds = latency_us / US_PER_S
    phi = fact["peak_tflops"] * GFLOP_PER_TFLOP * FLOP_PER_GFLOP
    return {
        "basis": fact["basis"],
        "compute_utilization": work["flop_executed"] / (seconds * phi),
        "bandwidth_utilization": work["bytes"] / (seconds * fact["bandwidth_gb_s"] * BYTES_PER_GB),
    }
