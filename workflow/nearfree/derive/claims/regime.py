"""Claims on the shape of a curve: a near-free range that is flat and ends in a jump."""

from collections.abc import Callable, Iterator

from nearfree.derive.claims.cases import Case, at_floor, describe_setting, group_of, n_max
from nearfree.derive.claims.scope_tables import Row, ScopeTables

JUMP = 1.3
"""A rise that the largest tolerance would not hide."""


def exists(*modules: str) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_max lies above the baseline, by its whole interval."""

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(*modules):
            lowest = row["n_max"] if row["n_low"] is None else row["n_low"]
            highest = row["n_max"] if row["n_high"] is None else row["n_high"]
            agrees = None if lowest <= row["baseline"] < highest else lowest > row["baseline"]
            text = f"{describe_setting(row)}: {n_max(row)}, from N = {row['baseline']}"
            yield Case(group_of(row), agrees, text, (row["row_id"],))

    return check


def flat_then_rising(*modules: str) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that no N up to N_max exceeds the tolerance, and that the next one does."""

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(*modules):
            points = tables.points(row)
            if points:
                yield _shape(row, points, 1 + tables.epsilon)

    return check


def _shape(row: Row, points: dict[int, Row], limit: float) -> Case:
    out = [p for n, p in points.items() if row["first_exit"] < n < row["n_max"]]
    out = [p for p in out if p["ratio"] > limit]
    ids = (row["row_id"], *(p["row_id"] for p in out))
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
        text, gap = (
            f"T({top['n']}) is {top['ratio']:.3g} of the baseline, {n_max(row)}",
            top["ratio"],
        )
    elif row["next_n"] is None:
        agrees, text = None, f"flat to the grid's end, N = {row['n_max']}"
    return Case(group_of(row), agrees, f"{describe_setting(row)}: {text}", ids, gap)


def jumps(*modules: str) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that the position after N_max costs more than any tolerance would allow."""

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(*modules):
            points = tables.points(row)
            last, after = points.get(row["n_max"]), points.get(row["next_n"] or 0)
            if last is None:
                continue
            if after is None or after["n"] != last["n"] + 1 or at_floor(row):
                why = "nothing is near-free" if at_floor(row) else "N + 1 was not sampled"
                text = f"{describe_setting(row)}: {n_max(row)}, {why}"
                yield Case(group_of(row), None, text, (row["row_id"],))
                continue
            rise = after["ratio"] / last["ratio"]
            most = after["ratio_high"] / last["ratio_low"]
            agrees = True if rise >= JUMP else None if most >= JUMP else False
            text = f"{describe_setting(row)}: T({after['n']}) / T({last['n']}) is {rise:.3g}"
            ids = (row["row_id"], last["row_id"], after["row_id"])
            yield Case(group_of(row), agrees, text, ids, -rise)

    return check
