"""Table `work`: FLOPs, bytes, intensity and utilisation of each point, counted or profiled."""

from collections.abc import Iterable
from typing import Any

import polars as pl
import pytest
from conftest import make_setting, read_sealed, write_payloads
from nearfree.core.work import ExecutedWork
from nearfree.derive.tables.latency import LATENCY, latency_rows
from nearfree.derive.tables.platforms import PLATFORMS, config_id, platform_rows
from nearfree.derive.tables.project import project
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.work import WORK, work_rows
from nearfree.log.curves import curves
from nearfree.log.document import Manifest, manifest_path, read_document
from nearfree.log.events import KernelProfiled, Payload, WorkCounted
from nearfree.log.evidence import Take
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.seal import Seal
from nearfree.log.take import take_name

from derive.tables.logs import (
    SHEETS,
    make_probed,
    make_take,
    make_visits,
    study,
    write_probe,
)

TIMES = {1: 1000.0, 2: 1000.0, 4: 2000.0}
"""Microseconds by N; see `make_visits` for what rounds add."""


def counted(n: int = 1, *, flop: int = 8_000_000, **changes: Any) -> WorkCounted:
    """Return the count of a point whose padding doubles its FLOPs, over 2 MB."""
    work = ExecutedWork(
        flop_logical=flop // 2,
        flop_executed=flop,
        bytes_compulsory=2_000_000,
        blocks=3,
        block_rows=16,
        tiles=6,
        waves=1.5,
        basis="blocks of 16",
    )
    fields: dict[str, Any] = {
        "setting": make_setting(), "n": n, "work": work, "kernels": ("mm", "mul")
    }  # fmt: skip
    return WorkCounted(**(fields | changes))


def profiled(n: int = 1, **changes: Any) -> KernelProfiled:
    """Return what a profiler saw of a point."""
    fields: dict[str, Any] = {
        "setting": make_setting(),
        "n": n,
        "profiler": "perf 1",
        "forwards": 3,
        "kernels": ("gemm",),
        "kernel_us": 900.0,
        "flop": 9e6,
        "dram_bytes": 3e6,
        "tensor_utilization": 0.0,
        "dram_utilization": 0.75,
    }
    return KernelProfiled(**(fields | changes))


def table(takes: Iterable[Take], *, scope: str = "cpu", datasheet: bool = False) -> pl.DataFrame:
    """Return the table of takes that never were on disk, all its references checked."""
    every = list(takes)
    events = [event.event_id for take in every for event in take.events]
    sheets = {scope: SHEETS[scope]} if datasheet else {}
    known = [*events, *(config_id(name, sheet) for name, sheet in sheets.items())]
    latency = LATENCY.build(LATENCY.frame(latency_rows(curves(every))), known)
    facts = PLATFORMS.build(PLATFORMS.frame(platform_rows(sheets, every, scope)), known)
    rows = WORK.frame(work_rows(every, latency, facts))
    return WORK.build(rows, [*known, *latency["row_id"], *facts["row_id"]])


def measured(*payloads: Payload, **changes: Any) -> Take:
    """Return a take of a probe and a curve, with more payloads after them."""
    visits = make_visits(make_setting(), TIMES)
    return make_take(make_probed(), *visits, *payloads, **changes)


def test_a_row_is_one_point_from_one_source() -> None:
    """Each counted and each profiled point has one row, also where both speak of one point."""
    rows = table([measured(counted(1), counted(2), profiled(2))])
    assert rows.select("n", "source").rows() == [(1, "counted"), (2, "counted"), (2, "profiled")]


def test_a_counted_row_says_what_its_event_says() -> None:
    """FLOPs, bytes, blocks and kernels are the event's, and the rule behind them is named."""
    row = table([measured(counted(2))]).row(0, named=True)
    assert (row["flop_logical"], row["flop_executed"], row["bytes"]) == (4e6, 8e6, 2e6)
    assert (row["blocks"], row["block_rows"], row["tiles"], row["waves"]) == (3, 16, 6, 1.5)
    assert (row["counted_by"], row["kernels"]) == ("blocks of 16", "mm; mul")
    assert row["kernel_us"] is None


def test_intensity_is_of_what_is_executed() -> None:
    """AI is executed FLOPs over bytes, for counts and profiles."""
    rows = table([measured(counted(), profiled())])
    assert rows["intensity_flop_per_byte"].to_list() == [4.0, 3.0]


def test_utilisation_of_a_count_is_over_measured_time_and_probed_peaks() -> None:
    """C / (T phi) and B / (T beta), with phi of the dtype and beta by streaming."""
    row = table([measured(counted(4))]).row(0, named=True)
    seconds = row["latency_us"] / 1e6
    assert seconds == pytest.approx(2e-3, rel=0.02)
    assert row["basis"] == "probed_stream"
    assert row["compute_utilization"] == pytest.approx(8e6 / seconds / 80e9)
    assert row["bandwidth_utilization"] == pytest.approx(2e6 / seconds / 10e9)


def test_the_newest_probe_counts() -> None:
    """Of several probes utilisation refers to the newest one."""
    newer = make_take(make_probed(peak=160.0), take=2, plan8="1" * 8)
    one, two = (
        table(takes).row(0, named=True)
        for takes in ([measured(counted())], [measured(counted()), newer])
    )
    assert two["compute_utilization"] == pytest.approx(one["compute_utilization"] / 2)


