"""`nearfree surface`: points in a file, N_max by batch and context in the text."""

from pathlib import Path

import polars as pl
import pytest
from decoders.files import change, write
from log.faults import largest_file
from msgspec import json

from cli.conftest import Call
from cli.test_mistakes import one_message

pytestmark = pytest.mark.usefixtures("recorded")
DENSE = ("--model", "qwen3_8b", "--platform", "h800", "--batch", "1,8", "--context", "512,4096")
SPARSE = ("--model", "mixtral_8x7b", *DENSE[2:], "--ignore-memory")
SHORT = ("--largest", "32")


def printed(call: Call, *argv: str, exit_code: int = 0) -> list[str]:
    """Return the lines that the command prints, and ends with this exit code."""
    code, out, err = call("surface", *argv, *SHORT)
    assert (code, err) == (exit_code, "")
    return out.splitlines()


def test_a_table_has_batch_down_and_context_across(call: Call) -> None:
    """Every cell is the N_max that `predict` gives at that batch and context."""
    lines = printed(call, *DENSE)
    assert lines[0].startswith("qwen3_8b on h800, bfloat16, vllm_fa3 ")
    assert lines[0].endswith("N_max at the tolerance 0.2 from N = 1, by the work model")
    assert lines[1].split() == ["b", "\\", "L", "512", "4096"]
    _, out, _ = call("predict", *DENSE, *SHORT, "--format", "json")
    expected = {
        (answer["deployment"]["batch"], answer["deployment"]["context"]): row
        for answer in json.decode(out)
        for row in answer["predictors"]
        if row["composition"] == "sum"
    }
    cells = [line.replace(">= ", ">=").split() for line in lines[2:]]
    for batch, row in zip((1, 8), cells, strict=True):
        assert row[0] == str(batch)
        for context, cell in zip((512, 4096), row[1:], strict=True):
            prediction = expected[batch, context]
            assert float(cell.removeprefix(">=")) == prediction["n_max"]
            assert cell.startswith(">=") == prediction["censored"]


def test_json_has_the_boundaries_of_the_table(call: Call) -> None:
    """A row for a deployment and baseline has its condition, its N_max and its caveats."""
    lines = [line.replace(">= ", "").split() for line in printed(call, *DENSE)[2:]]
    code, out, err = call("surface", *DENSE, *SHORT, "--format", "json")
    rows = {(row["batch"], row["context"]): row for row in json.decode(out)}
    assert (code, err, len(rows)) == (0, "", 4)
    for batch, *cells in lines:
        for context, cell in zip((512, 4096), cells, strict=True):
            row = rows[int(batch), context]
            assert (row["baseline"], row["unbounded"], row["fits"]) == (1, False, True)
            assert (row["n_max"], row["caveats"]) == (float(cell), [])


def test_experts_have_both_bounds_and_both_baselines(call: Call) -> None:
    """Balanced experts have a table from each baseline, skewed ones from N = 1 alone."""
    heads = [line for line in printed(call, *SPARSE) if ": N_max at " in line]
    assert [
        (" balanced routing" in line, "the paper's baseline N = ceil(E / (b k))" in line)
        for line in heads
    ] == [(True, False), (True, True), (False, False)]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_points_are_written(call: Call, tmp_path: Path, suffix: str) -> None:
    """The file has a row for each deployment and N, with its condition and both ratios."""
    path = tmp_path / f"points{suffix}"
    printed(call, *SPARSE, "--output", str(path))
    points = pl.read_parquet(path) if suffix == ".parquet" else pl.read_csv(path)
    assert points.height == 2 * 2 * 2 * 32
    assert {"model", "platform", "attention", "moe", "routing", "dtype"} <= set(points.columns)
    assert points.filter(n=1)["ratio"].unique().to_list() == [1.0]
    balanced = points.filter(routing="balanced", batch=1, context=512)
    assert balanced.filter(n=4)["ratio_full"].item() == 1.0
    assert balanced.filter(pl.col("n") < 4)["ratio_full"].null_count() == 3
    assert points["latency_us"].min() > 0  # type: ignore[operator]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_full_disk_leaves_the_earlier_points(call: Call, tmp_path: Path, suffix: str) -> None:
    """Points that cannot be written whole are named, and the file that was there stays."""
    path = tmp_path / f"points{suffix}"
    path.write_text("earlier points")
    with largest_file(100):
        one_message(call("surface", *DENSE, *SHORT, "--output", str(path)), f"{path} was not")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["earlier points"]


def test_duplicates_in_lists_are_one_cell(call: Call, tmp_path: Path) -> None:
    """Duplicates in lists are one row and one column; two models of one name are refused."""
    twice = ("--batch", "1,1", "--context", "512,512")
    assert len(printed(call, *DENSE[:4], *twice)) == 3
    for folder, layers in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, change("qwen3", num_hidden_layers=layers))
    models = ",".join(str(tmp_path / folder / "small.json") for folder in "ab")
    code, out, err = call("surface", "--model", models, *DENSE[2:4], *twice)
    assert (code, out) == (2, "")
    assert "two different models are named small" in err


def test_an_unknown_cell_has_its_reason(call: Call) -> None:
    """Cells without an answer are refused, and the reason is printed below once."""
    lines = printed(call, *DENSE, "--dtype", "float32", exit_code=2)
    assert [line.split()[1:] for line in lines[2:4]] == [["refused", "refused"]] * 2
    assert [line.startswith("refused: ") and "float32" in line for line in lines[4:]] == [True]


def test_cells_that_do_not_fit_are_marked(call: Call) -> None:
    """Cells of the default grid that do not fit are marked; the command fails only if all do."""
    deployment = ("--model", "qwen3_8b", "--platform", "h800")
    title, *lines = printed(call, *deployment)
    assert title.startswith("qwen3_8b on h800, from b = 4 at L = 131072 on: DOES NOT FIT")
    marked = [line.split()[-1].endswith("!") for line in lines if line.split()[0].isdecimal()]
    assert marked == [False] * 2 + [True] * 7
    assert lines[-1] == "! does not fit in memory"
    printed(call, *deployment, "--batch", "1,64", "--context", "512,131072", exit_code=2)


@pytest.mark.parametrize(
    ("line", "thing"),
    [
        ("--output points.txt", "points.txt"),
        ("--output /", "/ is neither"),
        ("--output no/such/folder/points.csv", "no folder no/such/folder for no/such"),
        ("--output no/such/folder/points.parquet", "no folder no/such/folder for no/such"),
        ("--largest 999999", "999999 N"),
        ("--attention nothing", "'nothing'"),
    ],
)
def test_a_mistake_is_one_message(call: Call, line: str, thing: str) -> None:
    """An impossible request is one line that names it."""
    one_message(call("surface", *DENSE, *line.split()), thing)
