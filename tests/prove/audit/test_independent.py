"""A second auditor that shares no code with the package computes the same numbers."""

import ast
from pathlib import Path

import pytest
from prove.audit import independent
from prove.audit.independent import Root, every_boundary, walk


def test_it_shares_no_code_with_the_package():
    """The second auditor imports nothing of this project."""
    tree = ast.parse(Path(independent.__file__).read_text())
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
        )
    }
    assert not any(str(name).startswith(("nearfree", "tables", "audit")) for name in names)


@pytest.mark.parametrize("seed", range(3))
def test_random_cells_of_a_real_run_walk_to_their_events(built, seed):
    """Twenty random cells of a measured workflow lead to intact events."""
    counts = walk(Root(built / "results"), 20, seed)
    assert counts["events"] > 20


def test_every_boundary_of_a_real_run_is_computed_anew(built):
    """All measured and printed boundaries are computed again from raw samples."""
    assert every_boundary(Root(built / "results")) > 250


def test_it_finds_a_changed_sample(made):
    """The second auditor finds a changed sample by the line's hash."""
    path = next(made.layout.events.glob("cpu/dense_ffn/2-*.jsonl"))
    path.write_text(path.read_text().replace('"wall_us":[1000', '"wall_us":[1001'))
    with pytest.raises(AssertionError, match="was changed"):
        every_boundary(Root(made.layout.root))
