"""The tables about deployments equal the command line's answers for the same arguments."""

from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from derive.sheeted import ANSWERER, sheet_table
from msgspec import json
from nearfree.config.files import Config
from nearfree.core.parallel import Parallel
from nearfree.derive.outlook.about import MEMORY
from nearfree.derive.outlook.outlook import FORECAST, LOOKUP, SHOWN_N, outlook
from nearfree.derive.outlook.schedules import SCHEDULES, schedules
from nearfree.derive.predict.forecast.forecast import CURVE, positions
from once import drawn, made_once, one_in

from cli.conftest import Call
from workflow import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("recorded")]
CONDITION = ("model", "platform", "attention", "moe", "routing", "dtype", "context")
CONFIG = Config(ROOT / "config")
ENTRIES = tuple(CONFIG.deployments)[one_in(2, "deployments")]
"""The entries of deployments.yaml of which a commit makes tables."""
CONFIG.deployments = {entry: CONFIG.deployments[entry] for entry in ENTRIES}
FORMATS = ("weights", "kv_dtype")
DEGREES = Parallel.__struct_fields__
NOT_COMPARED = {
    "row_id",
    "from_ids",
    "deployment",
    "drawn",
    "batch",
    *CONDITION,
    *FORMATS,
    *DEGREES,
}
NOT_COMPARED |= {"left_out", "graphs", *MEMORY}
FEW, MANY = range(len(ENTRIES)), range(len(ENTRIES), 10 * len(ENTRIES))
WITHOUT_CLASS = {("ling_2_0_mini", "vllm 0.9.1"), ("llada_2_1_mini", "vllm 0.20.2")}
"""Models and releases without their class: tables have them, the command line refuses them."""
SHARE = 10
"""Of the rows beyond one an entry, one in so many is tried."""
SEEDS = [*FEW, *(seed for seed in MANY if drawn(SHARE, seed))]
Row = dict[str, Any]


class Tables(NamedTuple):
    """The tables of shipped deployments."""

    lookup: pl.DataFrame
    forecast: pl.DataFrame
    schedules: pl.DataFrame


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return the tables of those entries, checked as they are when they are written."""

    def make(folder: Path) -> None:
        folder.mkdir()
        platforms = sheet_table()
        outlooks = outlook(CONFIG, ANSWERER, platforms)
        drafts = schedules(CONFIG, ANSWERER, platforms)
        tables_ = ((LOOKUP, outlooks.lookup), (FORECAST, outlooks.forecast), (SCHEDULES, drafts))
        for table, rows in tables_:
            built = table.build(rows, rows["from_ids"].explode().unique())
            built.write_parquet(folder / f"{table.name}.parquet")

    folder = made_once(tmp_path_factory, "deployed", make)
    return Tables(*(pl.read_parquet(folder / f"{name}.parquet") for name in Tables._fields))


def some_row(table: pl.DataFrame, seed: int) -> Row:
    """Return a random row, of one entry of deployments.yaml after the other."""
    rows = table.filter(deployment=ENTRIES[seed % len(ENTRIES)])
    return rows.sample(1, seed=seed).row(0, named=True)


def arguments(row: Row) -> list[str]:
    """Return a row's condition as arguments of the command line."""
    options = {
        name: str(row[name]) for name in (*CONDITION, *DEGREES, "batch", "epsilon") if row.get(name)
    }
    texts = {
        name: value.replace(" ", "==") if name in ("attention", "moe") else value
        for name, value in options.items()
    }
    texts["graphs"] = (row["graphs"] or "none").replace(" ", "==")
    return [part for name, value in texts.items() for part in (f"--{name}", value)]


def rows_of_deployment(table: pl.DataFrame, row: Row, *names: str) -> pl.DataFrame:
    """Return the rows of the same deployment."""
    conditions = [
        pl.col(name).eq_missing(row[name]) for name in ("deployment", *CONDITION, *DEGREES, *names)
    ]
    return table.filter(conditions)


