"""The map of N_max over tolerances: a cell a boundary."""

import polars as pl
import pytest
from derive.tables.logs import TOLERANCES
from nearfree.core.modules.kind import ModuleKind
from nearfree.show.figures.families import Rows
from nearfree.show.figures.sensitivity import sensitivity_map

from show.figures.marks import ATTENTION, DENSE, MOE, marks, wider


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_cells_are_the_newest_boundaries(rows: Rows, module: ModuleKind) -> None:
    """There is a cell for each newest boundary at each tolerance, and no other."""
    found = rows.of(module.name).boundaries
    cells = [c for c in marks(sensitivity_map(found, module)) if "from N" not in c["panel"]]
    newest = found.filter("newest")
    assert {(c["row_id"], c["own"], c["epsilon"], c["n_max"]) for c in cells} == set(
        newest.select("row_id", module.own, "epsilon", "n_max").rows()
    )
    assert len(cells) == newest.height


@pytest.mark.parametrize("module", [DENSE, MOE, ATTENTION], ids=lambda module: module.name)
def test_cells_do_not_cover_each_other(rows: Rows, module: ModuleKind) -> None:
    """Each cell has a place of its own, also for two settings of one value."""
    found = wider(rows.of(module.name).boundaries.filter("newest"), dtype="float16")
    cells = marks(sensitivity_map(found, module))
    places = {(c["panel"], c["own"], c["epsilon"]) for c in cells}
    assert len(places) == len(cells)


def test_readings_from_one_are_panels_of_their_own(moe: Rows) -> None:
    """Where the baseline is another N, the readings from N=1 have their own panels."""
    cells = marks(sensitivity_map(moe.boundaries, MOE))
    second = [cell for cell in cells if cell["panel"].endswith(": from N = 1")]
    at = moe.boundaries.filter("newest").drop_nulls("n_max_from_1")
    assert {(c["row_id"], c["n_max"]) for c in second} == set(
        at.select("row_id", "n_max_from_1").rows()
    )
    assert len(second) == 2 * 2 * len(TOLERANCES)
    assert at.select(pl.col("routing").unique()).item() == "balanced"
