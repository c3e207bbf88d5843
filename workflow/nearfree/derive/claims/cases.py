"""Claims and their cases, and comparison of boundaries.

A case agrees, disagrees, or is undecided (None): where the interval allows both answers, where the
grid ends, or where nothing is near-free on either side. A boundary is known to a step of its grid.
"""

from collections.abc import Callable, Iterable
from math import inf, log2
from typing import NamedTuple

from msgspec import Struct

from nearfree.core.label import AXES, label
from nearfree.core.modules.registry import MAIN
from nearfree.derive.claims.scope_tables import Row

PAPER_MODULES = tuple(kind.name for kind in MAIN)
"""The module kinds that the paper studies."""
GRANULAR = tuple(kind.name for kind in MAIN if kind.granular)
"""Those of them whose kernels compute blocks or tiles of rows."""
_SIZES = ("d_ff", "heads", "kv_heads")
"""The fields of a module's shape that distinguish the paper's settings."""


class Group(NamedTuple):
    """The rows that one verdict covers."""

    platform: str | None
    module: str | None
    backend: str | None
    routing: str | None
    origin: str


class Case(Struct, frozen=True):
    """One case: whether it agrees, None where undecided, its numbers and its rows.

    `gap` is its distance from agreeing; only its order matters.
    """

    group: Group
    agrees: bool | None
    text: str
    ids: tuple[str, ...]
    gap: float = 0.0


Check = Callable[..., Iterable[Case]]
"""A function that yields the cases of a claim's part, from a scope's tables and modules."""


class Claim(Struct, frozen=True, kw_only=True):
    """A claim of the paper.

    `checks` are its parts. `unit` names what a case is, and `needs` the rows that it needs. One
    verdict covers all values of `across`, a field of Group. A `public` claim is about datasheets or
    the paper's own table, which only the public scope has.
    """

    name: str
    section: str
    says: str
    unit: str
    needs: str
    checks: tuple[Check, ...]
    modules: tuple[str, ...] = ()
    kind: str = "claim"
    across: str = ""
    public: bool = False


def setting_case(
    row: Row, text: str, *others: Row, agrees: bool | None, gap: float = 0.0, varied: str = ""
) -> Case:
    """Return a case about a setting.

    Parameters
    ----------
    row
        The setting's boundary, which names the group.
    text
        The comparison, with numbers.
    others
        The other rows that are compared.
    varied
        A column that the text names itself.
    """
    setting = describe_setting(row, varied)
    ids = (row["row_id"], *(other["row_id"] for other in others))
    group = Group(*(row[name] for name in Group._fields))
    return Case(group, agrees, f"{setting}: {text}" if setting else text, ids, gap)


def describe_setting(row: Row, varied: str = "") -> str:
    """Return a setting's varying fields, except for one and the routing, as the paper does."""
    names = (*(_SIZES if row["model"] is None else ()), *AXES)
    fields = label(row, [name for name in names if name not in (varied, "routing")])
    return f"{row['model'] or ''} {fields}".strip()


def n_max(row: Row) -> str:
    """Return the text of a boundary, with its interval where that holds more than one N."""
    noise = " (marked as noise in the paper)" if row["noisy"] else ""
    if row["n_low"] is None or row["n_low"] == row["n_high"]:
        return f"N_max {row['n_max']}{noise}"
    return f"N_max {row['n_max']} ({row['n_low']} to {row['n_high']}){noise}"


def share(value: float) -> str:
    """Return a share of a peak in percent, to three digits."""
    return f"{100 * value:.3g}%"


def plain(value: float) -> str:
    """Return a number as text: whole numbers and those from 1000 on in full, else three digits."""
    return f"{value:.0f}" if value == round(value) or value >= 1000 else f"{value:.3g}"


def reach(row: Row, factor: float = 1) -> tuple[float, float]:
    """Return the range of N that holds the boundary, from N_max to the next N, times a factor.

    It is open below at the baseline, and above at the grid's end.
    """
    low = 0.0 if at_floor(row) else row["n_max"] * factor
    return low, inf if row["next_n"] is None else row["next_n"] * factor


def at_floor(row: Row) -> bool:
    """Return whether nothing above the baseline is near-free."""
    return bool(row["n_max"] == row["baseline"])


def same(a: Row, b: Row, factors: tuple[float, float] = (1, 1)) -> bool | None:
    """Return whether two boundaries, each times its factor, differ by less than a grid step."""
    first_reach, second_reach = reach(a, factors[0]), reach(b, factors[1])
    if first_reach[0] < second_reach[1] and second_reach[0] < first_reach[1]:
        open_ended = inf in (first_reach[1], second_reach[1]) or (at_floor(a) and at_floor(b))
        return None if open_ended or _undecided(a, b) else True
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
        return None if _undecided(a, b) else True
    return None if first[1] >= second[0] else False


def within_step(row: Row, value: float) -> bool | None:
    """Return whether a predicted N lies between N_max and the next N of the grid."""
    if row["next_n"] is None and value >= row["n_max"]:
        return None
    if row["n_max"] <= value < (row["next_n"] or 0):
        return None if _undecided(row) else True
    low, high = _interval(row)
    return None if row["n_low"] is not None and low <= value <= high else False


def doublings(a: float, b: float) -> float:
    """Return the number of doublings between two numbers."""
    return inf if inf in (a, b) or min(a, b) <= 0 else abs(log2(a / b))


def _undecided(*rows: Row) -> bool:
    return any(row["verdict"] == "undecided" for row in rows)


def _interval(row: Row, factor: float = 1) -> tuple[float, float]:
    if row["n_low"] is None:
        end = inf if row["next_n"] is None else row["n_max"] * factor
        return row["n_max"] * factor, end
    low = 0.0 if row["n_low"] == row["baseline"] else row["n_low"] * factor
    return low, inf if row["verdict"] == "censored" else row["n_high"] * factor
