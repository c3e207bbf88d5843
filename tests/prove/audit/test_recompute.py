"""One row made again: the commands that the report prints give the numbers that it prints."""

import polars as pl
import pytest
from nearfree.cli import main
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.store import write_table
from nearfree.prove.audit.recompute import remade
from prove.audit.independent import Root


def test_every_row_of_every_table_is_made_again_the_same(shared):
    """All of them, as `nearfree audit ROW_ID` does it one by one."""
    every = list(Root(shared.layout.root).rows)
    found = remade(shared.layout, shared.config, every)
    assert [each.row_id for each in found] == every
    assert [each.differences for each in found if each.differences] == []


def test_a_changed_number_ends_the_command_with_both_values(made, capsys):
    """Exit code 2, what the table says, and what the log gives."""
    frame = pl.read_parquet(made.layout.table("cpu", "boundaries"))
    write_table(made.layout, "cpu", BOUNDARIES, frame.with_columns(pl.col("n_max") + 1), {})
    row = frame.row(0, named=True)
    with pytest.raises(SystemExit) as end:
        main(["audit", row["row_id"], *roots(made)])
    assert end.value.code == 2
    shown = capsys.readouterr().out
    assert f"says n_max = {row['n_max'] + 1}, and the log gives {row['n_max']}" in shown


def test_an_unchanged_number_ends_well(shared, capsys):
    """Exit code 0, and the command to repeat it."""
    row = pl.read_parquet(shared.layout.table("public", "lookup"))["row_id"][0]
    with pytest.raises(SystemExit) as end:
        main(["audit", row, *roots(shared)])
    assert end.value.code == 0
    assert "made again from the log alone: the same" in capsys.readouterr().out


def roots(made) -> list[str]:
    """Return the options that name a root and a config."""
    return ["--results", str(made.layout.root), "--config", str(made.config)]
