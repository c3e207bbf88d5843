"""Claims on what the hardware does: utilisation at the baseline, and work that goes in steps."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from nearfree.derive.claims.cases import (
    Case,
    at_floor,
    describe_setting,
    doublings,
    group_of,
    n_max,
    share,
)
from nearfree.derive.claims.scope_tables import Row, ScopeTables, pairs

HIGH = 0.5
"""From which share of its peak a bandwidth counts as high."""
_EQUAL = 1.001
_SHORTEST = 3


def bandwidth_bound(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether memory is busy, and compute is not, at the baseline of a dense FFN."""
    for row in tables.bounds("dense_ffn"):
        at = tables.work(row).get(row["baseline"])
        if at is not None:
            c, m = at["compute_utilization"], at["bandwidth_utilization"]
            known = c is not None and m is not None
            text = (
                f"{share(m)} of bandwidth, {share(c)} of compute"
                if known
                else "no peaks to refer to"
            )
            agrees = m >= HIGH and m > c if known else None
            yield _case(row, agrees, f"{text}, {at['source']}", [at], -m if known else 0.0)


def compute_rises(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether compute use grows by more than bandwidth use moves, up to N_max."""
    for row in tables.bounds("dense_ffn"):
        work = tables.work(row)
        first, last = work.get(row["baseline"]), work.get(row["n_max"])
        if first is None or last is None or at_floor(row):
            continue
        kinds = ("compute_utilization", "bandwidth_utilization")
        if all(at[kind] for at in (first, last) for kind in kinds):
            grown, moved = (last[kind] / first[kind] for kind in kinds)
            text = (
                f"to N = {row['n_max']} compute use times {grown:.3g}, bandwidth use times "
                f"{moved:.3g}, {last['source']}"
            )
            yield _case(row, grown > max(moved, 1 / moved), text, [first, last], 1 / grown)


def compute_with_batch(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether of two batch sizes the larger one uses more compute at the baseline."""
    for a, b in pairs(tables.bounds("dense_ffn"), "batch"):
        first, other = (tables.work(row).get(row["baseline"]) for row in (a, b))
        if first and other and first["compute_utilization"] and other["compute_utilization"]:
            grown = other["compute_utilization"] / first["compute_utilization"]
            text = f"compute use times {grown:.3g} at b = {b['batch']}, {other['source']}"
            yield _case(a, grown > 1, text, [first, other], -grown)


def steps(*modules: str, of: str = "flop_executed") -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that what kernels do stands still at some N and rises at others.

    Parameters
    ----------
    modules
        Which.
    of
        What: executed FLOPs, or arithmetic intensity.
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(*modules):
            curve = [at for at in _executed(tables, row) if at[of]]
            if len(curve) < _SHORTEST:
                continue
            rises = [b[of] / a[of] for a, b in pairwise(curve)]
            flat = sum(rise < _EQUAL for rise in rises)
            text = f"flat at {flat} of {len(rises)} steps of N, {curve[0]['source']}"
            yield _case(row, 0 < flat < len(rises), text, curve, -float(flat))

    return check


def exceeds_logical(*modules: str) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that executed FLOPs are no fewer than needed, and more at some N."""

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(*modules):
            curve = [at for at in _executed(tables, row) if at["flop_logical"]]
            if len(curve) < _SHORTEST:
                continue
            over = [at["flop_executed"] / at["flop_logical"] for at in curve]
            text = f"{min(over):.4g} to {max(over):.4g} times the FLOPs, {curve[0]['source']}"
            agrees = min(over) * _EQUAL >= 1 and max(over) > _EQUAL
            yield _case(row, agrees, text, curve, -max(over))

    return check


def ends_with_block(*modules: str) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_max is the last N with the executed FLOPs of the baseline."""

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(*modules):
            curve = _executed(tables, row)
            if curve and curve[0]["n"] == row["baseline"]:
                yield _ends(row, curve)

    return check


def _ends(row: Row, curve: list[Row]) -> Case:
    first = curve[0]["flop_executed"]
    until = max(at["n"] for at in curve if at["flop_executed"] < first * _EQUAL)
    text = f"{n_max(row)}, the same executed FLOPs up to N = {until}, {curve[0]['source']}"
    agrees: bool | None = until == row["n_max"]
    if agrees:
        ends = until == curve[-1]["n"] or at_floor(row) or row["verdict"] == "undecided"
        agrees = None if ends else True
    elif row["n_low"] is not None and row["n_low"] <= until <= row["n_high"]:
        agrees = None
    return _case(row, agrees, text, curve, doublings(until, row["n_max"]))


def _executed(tables: ScopeTables, row: Row) -> list[Row]:
    points = sorted(tables.work(row).items())
    return [at for n, at in points if n >= row["baseline"] and at["flop_executed"]]


def _case(row: Row, agrees: bool | None, text: str, used: list[Row], gap: float) -> Case:  # noqa: FBT001
    ids = (row["row_id"], *(at["row_id"] for at in used))
    return Case(group_of(row), agrees, f"{describe_setting(row)}: {text}", ids, gap)
