"""Rows recomputed from the log: equal numbers, and every kind of difference is reported."""

import shutil
from collections.abc import Callable

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.cli import main
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.store import read_table, write_table
from nearfree.errors import EvidenceError
from nearfree.prove.audit.recompute import differences, recompute
from prove.audit.independent import Root

pytestmark = pytest.mark.slow


def test_every_row_of_every_table_is_made_again_the_same(shared):
    """Each row, recomputed as `nearfree audit ROW_ID` does it, equals the table's, in any order."""
    every = list(Root(shared.layout.root).rows)[::-1]
    findings = recompute(shared.layout, shared.config, every)
    assert findings == {row: [] for row in every}


def test_a_changed_number_ends_the_command_with_both_values(made, capsys):
    """A changed number ends with exit code 2 and shows the table's and the log's value."""
    frame = pl.read_parquet(made.layout.table("cpu", "boundaries"))
    write_table(made.layout, "cpu", BOUNDARIES, frame.with_columns(pl.col("n_max") + 1), {})
    row = frame.row(0, named=True)
    with pytest.raises(SystemExit) as end:
        main(["audit", row["row_id"], *roots(made)])
    assert end.value.code == 2
    shown = capsys.readouterr().out
    assert f"says n_max = {row['n_max'] + 1}, and the log gives {row['n_max']}" in shown


def test_an_unchanged_number_ends_well(shared, capsys):
    """An unchanged number ends with exit code 0 and the command that repeats the check."""
    row = pl.read_parquet(shared.layout.table("public", "lookup"))["row_id"][0]
    with pytest.raises(SystemExit) as end:
        main(["audit", row, *roots(shared)])
    assert end.value.code == 0
    assert "recomputed from the log alone: equal" in capsys.readouterr().out


def test_rows_without_their_evidence_cannot_be_recomputed(made):
    """The error names the stage and the scope, with the stage's own reason and remedy."""
    row = pl.read_parquet(made.layout.table("cpu", "boundaries"))["row_id"][0]
    shutil.rmtree(made.layout.events / "cpu")
    with pytest.raises(EvidenceError) as caught:
        recompute(made.layout, made.config, [row])
    reason = "the log holds nothing sealed for cpu"
    assert caught.value.what == f"project of cpu cannot be recomputed: {reason}"
    assert caught.value.remedy.startswith("Measure it where it is (cpu in `here`), or adopt")


def roots(made) -> list[str]:
    """Return the options that name a root and a config."""
    return ["--results", str(made.layout.root), "--config", str(made.config)]


Change = Callable[[pl.DataFrame], pl.DataFrame]


def boundaries(shared) -> pl.DataFrame:
    """Return the boundaries of a root."""
    return read_table(shared.layout, "cpu", BOUNDARIES)


def test_equal_frames_have_no_differences(shared):
    """A table has no difference from itself."""
    assert list(differences(BOUNDARIES, boundaries(shared), boundaries(shared))) == []


@given(data=st.data())
def test_any_changed_cell_is_told_with_both_values(shared, data):
    """A changed cell of any column and row is reported with both values."""
    frame = boundaries(shared)
    column = data.draw(st.sampled_from([c for c in frame.columns if c != "row_id"]))
    place = data.draw(st.integers(0, frame.height - 1))
    old = frame[column].to_list()
    new = list(old)
    new[place] = changed(old[place], frame.schema[column])
    other = frame.with_columns(pl.Series(column, new, dtype=frame.schema[column]))
    (difference,) = differences(BOUNDARIES, other, frame)
    assert (difference.row_id, difference.column) == (frame["row_id"][place], column)
    assert (difference.on_disk, difference.recomputed) == (new[place], old[place])
    assert difference.row_id in str(difference)


def changed(value, dtype):
    """Return another value of a type."""
    if isinstance(dtype, pl.List):
        return [*value, "latency:000000000000"]
    if dtype == pl.Boolean:
        return not value
    if dtype == pl.String:
        return f"{value}x"
    return (value or 0) + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f[1:], "is missing"),
        (lambda f: pl.concat([f, f[:1]]), "is there twice"),
        (lambda f: f.with_columns(row_id=pl.col("row_id") + "x"), "does not give"),
        (lambda f: f.reverse(), "another order"),
    ],
)
def test_changed_rows_are_told(shared, change: Change, words: str):
    """Missing, duplicate, renamed and moved rows are reported."""
    frame = boundaries(shared)
    messages = [str(difference) for difference in differences(BOUNDARIES, change(frame), frame)]
    assert any(words in message for message in messages)
