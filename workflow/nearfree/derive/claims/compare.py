"""Comparison of boundaries, each known to a step of its grid and to its interval.

Every function returns None where the comparison is undecided: the interval holds both answers, the
grid ends there, or nothing is near-free on either side.
"""

from math import inf, log2

from nearfree.derive.claims.scope_tables import Row


def reach(row: Row, factor: float = 1) -> tuple[float, float]:
    """Return the range of N that holds the boundary: from N_max to the next N of the grid.

    It is open below at the baseline, and above at the grid's end.

    Parameters
    ----------
    factor
        A factor on both.
    """
    low = 0.0 if at_floor(row) else row["n_max"] * factor
    return low, inf if row["next_n"] is None else row["next_n"] * factor


def at_floor(row: Row) -> bool:
    """Return whether nothing above the baseline is near-free."""
    return bool(row["n_max"] == row["baseline"])


def same(a: Row, b: Row, factors: tuple[float, float] = (1, 1)) -> bool | None:
    """Return whether two boundaries, each times its factor, lie within a grid step of another."""
    first_reach, other = reach(a, factors[0]), reach(b, factors[1])
    if first_reach[0] < other[1] and other[0] < first_reach[1]:
        open_ended = inf in (first_reach[1], other[1]) or (at_floor(a) and at_floor(b))
        return None if open_ended or _loose(a, b) else True
    first, second = _interval(a, factors[0]), _interval(b, factors[1])
    return None if first[0] <= second[1] and second[0] <= first[1] else False


def at_least(a: Row, b: Row) -> bool | None:
    """Return whether the first boundary is no smaller than the second."""
    if at_floor(a) and at_floor(b):
        return None
    first, second = _interval(a), _interval(b)
    if first[0] >= second[1]:
        return True
    if a["n_max"] >= b["n_max"]:
        return None if _loose(a, b) else True
    return None if first[1] >= second[0] else False


def within_step(row: Row, value: float) -> bool | None:
    """Return whether a predicted N lies between N_max and the next N of the grid."""
    if row["next_n"] is None and value >= row["n_max"]:
        return None
    if row["n_max"] <= value < (row["next_n"] or 0):
        return None if _loose(row) else True
    low, high = _interval(row)
    return None if row["n_low"] is not None and low <= value <= high else False


def doublings(a: float, b: float) -> float:
    """Return how many doublings lie between two numbers."""
    return inf if inf in (a, b) or min(a, b) <= 0 else abs(log2(a / b))


def _loose(*rows: Row) -> bool:
    return any(row["verdict"] == "undecided" for row in rows)


def _interval(row: Row, factor: float = 1) -> tuple[float, float]:
    if row["n_low"] is None:
        end = inf if row["next_n"] is None else row["n_max"] * factor
        return row["n_max"] * factor, end
    low = 0.0 if row["n_low"] == row["baseline"] else row["n_low"] * factor
    return low, inf if row["verdict"] == "censored" else row["n_high"] * factor