def test_without_a_probe_the_datasheet_counts() -> None:
    """Where nothing was probed, phi and beta are the datasheet's, and the row says so."""
    setting = make_setting(dtype="bfloat16")
    take = make_take(*make_visits(setting, TIMES), counted(setting=setting), scope="h20")
    row = table([take], scope="h20", datasheet=True).row(0, named=True)
    sheet = SHEETS["h20"]
    seconds = row["latency_us"] / 1e6
    assert row["basis"] == "datasheet"
    assert row["compute_utilization"] == pytest.approx(
        8e6 / seconds / (sheet.peak_tflops["bfloat16"] * 1e12)
    )


def test_a_probe_goes_before_a_datasheet() -> None:
    """If both are known, utilisation refers to the probe."""
    setting = make_setting(dtype="bfloat16")
    take = make_take(
        make_probed(), *make_visits(setting, TIMES), counted(setting=setting), scope="h20"
    )
    assert table([take], scope="h20", datasheet=True)["basis"].to_list() == ["probed_stream"]


def test_utilisation_of_a_profile_is_the_profilers() -> None:
    """A profiled row repeats the profiler's shares, a zero too, and names no phi and beta."""
    row = table([measured(profiled())]).row(0, named=True)
    assert (row["compute_utilization"], row["bandwidth_utilization"]) == (0.0, 0.75)
    assert row["basis"] is None
    assert (row["counted_by"], row["kernel_us"]) == ("perf 1", 900.0)
    assert not any(name.startswith("platforms:") for name in row["from_ids"])


def test_what_a_profiler_did_not_see_stays_empty() -> None:
    """A profile without FLOPs or bytes has no intensity."""
    for missing in ({"flop": None}, {"dram_bytes": None}, {"dram_bytes": 0.0}):
        row = table([measured(profiled(**missing))]).row(0, named=True)
        assert row["intensity_flop_per_byte"] is None


def test_a_row_names_event_latency_and_facts() -> None:
    """A counted row is made from its event, its point's latency row and the platform's row."""
    take = measured(counted(2))
    (ids,) = table([take])["from_ids"].to_list()
    event = next(e.event_id for e in take.events_of(WorkCounted))
    assert ids[0] == event
    assert [name.partition(":")[0] for name in ids[1:]] == ["latency", "platforms"]


def test_a_point_without_latency_has_no_utilisation() -> None:
    """Work that was counted but not timed keeps its row, without latency and utilisation."""
    row = table([measured(counted(64))]).row(0, named=True)
    assert row["flop_executed"] == 8e6
    assert row["latency_us"] is row["compute_utilization"] is row["bandwidth_utilization"] is None
    assert len(row["from_ids"]) == 1


def test_a_dtype_without_facts_has_no_utilisation() -> None:
    """Where phi of the dtype is unknown there is no utilisation, and no basis either."""
    setting = make_setting(dtype="float16")
    take = make_take(make_probed(), *make_visits(setting, TIMES), counted(setting=setting))
    row = table([take]).row(0, named=True)
    assert row["latency_us"] is not None
    assert row["basis"] is row["compute_utilization"] is None


def test_the_last_attempt_counts() -> None:
    """Where attempts of a take counted a point again, the last count stands alone."""
    rows = table([measured(counted(flop=2_000_000), counted(2), counted(flop=4_000_000))])
    assert rows.select("n", "flop_executed").rows() == [(1, 4e6), (2, 8e6)]


def test_the_newest_take_of_each_source_is_marked() -> None:
    """A newer count does not hide an older profile: each source has its newest take."""
    older = measured(counted(), profiled())
    newer = measured(counted(), take=2, plan8="1" * 8)
    rows = table([older, newer]).select("take", "source", "newest").sort("take", "source").rows()
    assert rows == [(1, "counted", False), (1, "profiled", True), (2, "counted", True)]


@pytest.fixture
def logged(empty: Layout) -> tuple[Layout, Seal]:
    """Return a root with a probe and counted work without tables, and the study's seal."""
    write_probe(empty)
    plan = study(batches=(1,))
    visits = make_visits(make_setting(), TIMES)
    name = take_name("cpu", "dense_ffn", 1, plan)
    return empty, write_payloads(empty, name, plan, *visits, counted(1), counted(2))


def test_the_stage_writes_the_table(logged: tuple[Layout, Seal]) -> None:
    """The stage `project` writes the table, and its manifest names the tables that it used."""
    layout, _ = logged
    project(layout, "cpu", {})
    rows = read_table(layout, "cpu", WORK)
    assert WORK.check(rows)["n"].to_list() == [1, 2]
    used = [name for ids in rows["from_ids"] for name in ids if "#" not in name]
    there = [read_table(layout, "cpu", kind)["row_id"] for kind in (LATENCY, PLATFORMS)]
    assert len(used) == 4
    assert set(used) <= set(pl.concat(there))
    manifest = read_document(manifest_path(layout.table("cpu", "work")), Manifest)
    assert {"latency", "platforms", "events/cpu"} <= set(manifest.made_from)


def test_the_same_log_gives_the_same_table(logged: tuple[Layout, Seal]) -> None:
    """A second run writes the same bytes."""
    path = logged[0].table("cpu", "work")

    def written() -> list[bytes]:
        project(logged[0], "cpu", {})
        return [path.read_bytes(), manifest_path(path).read_bytes()]

    assert written() == written()


def test_a_retracted_count_disappears(logged: tuple[Layout, Seal]) -> None:
    """After the retraction of a count its row is gone."""
    layout, seal = logged
    event = next(e for e in read_sealed(layout, seal) if isinstance(e.data, WorkCounted))
    retract(layout, event.event_id, "the adapter counted wrongly")
    project(layout, "cpu", {})
    assert read_table(layout, "cpu", WORK)["n"].to_list() == [2]
