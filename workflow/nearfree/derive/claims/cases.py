"""Claims and their cases: a case agrees, disagrees, or is undecided."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from nearfree.core.label import AXES, label
from nearfree.core.modules.registry import MAIN
from nearfree.derive.claims.scope_tables import Row, ScopeTables

PAPER_MODULES = tuple(kind.name for kind in MAIN)
"""The module kinds that the paper studies."""
GRANULAR = tuple(kind.name for kind in MAIN if kind.granular)
"""Those of them whose kernels compute blocks or tiles of rows."""


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


Check = Callable[[ScopeTables], Iterable[Case]]


class Claim(Struct, frozen=True, kw_only=True):
    """A claim of the paper.

    `checks` are its parts. `unit` names a case, and `needs` the rows that it needs. With `across`
    its verdict covers all routings; with `public` it is about datasheets or the paper's own table,
    which only the public scope has.
    """

    name: str
    section: str
    says: str
    unit: str
    needs: str
    checks: tuple[Check, ...]
    modules: tuple[str, ...] = ()
    kind: str = "claim"
    across: bool = False
    public: bool = False


def group_of(row: Row, *, routing: bool = True) -> Group:
    """Return the group of a row.

    Parameters
    ----------
    routing
        Group by routing, too.
    """
    kept = row["routing"] if routing else None
    return Group(row["platform"], row["module"], row["backend"], kept, row["origin"])


_SIZES = ("d_ff", "heads", "kv_heads")
"""The part of a module's shape that tells the paper's settings apart."""


def describe_setting(row: Row, *without: str) -> str:
    """Return a setting's varying fields as the paper writes them.

    Parameters
    ----------
    without
        Columns to leave out.
    """
    names = (*(_SIZES if row["model"] is None else ()), *AXES)
    told = label(row, [name for name in names if name not in (*without, "routing")])
    return f"{row['model'] or ''} {told}".strip()


def n_max(row: Row) -> str:
    """Return a boundary with its interval, where that is wider."""
    noise = " (marked as noise in the paper)" if row["noisy"] else ""
    if row["n_low"] is None or row["n_low"] == row["n_high"]:
        return f"N_max {row['n_max']}{noise}"
    return f"N_max {row['n_max']} ({row['n_low']} to {row['n_high']}){noise}"


def share(value: float) -> str:
    """Return a share of a peak in per cent, to three digits."""
    return f"{100 * value:.3g}%"


def plain(value: float) -> str:
    """Return a number to three digits, whole where it is one."""
    return f"{value:.0f}" if value == round(value) or value >= 1000 else f"{value:.3g}"
