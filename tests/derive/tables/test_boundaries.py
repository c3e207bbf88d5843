"""Tables of boundaries, sensitivity, settings, hardware facts and rules."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import make_setting
from nearfree.config.files import Config
from nearfree.core.boundary import Ratio, boundary
from nearfree.core.label import setting_key
from nearfree.derive.tables.boundaries import (
    BOUNDARIES,
    SENSITIVITY,
    measured_rows,
    published_rows,
    sensitivity_rows,
    write_boundaries,
)
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.latency import LATENCY, latency_rows
from nearfree.derive.tables.platforms import (
    PLATFORMS,
    config_id,
    newest_balances,
    platform_rows,
)
from nearfree.derive.tables.project import project
from nearfree.derive.tables.settings import SETTINGS, setting_row
from nearfree.derive.tables.store import read_table
from nearfree.hardware.platforms import Platform
from nearfree.log.curves import curves
from nearfree.log.names import Layout
from nearfree.public.published import import_published, newest_take

from derive.tables.logs import (
    CONFIG,
    SHAPE,
    SHEETS,
    TOLERANCES,
    knee,
    make_probed,
    make_take,
    make_visits,
    write_public,
)

Reader = Callable[..., pl.DataFrame]
Row = dict[str, Any]


def frame(*curves_: dict[int, float], **changes: Any) -> pl.DataFrame:
    """Return the latency table of takes with one curve each, numbered from one."""
    takes = [
        make_take(*make_visits(make_setting(**SHAPE), curve, **changes), take=number)
        for number, curve in enumerate(curves_, start=1)
    ]
    known = {event.event_id for take in takes for event in take.events}
    return LATENCY.build(LATENCY.frame(latency_rows(curves(takes))), known)


def test_a_boundary_is_read_off_the_latency_table() -> None:
    """Each curve has one row per tolerance: the boundary of its ratios."""
    latency = frame(knee(1), knee(2))
    rows = list(measured_rows(latency, TOLERANCES))
    assert len(rows) == 2 * len(TOLERANCES)
    for row in rows:
        points = latency.filter(pl.col("take") == row["take"]).sort("n").to_dicts()
        curve = [Ratio(p["n"], p["ratio"], p["ratio_low"], p["ratio_high"]) for p in points]
        limits = boundary(curve, row["epsilon"], 1)
        assert (row["n_max"], row["first_exit"], row["next_n"], row["verdict"]) == (
            limits.last_pass, limits.first_exit, limits.next_n, limits.verdict,
        )  # fmt: skip
        assert (row["n_low"], row["n_high"]) == (limits.low, limits.high)
        assert row["from_ids"] == [p["row_id"] for p in points]
        assert row["origin"] == "measured"
    assert {row["take"]: row["n_max"] for row in rows} == {1: 8, 2: 4}


def test_a_slow_baseline_shows() -> None:
    """`baseline_over_min` is how much slower the baseline is than the fastest N from it on."""
    slow = {1: 120.0, 2: 100.0, 4: 110.0}
    assert {r["baseline_over_min"] for r in measured_rows(frame(slow), TOLERANCES)} == {1.2}
    later = {1: 10.0, 2: 150.0, 4: 100.0}
    rows = list(measured_rows(frame(later, baseline=2), (0.2,)))
    assert [row["baseline_over_min"] for row in rows] == [pytest.approx(1.5)]


def test_a_boundary_from_a_single_position_stands_beside_the_papers() -> None:
    """If the baseline is not N = 1 and N = 1 was measured, N_max from T(1) is listed, too."""
    curve = {1: 30.0, 2: 35.0, 4: 100.0, 8: 110.0}
    (row,) = measured_rows(frame(curve, baseline=4), (0.2,))
    assert (row["n_max"], row["n_max_from_1"]) == (8, 2)
    assert row["n_low_from_1"] <= 2 <= row["n_high_from_1"]
    (without,) = measured_rows(frame({n: curve[n] for n in (2, 4, 8)}, baseline=4), (0.2,))
    (usual,) = measured_rows(frame(curve), (0.2,))
    assert (without["n_max_from_1"], usual["n_max_from_1"]) == (None, None)


def test_printed_boundaries_are_those_of_the_tolerances(table: Reader) -> None:
    """Printed values are taken at the asked tolerances, with the next N of the inferred grid."""
    rows = table(BOUNDARIES, "public")
    assert rows.height == 270 * 4 // 5
    assert set(rows["epsilon"]) == set(TOLERANCES)
    assert set(rows["verdict"]) == {"printed"}
    dense = rows.filter(pl.col("epsilon") == 0.2, pl.col("stream") == "tab:sensitivity-dense")
    assert dense.sort("batch").select("batch", "n_max", "next_n").rows() == [
        (1, 32, 64), (2, 16, 32), (4, 8, 16), (8, 4, 8), (16, 2, 4), (32, 1, 2),
    ]  # fmt: skip
    assert set(rows["origin"]) == {"published"}
    assert not set(TOLERANCES) & {row["epsilon"] for row in published_rows([], TOLERANCES)}


def test_a_corrected_value_replaces_the_earlier_one(empty: Layout, tmp_path: Path) -> None:
    """Of several imports of the paper's values the newest counts, whatever its name."""
    older = write_public(empty).name
    folder = shutil.copytree(CONFIG / "published", tmp_path / "published")
    for name, printed, mended in (
        ("sensitivity.csv", "-dense,b,1,0.2,32,", "-dense,b,1,0.2,64,"),
        ("rules.csv", "otherwise,64", "otherwise,72"),
    ):
        path = folder / name
        assert printed in path.read_text()
        path.write_text(path.read_text().replace(printed, mended))
    newer = import_published(empty, folder).name
    project(empty, "public", SHEETS)
    write_boundaries(empty, "public", tolerances=TOLERANCES, epsilon=0.2)
    rows = read_table(empty, "public", BOUNDARIES)
    dense = pl.col("stream") == "tab:sensitivity-dense", pl.col("batch") == 1
    assert rows.filter(*dense, pl.col("epsilon") == 0.2)["n_max"].to_list() == [64]
    assert "72" in read_table(empty, "public", GRANULARITY)["value"]
    for table in (BOUNDARIES, GRANULARITY, SETTINGS):
        ids = read_table(empty, "public", table)["from_ids"].explode()
        assert not ids.str.starts_with(str(older)).any()
        assert ids.str.starts_with(str(newer)).all()
    assert newest_take(empty).name == newer


