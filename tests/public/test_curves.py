"""Imported curves as two frames, always in the same order."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from conftest import write_take
from nearfree.core.label import setting_key
from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import IMPORTED
from nearfree.core.setting import Setting
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.errors import EvidenceError
from nearfree.log.events import LatencyImported
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake
from nearfree.public.curves import SETTINGS_SCHEMA, curves_of, read_curves

GEMM = Setting(module="gemm", backend="vllm", dtype="bfloat16", d_model=4096, d_ff=8192)
DECODE = Setting(
    module="attention",
    backend="sglang",
    dtype="bfloat16",
    context=127,
    heads=32,
    kv_heads=8,
    head_dim=128,
)


def curve(setting: Setting = GEMM, **changes: object) -> LatencyImported:
    """Return a curve with some of its fields changed."""
    fields: dict[str, object] = {
        "source": "somebody",
        "member": "file",
        "member_sha256": "0" * 64,
        "platform": "h100",
        "setting": setting,
        "backend_version": "1.0",
        "n": (1, 2),
        "latency_us": (10.0, 11.0),
    }
    return LatencyImported(**(fields | changes))  # type: ignore[arg-type]


def put(
    layout: Layout, stream: str, *curves: LatencyImported, plan: str = "a", take: int = 1
) -> None:
    """Seal curves as a take of the imports."""

    def work(opened: OpenTake) -> None:
        for curve in curves:
            opened.append(curve, sync=False)

    write_take(
        layout,
        scope=IMPORTED,
        stream=stream,
        take=take,
        plan=ImportPlan(files={plan: "0" * 64}),
        work=work,
    )


def test_the_frames_say_what_the_events_say(layout: Layout) -> None:
    """One row per curve, one per point; a point has a context only if it varies."""
    decode = curve(DECODE, n=(1, 1), contexts=(127, 255), kernel="fa3", distribution="balanced")
    put(layout, "one", curve(), decode)
    frames = read_curves(layout)
    assert frames.points.rows() == [
        (0, 1, 10.0, None),
        (0, 2, 11.0, None),
        (1, 1, 10.0, 127),
        (1, 1, 11.0, 255),
    ]
    assert frames.settings["curve"].to_list() == [0, 1]
    assert frames.settings["setting_key"].to_list() == [setting_key(GEMM), setting_key(DECODE)]
    row = frames.settings.row(1, named=True)
    assert {name: row[name] for name in ("kernel", "distribution", "context", "d_model")} == {
        "kernel": "fa3",
        "distribution": "balanced",
        "context": 127,
        "d_model": None,
    }
    assert [event_id.rpartition("#")[2] for event_id in frames.settings["event_id"]] == ["2", "3"]


def test_the_setting_s_columns_are_the_tables() -> None:
    """The columns of a setting have the names and types that tables give them."""
    tables = {name: column.dtype for name, column in SETTING_COLUMNS.items()}
    assert {name: SETTINGS_SCHEMA[name] for name in tables} == tables
    assert curves_of([]).settings.schema == pl.Schema(SETTINGS_SCHEMA)


def test_one_stream_or_all(layout: Layout) -> None:
    """All streams are read in the order of their names, or one alone."""
    put(layout, "two", curve(platform="a100"))
    put(layout, "one", curve(platform="h20"))
    assert read_curves(layout).settings["platform"].to_list() == ["h20", "a100"]
    assert read_curves(layout, "two").settings["platform"].to_list() == ["a100"]


def test_of_several_takes_the_newest_counts(layout: Layout) -> None:
    """Of a file's several takes the newest is read."""
    put(layout, "one", curve(platform="h20"), plan="a")
    put(layout, "one", curve(platform="a100"), plan="b", take=2)
    assert read_curves(layout).settings["platform"].to_list() == ["a100"]


def test_nothing_to_read(layout: Layout) -> None:
    """A log without curves is an error that says how to import some."""
    with pytest.raises(EvidenceError, match="nearfree import"):
        read_curves(layout)
    put(layout, "one", curve())
    with pytest.raises(EvidenceError, match="no imported curves of two"):
        read_curves(layout, "two")


def test_the_published_import_needs_no_polars() -> None:
    """The import of the paper's values loads none of the packages that tables need."""
    program = (
        "import sys, nearfree.public.published\n"
        "sys.exit('polars' in sys.modules or 'requests' in sys.modules)\n"
    )
    root = Path(__file__).parents[2] / "workflow"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=False)
    assert done.returncode == 0
