"""Claims on curves: the flat range and the jump after it, utilisation, and work in steps."""

from collections.abc import Iterator
from itertools import pairwise

from nearfree.derive.claims.cases import Case, at_floor, doublings, n_max, setting_case, share
from nearfree.derive.claims.scope_tables import Row, ScopeTables, pairs

JUMP = 1.3
"""A factor of T that exceeds the largest tolerance."""
HIGH = 0.5
"""The share of its peak from which a bandwidth counts as high."""
_EQUAL_FACTOR = 1.001
_LEAST_POINTS = 3


def exists(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether N_max, with its whole interval, lies above the baseline."""
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
            yield _flatness_case(row, points, 1 + tables.epsilon)


def _flatness_case(row: Row, points: dict[int, Row], limit: float) -> Case:
    between = [point for n, point in points.items() if row["first_exit"] < n < row["n_max"]]
    violations = [point for point in between if point["ratio"] > limit]
    agrees: bool | None = not violations
    text, gap = f"within the tolerance up to {n_max(row)}", 0.0
    if at_floor(row):
        agrees = None if row["n_high"] > row["n_max"] else False
        first = points.get(row["next_n"])
        rise = f", T({first['n']}) / T({row['baseline']}) is {first['ratio']:.3g}" if first else ""
        text, gap = f"no flat range: {n_max(row)}{rise}", first["ratio"] if first else 0.0
    elif violations:
        highest = max(violations, key=lambda point: point["ratio"])
        agrees = None if all(point["ratio_low"] <= limit for point in violations) else False
        gap = highest["ratio"]
        text = f"T({highest['n']}) is {gap:.3g} of the baseline, {n_max(row)}"
    elif row["next_n"] is None:
        agrees, text = None, f"flat to the grid's end, N = {row['n_max']}"
    return setting_case(row, text, *violations, agrees=agrees, gap=gap)


def jumps(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether the position after N_max costs more than any tolerance would allow."""
    for row in tables.bounds(*modules):
        points = tables.points(row)
        last_point, next_point = points.get(row["n_max"]), points.get(row["next_n"] or 0)
        if last_point is None:
            continue
        if next_point is None or next_point["n"] != last_point["n"] + 1 or at_floor(row):
            reason = "nothing is near-free" if at_floor(row) else "N + 1 was not sampled"
            yield setting_case(row, f"{n_max(row)}, {reason}", agrees=None)
            continue
        rise = next_point["ratio"] / last_point["ratio"]
        highest_rise = next_point["ratio_high"] / last_point["ratio_low"]
        agrees = True if rise >= JUMP else None if highest_rise >= JUMP else False
        text = f"T({next_point['n']}) / T({last_point['n']}) is {rise:.3g}"
        yield setting_case(row, text, last_point, next_point, agrees=agrees, gap=-rise)


def bandwidth_bound(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether bandwidth use at the baseline is high, and larger than compute use."""
    for row in tables.bounds(*modules):
        point = tables.work(row).get(row["baseline"])
        if point is None:
            continue
        compute, bandwidth = point["compute_utilization"], point["bandwidth_utilization"]
        source = point["source"]
        if compute is None or bandwidth is None:
            yield setting_case(row, f"no peaks to refer to, {source}", point, agrees=None)
        else:
            text = f"{share(bandwidth)} of bandwidth, {share(compute)} of compute, {source}"
            agrees = bandwidth >= HIGH and bandwidth > compute
            yield setting_case(row, text, point, agrees=agrees, gap=-bandwidth)


def compute_rises(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether up to N_max compute use grows by a larger factor than bandwidth use changes."""
    for row in tables.bounds(*modules):
        work = tables.work(row)
        first, last = work.get(row["baseline"]), work.get(row["n_max"])
        if first is None or last is None or at_floor(row):
            continue
        kinds = ("compute_utilization", "bandwidth_utilization")
        if all(point[kind] for point in (first, last) for kind in kinds):
            compute, bandwidth = (last[kind] / first[kind] for kind in kinds)
            text = (
                f"to N = {row['n_max']} compute use times {compute:.3g}, bandwidth use times "
                f"{bandwidth:.3g}, {last['source']}"
            )
            agrees = compute > max(bandwidth, 1 / bandwidth)
            yield setting_case(row, text, first, last, agrees=agrees, gap=1 / compute)


def compute_with_batch(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether of two batch sizes the larger one uses more compute at the baseline."""
    for a, b in pairs(tables.bounds(*modules), "batch"):
        first, second = (tables.work(row).get(row["baseline"]) for row in (a, b))
        if first and second and first["compute_utilization"] and second["compute_utilization"]:
            factor = second["compute_utilization"] / first["compute_utilization"]
            text = f"compute use times {factor:.3g} at b = {b['batch']}, {second['source']}"
            yield setting_case(a, text, first, second, agrees=factor > 1, gap=-factor)


def steps(tables: ScopeTables, *modules: str, column: str = "flop_executed") -> Iterator[Case]:
    """Yield whether executed FLOPs, or another column, stay equal at some N and rise at others."""
    for row, curve in _work_curves(tables, modules, column, _LEAST_POINTS):
        rises = [b[column] / a[column] for a, b in pairwise(curve)]
        flat = sum(rise < _EQUAL_FACTOR for rise in rises)
        text = f"flat at {flat} of {len(rises)} steps of N, {curve[0]['source']}"
        yield setting_case(row, text, *curve, agrees=0 < flat < len(rises), gap=-float(flat))


def exceeds_logical(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether executed FLOPs are no fewer than needed, and more at some N."""
    for row, curve in _work_curves(tables, modules, "flop_logical", _LEAST_POINTS):
        factors = [point["flop_executed"] / point["flop_logical"] for point in curve]
        text = f"{min(factors):.4g} to {max(factors):.4g} times the FLOPs, {curve[0]['source']}"
        agrees = min(factors) * _EQUAL_FACTOR >= 1 and max(factors) > _EQUAL_FACTOR
        yield setting_case(row, text, *curve, agrees=agrees, gap=-max(factors))


def ends_with_block(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether N_max is the last N with the executed FLOPs of the baseline."""
    for row, curve in _work_curves(tables, modules, "flop_executed", 1):
        first = curve[0]["flop_executed"]
        if curve[0]["n"] != row["baseline"]:
            continue
        last_n = max(
            point["n"] for point in curve if point["flop_executed"] < first * _EQUAL_FACTOR
        )
        text = f"{n_max(row)}, the same executed FLOPs up to N = {last_n}, {curve[0]['source']}"
        agrees: bool | None = last_n == row["n_max"]
        if agrees:
            is_open = last_n == curve[-1]["n"] or at_floor(row) or row["verdict"] == "undecided"
            agrees = None if is_open else True
        elif row["n_low"] is not None and row["n_low"] <= last_n <= row["n_high"]:
            agrees = None
        gap = doublings(last_n, row["n_max"])
        yield setting_case(row, text, *curve, agrees=agrees, gap=gap)


def _work_curves(
    tables: ScopeTables, modules: tuple[str, ...], column: str, least: int
) -> Iterator[tuple[Row, list[Row]]]:
    """Yield boundaries with `least` or more points of executed work from the baseline on.

    A point counts where executed FLOPs and `column` are known and not 0.
    """
    for row in tables.bounds(*modules):
        points = [point for n, point in sorted(tables.work(row).items()) if n >= row["baseline"]]
        curve = [point for point in points if point["flop_executed"] and point[column]]
        if len(curve) >= least:
            yield row, curve