def curve_rows(*n_max: int) -> pl.DataFrame:
    """Return the boundaries of a setting on powers of two, at rising tolerances."""
    fields = {
        "platform": "cpu", "stream": "s", "take": 1, "plan8": "0" * 8, "newest": True,
        **setting_row(make_setting()), "baseline": 1, "first_exit": None, "n_low": None,
        "n_high": None, "verdict": "printed", "baseline_over_min": None, "grid_inferred": False,
        "n_max_from_1": None, "n_low_from_1": None, "n_high_from_1": None,
        "noisy": False, "origin": "measured", "from_ids": ["e#1"],
    }  # fmt: skip
    rows = [
        fields | {"epsilon": 0.1 * (i + 1), "n_max": n, "next_n": None if n == 32 else 2 * n}
        for i, n in enumerate(n_max)
    ]
    return BOUNDARIES.build(BOUNDARIES.frame(rows), {"e#1"})


@pytest.mark.parametrize(
    ("n_max", "verdict"),
    [
        ((4, 4, 4), "stable"),
        ((4,), "stable"),
        ((4, 8, 8), "gradual"),
        ((2, 4, 8), "gradual"),
        ((2, 8, 8), "jumping"),
        ((4, 8, 32), "jumping"),
        ((32, 32), "stable"),
    ],
)
def test_how_far_a_boundary_moves(n_max: tuple[int, ...], verdict: str) -> None:
    """A boundary is stable, or moves by one grid step between tolerances, or by more."""
    (row,) = sensitivity_rows(curve_rows(*n_max), LATENCY.frame([]), 0.2)
    assert row["verdict"] == verdict
    assert (row["n_max_low"], row["n_max_high"]) == (n_max[0], n_max[-1])
    assert (row["epsilon_low"], row["tolerances"]) == (0.1, len(n_max))
    assert len(row["from_ids"]) == len(n_max)


