"""Claims on the tolerance: how far a boundary moves from the tightest one to the widest."""

from collections.abc import Callable, Iterator
from itertools import groupby, pairwise

from nearfree.derive.claims.cases import Case, describe_setting, doublings, group_of
from nearfree.derive.claims.scope_tables import Row, ScopeTables

_LEAST, _LOOSER, _MOST = 0.0499, 0.0999, 0.3001
_FINE = 2


def same_n(
    module: str, *, context: int = 0, routing: str | None = None, least: float = _LEAST
) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_max is the same at every tolerance up to 30 %.

    Parameters
    ----------
    module
        Which.
    context
        The smallest L that is looked at, where a setting has one.
    routing
        Which routing alone.
    least
        The tightest tolerance.
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        for rows in _swept(tables, module, least=least):
            if (rows[0]["context"] or context) >= context and rows[0]["routing"] == routing:
                moved = rows[0]["n_max"] != rows[-1]["n_max"]
                yield _case(rows, agrees=None if moved and _meet(rows) else not moved)

    return check


def same_routed(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether N_max of an MoE FFN stays: balanced from 5 %, skewed from 10 % to 30 %."""
    yield from same_n("moe_ffn", routing="balanced")(tables)
    yield from same_n("moe_ffn", routing="skewed", least=_LOOSER)(tables)


def one_step(*modules: str, least: float = _LEAST) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_max moves by a step of the grid, or a factor of two, at most.

    Parameters
    ----------
    modules
        Which.
    least
        The tightest tolerance.
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        for rows in _swept(tables, *modules, least=least):
            first, last = rows[0], rows[-1]["n_max"]
            near = last <= max(first["next_n"] or 0, _FINE * first["n_max"])
            yield _case(rows, agrees=True if near else None if _meet(rows) else False)

    return check


def never_falls(*modules: str) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that a wider tolerance never gives a smaller N_max."""

    def check(tables: ScopeTables) -> Iterator[Case]:
        for rows in _swept(tables, *modules, least=0.0, most=1.0):
            yield _case(rows, agrees=all(a["n_max"] <= b["n_max"] for a, b in pairwise(rows)))

    return check


def _swept(
    tables: ScopeTables, *modules: str, least: float = _LEAST, most: float = _MOST
) -> Iterator[list[Row]]:
    for rows in tables.curves:
        kept = [row for row in rows if least <= row["epsilon"] <= most]
        if len(kept) > 1 and kept[0]["module"] in modules:
            yield kept


def _meet(rows: list[Row]) -> bool:
    """Return whether the intervals at both ends hold one N."""
    first, last = rows[0], rows[-1]
    return bool(first["n_high"] is not None and first["n_high"] >= last["n_low"])


def _case(rows: list[Row], *, agrees: bool | None) -> Case:
    runs = [list(run) for _, run in groupby(rows, key=lambda row: int(row["n_max"]))]
    spans = ", ".join(f"{run[0]['n_max']} at {_span(run)}" for run in runs)
    noise = " (marked as noise in the paper)" if rows[0]["noisy"] else ""
    ids = tuple(row["row_id"] for row in rows)
    gap = doublings(rows[0]["n_max"], rows[-1]["n_max"])
    return Case(
        group_of(rows[0]), agrees, f"{describe_setting(rows[0])}: N_max {spans}{noise}", ids, gap
    )


def _span(run: list[Row]) -> str:
    first, last = (f"{row['epsilon']:.0%}" for row in (run[0], run[-1]))
    return first if first == last else f"{first} to {last}"