@pytest.mark.parametrize("seed", SEEDS)
def test_lookup_and_forecast_equal_predict(call: Call, tables: Tables, seed: int) -> None:
    """Each answer at each baseline, T(N) / T(1) and all shares are those of `nearfree predict`."""
    row = some_row(tables.lookup, seed)
    code, out, _ = call("predict", *arguments(row), "--format", "json")
    if (row["model"], row["moe"]) in WITHOUT_CLASS:
        assert (code, "has no class" in out) == (2, True)
        return
    assert code == (0 if row["fits"] else 2)
    (answer,) = json.decode(out)
    memory_gb = {name: row[f"{name}_bytes"] / 1e9 for name in ("weights", "kv", "peak", "rank")}
    assert {name: answer["memory"][f"{name}_gb"] for name in memory_gb} == memory_gb
    assert answer["memory"]["fits"] == row["fits"]
    precision = answer["deployment"]["precision"]
    assert [precision[name] for name in ("weights", "kv")] == [row[name] for name in FORMATS]
    parallel = answer["deployment"]["parallel"]
    assert [parallel[name] for name in DEGREES] == [row[name] for name in DEGREES]
    rows = rows_of_deployment(tables.lookup, row, "batch", "epsilon").drop(NOT_COMPARED).to_dicts()
    key = ("baseline", "predictor", "composition")
    by_key = {tuple(prediction[k] for k in key): prediction for prediction in answer["predictors"]}
    assert len(by_key) == len(answer["predictors"])
    assert {tuple(cells[k] for k in key): cells for cells in rows} == {
        which: {name: prediction[name] for name in rows[0]} for which, prediction in by_key.items()
    }
    curve = {point["n"]: point for point in answer["curve"]}
    assert list(curve) in (positions(), [])
    points = rows_of_deployment(tables.forecast, row, "batch")
    assert set(points["n"]) == (set(SHOWN_N) if curve else set())
    for point in points.to_dicts():
        curve_point = curve[point["n"]]
        assert (point["ratio"], point["share"]) == (
            curve_point["ratio"],
            curve_point[point["module"]],
        )
        assert point["latency_us"] == pytest.approx(curve_point["latency_us"] * point["share"])
    for (n,), parts in points.group_by("n"):
        shares = {name: share for name, share in curve[n].items() if name not in CURVE}
        assert {*parts["module"]} == {name for name, share in shares.items() if share}


@pytest.mark.parametrize("seed", SEEDS)
def test_schedules_equal_those_that_schedule_prints(call: Call, tables: Tables, seed: int) -> None:
    """An option is the text that `nearfree schedule` prints unmerged, or its refusal."""
    row = some_row(tables.schedules, seed)
    code, out, err = call("schedule", row["engine"], *arguments(row), "--worth", "0")
    if (row["model"], row["moe"]) in WITHOUT_CLASS:
        assert (code, "has no class" in err) == (2, True)
        return
    assert (code, out) == ((0, f"{row['option']}\n") if row["option"] else (2, ""))
    assert (row["option"] is None) == (row["refusal"] is not None)
    reason = "DOES NOT FIT" if row["fits"] is False else row["refusal"]
    assert row["refusal"] is None or reason in err


def test_every_condition_has_its_schedules(tables: Tables) -> None:
    """Each condition of `lookup` has a schedule of each engine that its experts are of."""
    scheduled = tables.schedules.select("deployment", *CONDITION, "epsilon", "engine")
    conditions = tables.lookup.select("deployment", *CONDITION, "epsilon").unique()
    engines = conditions.join(pl.DataFrame({"engine": ["vllm", "sglang"]}), how="cross")
    runs_experts = pl.col("moe").is_null() | pl.col("moe").str.starts_with(pl.col("engine"))
    expected = engines.filter(runs_experts)
    assert set(scheduled.rows()) == set(expected.rows())
    assert scheduled.height == expected.height


def test_every_tolerance_is_answered(tables: Tables) -> None:
    """`lookup` and `schedules` hold each tolerance of config.yaml, and laws are equal at each."""
    for table in (tables.lookup, tables.schedules):
        assert sorted(table["epsilon"].unique()) == list(CONFIG.site.tolerances)
    laws = tables.lookup.filter(pl.col("predictor") != "work_model")
    key = ("deployment", *CONDITION, "batch", "baseline", "predictor")
    distinct = laws.drop("row_id", "from_ids", "epsilon").unique()
    assert distinct.height == laws.select(key).unique().height
    assert laws.height == distinct.height * len(CONFIG.site.tolerances)