def test_every_boundary_has_its_sensitivity(table: Reader) -> None:
    """Each setting of each take and printed table has one row over all tolerances."""
    for scope, count in (("cpu", 4), ("public", 54)):
        rows = table(SENSITIVITY, scope)
        assert rows.height == count
        assert set(rows["tolerances"]) == {len(TOLERANCES)}


def test_settings_are_those_of_curves_and_printed_values(table: Reader) -> None:
    """Each measured or printed setting has one row with its key."""
    measured = table(SETTINGS)
    assert sorted(measured["batch"]) == [1, 2]
    keys = {setting_key(make_setting(**SHAPE, batch=batch)) for batch in (1, 2)}
    assert set(measured["setting_key"]) == keys
    assert table(SETTINGS, "public").height == 54


def test_rules_are_all_there(table: Reader) -> None:
    """Each of the forty printed branches has a row; a platform has none."""
    assert table(GRANULARITY, "public").height == 40
    assert table(GRANULARITY).is_empty()


def test_a_probe_gives_each_dtype_by_each_method() -> None:
    """Rho is phi over beta for each dtype and each method of beta."""
    probe = make_take(make_probed(peak=80.0, bandwidth=10.0), take=3)
    rows = {(r["dtype"], r["basis"]): r for r in platform_rows({}, [probe], "cpu")}
    assert {key: row["balance_flop_per_byte"] for key, row in rows.items()} == {
        ("bfloat16", "probed_stream"): 2.0,
        ("bfloat16", "probed_gemm"): 4.0,
        ("float32", "probed_stream"): 8.0,
        ("float32", "probed_gemm"): 16.0,
    }
    row = rows["float32", "probed_stream"]
    assert (row["peak_tflops"], row["bandwidth_gb_s"], row["take"]) == (0.08, 10.0, 3)
    assert (row["vendor_name"], row["sm_count"], row["l2_mib"]) == ("Test CPU", 4, 8.0)


def test_a_datasheet_gives_each_dtype_with_its_source() -> None:
    """A datasheet has a row per dtype, with the dtype's own source if there is one."""
    sheet = Config(CONFIG).platforms["h20"]
    rows = {r["dtype"]: r for r in platform_rows({"h20": sheet}, [], "public")}
    assert set(rows) == {"bfloat16", "float16", "float8", "int8"}
    assert rows["bfloat16"]["balance_flop_per_byte"] == 37.0
    assert rows["bfloat16"]["source"] == sheet.sources["peak_tflops"]
    assert rows["float8"]["source"] == sheet.sources["peak_tflops.float8"]
    assert rows["float8"]["from_ids"] == [config_id("h20", sheet)]


def test_a_datasheet_without_both_facts_has_no_row() -> None:
    """A datasheet without phi or beta has no row."""
    for platform in (
        Platform(kind="cpu"),
        Platform(kind="cuda", peak_tflops={"bfloat16": 1.0}),
        Platform(kind="cuda", bandwidth_gb_s=1.0),
    ):
        assert list(platform_rows({"x": platform}, [], "x")) == []


def test_an_id_of_a_datasheet_changes_with_its_facts() -> None:
    """A datasheet's id holds a digest of its facts."""
    one, other = (Platform(kind="cuda", bandwidth_gb_s=beta) for beta in (1.0, 2.0))
    assert config_id("x", one).startswith("config/platforms.yaml:x@")
    assert config_id("x", one) != config_id("x", other)


def test_the_newest_probe_counts() -> None:
    """Of several probes of a platform the newest counts, per dtype and method."""
    takes = [make_take(make_probed(peak=peak), take=take) for take, peak in ((1, 80.0), (2, 160.0))]
    for order in (takes, takes[::-1]):
        frame = PLATFORMS.build(
            PLATFORMS.frame(platform_rows({}, order, "cpu")),
            {event.event_id for take in takes for event in take.events},
        )
        newest = newest_balances(frame)
        assert (frame.height, newest.height) == (8, 4)
        assert set(newest["take"]) == {2}
