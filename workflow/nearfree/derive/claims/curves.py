"""Claims on curves: the flat range and the jump after it, utilisation, and work in steps."""

from collections.abc import Iterator
from itertools import pairwise

from nearfree.derive.claims.cases import Case, at_floor, doublings, n_max, setting_case, share
from nearfree.derive.claims.scope_tables import Row, ScopeTables, pairs

JUMP = 1.3
"""A rise that the largest tolerance would not hide."""
HIGH = 0.5
"""From which share of its peak a bandwidth counts as high."""
_EQUAL = 1.001
_SHORTEST = 3


def exists(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether N_max lies above the baseline, by its whole interval."""
    for row in tables.bounds(*modules):
        lowest = row["n_max"] if row["n_low"] is None else row["n_low"]
        highest = row["n_max"] if row["n_high"] is None else row["n_high"]
        agrees = None if lowest <= row["baseline"] < highest else lowest > row["baseline"]
        yield setting_case(row, f"{n_max(row)}, from N = {row['baseline']}", agrees=agrees)


def flat_then_rising(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether no N up to N_max exceeds the tolerance, and the next one does."""
    for row in tables.bounds(*modules):
        points = tables.points(row)
        if points:
            yield _shape(row, points, 1 + tables.epsilon)


def _shape(row: Row, points: dict[int, Row], limit: float) -> Case:
    out = [p for n, p in points.items() if row["first_exit"] < n < row["n_max"]]
    out = [p for p in out if p["ratio"] > limit]
    agrees: bool | None = not out
    text, gap = f"within the tolerance up to {n_max(row)}", 0.0
    if at_floor(row):
        agrees = None if row["n_high"] > row["n_max"] else False
        first = points.get(row["next_n"])
        rise = f", T({first['n']}) / T({row['baseline']}) is {first['ratio']:.3g}" if first else ""
        text, gap = f"no flat range: {n_max(row)}{rise}", first["ratio"] if first else 0.0
    elif out:
        top = max(out, key=lambda p: p["ratio"])
        agrees = None if all(p["ratio_low"] <= limit for p in out) else False
        gap = top["ratio"]
        text = f"T({top['n']}) is {gap:.3g} of the baseline, {n_max(row)}"
    elif row["next_n"] is None:
        agrees, text = None, f"flat to the grid's end, N = {row['n_max']}"
    return setting_case(row, text, *out, agrees=agrees, gap=gap)


def jumps(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether the position after N_max costs more than any tolerance would allow."""
    for row in tables.bounds(*modules):
        points = tables.points(row)
        last, after = points.get(row["n_max"]), points.get(row["next_n"] or 0)
        if last is None:
            continue
        if after is None or after["n"] != last["n"] + 1 or at_floor(row):
            why = "nothing is near-free" if at_floor(row) else "N + 1 was not sampled"
            yield setting_case(row, f"{n_max(row)}, {why}", agrees=None)
            continue
        rise = after["ratio"] / last["ratio"]
        most = after["ratio_high"] / last["ratio_low"]
        agrees = True if rise >= JUMP else None if most >= JUMP else False
        text = f"T({after['n']}) / T({last['n']}) is {rise:.3g}"
        yield setting_case(row, text, last, after, agrees=agrees, gap=-rise)


def bandwidth_bound(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether memory is busy, and compute is not, at the baseline."""
    for row in tables.bounds(*modules):
        at = tables.work(row).get(row["baseline"])
        if at is None:
            continue
        c, m, source = at["compute_utilization"], at["bandwidth_utilization"], at["source"]
        if c is None or m is None:
            yield setting_case(row, f"no peaks to refer to, {source}", at, agrees=None)
        else:
            text = f"{share(m)} of bandwidth, {share(c)} of compute, {source}"
            yield setting_case(row, text, at, agrees=m >= HIGH and m > c, gap=-m)


def compute_rises(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether compute use grows by more than bandwidth use moves, up to N_max."""
    for row in tables.bounds(*modules):
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
            agrees = grown > max(moved, 1 / moved)
            yield setting_case(row, text, first, last, agrees=agrees, gap=1 / grown)


def compute_with_batch(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether of two batch sizes the larger one uses more compute at the baseline."""
    for a, b in pairs(tables.bounds(*modules), "batch"):
        first, other = (tables.work(row).get(row["baseline"]) for row in (a, b))
        if first and other and first["compute_utilization"] and other["compute_utilization"]:
            grown = other["compute_utilization"] / first["compute_utilization"]
            text = f"compute use times {grown:.3g} at b = {b['batch']}, {other['source']}"
            yield setting_case(a, text, first, other, agrees=grown > 1, gap=-grown)


def steps(tables: ScopeTables, *modules: str, of: str = "flop_executed") -> Iterator[Case]:
    """Yield whether executed FLOPs, or another column, stand still at some N and rise at others."""
    for row, curve in _work_curves(tables, modules, of, _SHORTEST):
        rises = [b[of] / a[of] for a, b in pairwise(curve)]
        flat = sum(rise < _EQUAL for rise in rises)
        text = f"flat at {flat} of {len(rises)} steps of N, {curve[0]['source']}"
        yield setting_case(row, text, *curve, agrees=0 < flat < len(rises), gap=-float(flat))


def exceeds_logical(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether executed FLOPs are no fewer than needed, and more at some N."""
    for row, curve in _work_curves(tables, modules, "flop_logical", _SHORTEST):
        over = [at["flop_executed"] / at["flop_logical"] for at in curve]
        text = f"{min(over):.4g} to {max(over):.4g} times the FLOPs, {curve[0]['source']}"
        agrees = min(over) * _EQUAL >= 1 and max(over) > _EQUAL
        yield setting_case(row, text, *curve, agrees=agrees, gap=-max(over))


def ends_with_block(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether N_max is the last N with the executed FLOPs of the baseline."""
    for row, curve in _work_curves(tables, modules, "flop_executed", 1):
        first = curve[0]["flop_executed"]
        if curve[0]["n"] != row["baseline"]:
            continue
        until = max(at["n"] for at in curve if at["flop_executed"] < first * _EQUAL)
        text = f"{n_max(row)}, the same executed FLOPs up to N = {until}, {curve[0]['source']}"
        agrees: bool | None = until == row["n_max"]
        if agrees:
            ends = until == curve[-1]["n"] or at_floor(row) or row["verdict"] == "undecided"
            agrees = None if ends else True
        elif row["n_low"] is not None and row["n_low"] <= until <= row["n_high"]:
            agrees = None
        gap = doublings(until, row["n_max"])
        yield setting_case(row, text, *curve, agrees=agrees, gap=gap)


def _work_curves(
    tables: ScopeTables, modules: tuple[str, ...], column: str, least: int
) -> Iterator[tuple[Row, list[Row]]]:
    """Yield boundaries with the executed work from the baseline on, where a column is known."""
    for row in tables.bounds(*modules):
        points = [at for n, at in sorted(tables.work(row).items()) if n >= row["baseline"]]
        curve = [at for at in points if at["flop_executed"] and at[column]]
        if len(curve) >= least:
            yield row, curve
