"""Claims on the idle-compute baseline: where it predicts the boundary, and where it does not."""

from collections.abc import Callable, Iterator
from math import inf

from nearfree.derive.claims.cases import Case, group_of, n_max, named, plain
from nearfree.derive.claims.compare import apart, lands
from nearfree.derive.claims.laws import granularity
from nearfree.derive.claims.scope_tables import Log, Row

_NEAR = 2.0


def predicts(
    *modules: str, near: bool = False, wrong: bool = False
) -> Callable[[Log], Iterator[Case]]:
    """Return the check that N_idle lies between N_max and the next N of the grid.

    Parameters
    ----------
    modules
        Which.
    near
        Whether a factor of two beyond either end is close enough.
    wrong
        Whether the claim is that it does not.
    """

    def check(log: Log) -> Iterator[Case]:
        for row, value, ids in _said(log, *modules):
            hit = _near(row, value) if near else lands(row, value)
            agrees = hit if hit is None or not wrong else not hit
            text = f"{named(row)}: N_idle {_n(value)}, {n_max(row)}"
            yield Case(group_of(row), agrees, text, ids, apart(value, row["n_max"]))

    return check


def tile_before_idle(log: Log) -> Iterator[Case]:
    """Yield whether attention's query tile is smaller than N_idle."""
    for row, value, ids in _said(log, "attention"):
        tile = granularity(log, row)
        if tile is not None:
            text = f"{named(row)}: {tile.text}, N_idle {_n(value)}"
            gap = tile.n_max / value
            yield Case(group_of(row), tile.n_max < value, text, (*ids, *tile.ids), gap)


def _said(log: Log, *modules: str) -> Iterator[tuple[Row, float, tuple[str, ...]]]:
    for row in log.bounds(*modules):
        said = log.said(row, "idle_compute")
        if said is not None:
            value = inf if said["unbounded"] else said["n_max"]
            yield row, value, (row["row_id"], said["row_id"])


def _near(row: Row, value: float) -> bool | None:
    if row["next_n"] is None and value * _NEAR >= row["n_max"]:
        return None
    if row["n_max"] / _NEAR <= value <= (row["next_n"] or 0) * _NEAR:
        return None if row["verdict"] == "undecided" else True
    low, high = row["n_low"], row["n_high"]
    return None if low is not None and low / _NEAR <= value <= high * _NEAR else False


def _n(value: float) -> str:
    return "unbounded" if value == inf else plain(value)
