"""Claims on how boundaries scale: with batch, with experts a token, with context and routing."""

from collections.abc import Callable, Iterator

from nearfree.core.setting import FIELDS
from nearfree.derive.claims.cases import (
    Case,
    at_least,
    describe_setting,
    doublings,
    group_of,
    n_max,
    same,
)
from nearfree.derive.claims.scope_tables import Row, ScopeTables, pairs


def inverse_batch(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether b N_max of a dense FFN is the same at every two batch sizes."""
    yield from _inverse(tables.bounds("dense_ffn"))


def inverse_batch_anywhere(tables: ScopeTables) -> Iterator[Case]:
    """Yield the same at each tolerance that there is."""
    for epsilon in sorted({row["epsilon"] for rows in tables.curves for row in rows}):
        yield from _inverse(
            tables.bounds("dense_ffn", epsilon=epsilon), f", tolerance {epsilon:.0%}"
        )


def _inverse(rows: list[Row], note: str = "") -> Iterator[Case]:
    for a, b in pairs(rows, "batch"):
        agrees = same(a, b, (a["batch"], b["batch"]))
        yield _pair(a, b, "batch", agrees=agrees, factor=a["batch"] / b["batch"], note=note)


def constant(
    module: str, varied: str, *, routing: str | None = None, most: int | None = None
) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_max is the same, to a grid step, wherever one column varies.

    Parameters
    ----------
    module
        Which.
    varied
        That column.
    routing
        Which routing alone; of models: none stands for dense ones.
    most
        The largest value of the column that is looked at.
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        rows = [row for row in tables.bounds(module) if row["routing"] == routing]
        known = [row for row in rows if most is None or (row[varied] or 0) <= most]
        for a, b in pairs(known, varied):
            yield _pair(a, b, varied, agrees=same(a, b))

    return check


def never_rises(
    module: str, varied: str, *, routing: str | None = None
) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_max is no larger where one column is.

    Parameters
    ----------
    module
        Which.
    varied
        That column.
    routing
        Which routing alone; of models: none stands for dense ones.
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        rows = [row for row in tables.bounds(module) if row["routing"] == routing]
        for a, b in pairs(rows, varied):
            yield _pair(a, b, varied, agrees=at_least(a, b))

    return check


def _pair(
    a: Row, b: Row, varied: str, *, agrees: bool | None, factor: float = 1, note: str = ""
) -> Case:
    letter, where = FIELDS[varied].symbol, describe_setting(a, varied)
    text = (
        f"{where + ': ' if where else ''}{n_max(a)} at {letter} = {a[varied]}, "
        f"{n_max(b)} at {letter} = {b[varied]}{note}"
    )
    gap = doublings(a["n_max"] * factor, b["n_max"])
    return Case(group_of(a), agrees, text, (a["row_id"], b["row_id"]), gap)


def balanced_above_skewed(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether N_max of balanced routing is no smaller than that of skewed routing."""
    for a, b in pairs(_routed(tables, "moe_ffn", ("balanced", "skewed")), "routing"):
        text = f"{describe_setting(a)}: {n_max(a)} balanced, {n_max(b)} skewed"
        gap = doublings(a["n_max"], b["n_max"])
        ids = (a["row_id"], b["row_id"])
        yield Case(group_of(a, routing=False), at_least(a, b), text, ids, gap)


def backends_agree(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether vLLM's and SGLang's MoE layers have the same boundary at the same setting."""
    rows = [r for r in tables.bounds("moe_ffn") if r["backend"].startswith(("vllm", "sglang"))]
    for a, b in pairs(rows, "backend"):
        text = (
            f"{describe_setting(a)}: {n_max(a)} with {a['backend']}, {n_max(b)} with {b['backend']}"
        )
        group = group_of(a)._replace(backend=None)
        ids = (a["row_id"], b["row_id"])
        yield Case(group, same(a, b), text, ids, doublings(a["n_max"], b["n_max"]))


def real_between(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether other routings lie below balanced and above skewed ones."""
    for module in ("moe_ffn", "model"):
        rows = _routed(tables, module, ("balanced", "skewed", "power_law", "router"))
        for a, b in pairs(rows, "routing"):
            bound, real = (a, b) if a["routing"] in ("balanced", "skewed") else (b, a)
            kinds = (bound["routing"], real["routing"])
            if kinds[0] not in ("balanced", "skewed") or kinds[1] in ("balanced", "skewed"):
                continue
            agrees = at_least(bound, real) if kinds[0] == "balanced" else at_least(real, bound)
            text = (
                f"{describe_setting(real)}: {n_max(real)} by {kinds[1]}, {n_max(bound)} {kinds[0]}"
            )
            gap = doublings(real["n_max"], bound["n_max"])
            ids = (bound["row_id"], real["row_id"])
            yield Case(group_of(real), agrees, text, ids, gap)


def _routed(tables: ScopeTables, module: str, routings: tuple[str, ...]) -> list[Row]:
    return [row for row in tables.bounds(module) if row["routing"] in routings]
