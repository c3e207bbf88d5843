"""The sections about the measuring itself: its cost, and what has never run."""

import polars as pl
import pytest
from derive.tables.logs import make_take
from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.log.events import RunFinished
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.show.page import measuring as harness


@pytest.mark.parametrize(
    ("wall_s", "timed_s", "outside"), [(10.0, 9.5, "5.0%"), (4.0, 4.0, "0.0%"), (0.0, 0.0, "-")]
)
def test_the_cost_is_what_lies_outside_of_forwards(
    wall_s: float, timed_s: float, outside: str
) -> None:
    """A take's line gives its seconds, those in forwards, and the share of the others."""
    end = RunFinished(outcome="complete", wall_s=wall_s, timed_s=timed_s)
    (row,) = harness.cost([make_take(end)]).rows
    assert [cell.text for cell in row[1:]] == [f"{wall_s:.1f}", f"{timed_s:.1f}", outside]


def test_what_times_nothing_has_no_cost(made: Layout) -> None:
    """A probe or an import times no forwards, so it has no line."""
    grid = harness.cost(read_scope(made, "public"))
    assert grid.rows == ()


def test_a_change_of_kernels_is_told_with_its_n(made: Layout) -> None:
    """Where the kernels of two neighbouring N differ, the larger N is told with what changed."""
    rows = [
        {"stream": "dense", "backend": "torch", "setting_key": "a", "source": "counted", "n": n,
         "kernels": kernels, "newest": True, "row_id": f"work:{n}"}
        for n, kernels in ((1, "gemv; copy"), (2, "gemm; copy"), (4, "gemm; copy"))
    ]  # fmt: skip
    (row,) = harness.cliffs(pl.DataFrame(rows)).rows
    assert [cell.text for cell in row[2:]] == ["2", "gemv", "gemm"]
    assert row[2].row == "work:2"


def test_adapters_are_listed_with_their_runs() -> None:
    """Each adapter has a line that says of each kind of device whether a run is sealed."""
    grid = harness.adapters({("dense_ffn", "torch", "cpu")})
    assert len(grid.rows) == len(ADAPTERS)
    told = {(row[0].text, row[1].text): row[3].text for row in grid.rows}
    assert told["dense_ffn", "torch"] == "cpu: run; cuda: never run"
    assert told["moe_ffn", "vllm"] == "cuda: never run"
