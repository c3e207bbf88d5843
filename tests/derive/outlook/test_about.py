"""Columns of deployments' rows: precision, memory, and the events behind them."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from msgspec.structs import replace
from nearfree.config.files import Config, DeploymentSpec
from nearfree.decoders.model_file import find_model_file
from nearfree.derive.outlook.about import (
    CONDITION,
    MEMORY_COLUMNS,
    MODELS,
    condition_rows,
    model_id,
    model_ids,
)
from nearfree.derive.predict.forecast.expand_deployments import deployments

from derive.sheeted import CONFIG, sheet_table

DENSE = DeploymentSpec(models=("qwen3_8b",), platforms=("l40s",), batch=(1, 64))


def about(spec: DeploymentSpec) -> pl.DataFrame:
    """Return what rows about an entry's deployments have in common."""
    made = deployments(CONFIG, spec)
    return condition_rows("a", made, model_ids(CONFIG, spec), sheet_table())


def test_memory_is_that_of_the_deployment() -> None:
    """The parts make the peak, which fits up to the largest batch and no further."""
    rows = about(DENSE)
    parts = ("weights_bytes", "kv_bytes", "activations_bytes", "engine_bytes")
    assert rows.select(pl.sum_horizontal(*parts)).to_series().equals(rows["peak_bytes"])
    assert rows["fits"].to_list() == [True, False]
    assert (rows["fits"] == (rows["peak_bytes"] <= rows["capacity_bytes"])).all()
    assert (rows["fits"] == (rows["batch"] <= rows["largest_batch"])).all()
    assert rows["gpus_needed"].to_list() == [1, 2]


@pytest.mark.parametrize(
    ("spec", "formats"),
    [
        ({}, ("bfloat16", "bfloat16", "bfloat16")),
        ({"weights": "int4"}, ("int4", "bfloat16", "bfloat16")),
        ({"dtype": "float8"}, ("float8", "float8", "float8")),
        ({"kv_dtype": "float8"}, ("bfloat16", "bfloat16", "float8")),
    ],
)
def test_formats_are_said(spec: dict[str, Any], formats: tuple[str, ...]) -> None:
    """Each row names the formats of weights, products and cache, and rests on their peaks."""
    row, _ = about(replace(DENSE, **spec)).to_dicts()
    assert (row["weights"], row["dtype"], row["kv_dtype"]) == formats
    sheets = sheet_table().filter(platform="l40s", basis="datasheet")
    peaks = {sheets.filter(dtype=dtype)["row_id"].item() for dtype in {formats[1], "bfloat16"}}
    assert {*row["sources"][:-1]} == peaks
    assert row["sources"][-1].startswith(f"{MODELS}qwen3_8b@")


def test_what_is_not_known_is_empty() -> None:
    """Where a model's memory is unknown, all columns of memory are null."""
    made = [replace(deployment, memory=None) for deployment in deployments(CONFIG, DENSE)]
    rows = condition_rows("a", made, model_ids(CONFIG, DENSE), sheet_table())
    assert rows.select(*MEMORY_COLUMNS).null_count().row(0) == (2,) * len(MEMORY_COLUMNS)
    assert rows.select("dtype", "weights").null_count().row(0) == (0, 0)


def test_a_model_s_id_changes_with_what_it_stores(tmp_path: Path) -> None:
    """The id changes even where the forward is equal; a copy elsewhere has the same id."""
    shutil.copytree(CONFIG.folder / "models", tmp_path / "models")
    there = find_model_file(tmp_path, "qwen3_8b")
    own = model_id(find_model_file(Config(CONFIG.folder).folder, "qwen3_8b"))
    assert model_id(there) == own
    (first, *rest) = there.weights
    more = replace(first, size_bytes=first.size_bytes + 1)
    assert model_id(replace(there, weights=(more, *rest))) != own


def test_columns_have_units() -> None:
    """Columns of sizes end with their unit, bytes."""
    sizes = {name for name, column in MEMORY_COLUMNS.items() if column.meaning.startswith("bytes ")}
    assert sizes == {name for name in MEMORY_COLUMNS if name.endswith("_bytes")}
    assert not CONDITION.keys() & MEMORY_COLUMNS.keys()
