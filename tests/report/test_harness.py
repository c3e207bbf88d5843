"""The sections about the measuring itself: its cost, and what has never run."""

import pytest
from nearfree.events.evidence import read_scope
from nearfree.events.names import Layout
from nearfree.events.types import RunFinished
from nearfree.kernels import ADAPTERS
from nearfree.report import harness
from tables.logs import make_take


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


def test_adapters_are_listed_with_their_runs() -> None:
    """Each adapter has a line that says of each kind of device whether a run is sealed."""
    grid = harness.adapters({("dense_ffn", "torch", "cpu")})
    assert len(grid.rows) == len(ADAPTERS)
    told = {(row[0].text, row[1].text): row[3].text for row in grid.rows}
    assert told["dense_ffn", "torch"] == "cpu: run; cuda: never run"
    assert told["moe_ffn", "vllm"] == "cuda: never run"
