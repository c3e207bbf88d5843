"""A claim and the cases that it is checked on: each agrees, disagrees, or cannot be told."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from nearfree.derive.claims.scope_tables import Log, Row

MODULES = ("dense_ffn", "moe_ffn", "attention")
"""Those that the paper studies."""


class Group(NamedTuple):
    """What one verdict is of."""

    platform: str | None
    module: str | None
    backend: str | None
    routing: str | None
    origin: str


class Case(Struct, frozen=True):
    """One case: whether it agrees, None where it cannot be told, its numbers and its rows.

    `gap` says how far it is from agreeing; only its order matters.
    """

    group: Group
    agrees: bool | None
    tells: str
    ids: tuple[str, ...]
    gap: float = 0.0


Check = Callable[[Log], Iterable[Case]]


class Claim(Struct, frozen=True, kw_only=True):
    """A claim of the paper.

    Each of `checks` is a part of it. `unit` is what a case is, and `needs` what has to be in the
    log. `across` says that its verdict is over all routings, and `public` that it speaks of
    datasheets or of the paper's own table, which the public scope alone has.
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
    """Return what a row's verdict is of.

    Parameters
    ----------
    routing
        Whether routings are told apart.
    """
    kept = row["routing"] if routing else None
    return Group(row["platform"], row["module"], row["backend"], kept, row["origin"])


def named(row: Row, *without: str) -> str:
    """Return what tells a setting from others of its kind, as the paper writes it.

    Parameters
    ----------
    without
        Columns that are said elsewhere.
    """
    letters = {"batch": "b", "context": "L", "top_k": "k"}
    if row["model"] is None:
        letters = {"d_ff": "d_ff", "heads": "heads", "kv_heads": "KV heads"} | letters
    told = {name: row[name] for name in letters if name not in without}
    parts = [f"{letters[name]} = {value}" for name, value in told.items() if value is not None]
    return " ".join([*([row["model"]] if row["model"] else []), ", ".join(parts)]).strip()


def n_max(row: Row) -> str:
    """Return a boundary with its interval, where it has one that is wider."""
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
