"""Claims on the laws: where N_idle or a granularity, expert blocks or a query tile, predicts N_max.

The granularity is the paper's, else that of a release's rules, else the block that the adapter
counts at the baseline; then tau is the last N of the grid that is counted with the same block.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.claims.cases import (
    Case,
    describe_setting,
    doublings,
    group_of,
    n_max,
    plain,
    within_step,
)
from nearfree.derive.claims.scope_tables import Row, ScopeTables


class Granularity(NamedTuple):
    """A law's prediction for one setting, in words, and the rows behind it."""

    n_max: float
    text: str
    ids: tuple[str, ...]


def granularity(tables: ScopeTables, row: Row) -> Granularity | None:
    """Return the boundary that an MoE or attention granularity predicts, None if unknown."""
    prediction = tables.prediction(row, "principle", "principle_resolved")
    if prediction is not None and not prediction["unbounded"]:
        text = f"{prediction['limiting_term'] or 'the law'} {plain(prediction['n_max'])}"
        return Granularity(prediction["n_max"], text, (prediction["row_id"],))
    return _counted(tables, row)


def _counted(tables: ScopeTables, row: Row) -> Granularity | None:
    work = tables.work(row)
    first = work.get(row["baseline"])
    if first is None or first["block_rows"] is None:
        return None
    block, batch = first["block_rows"], row["batch"]
    until = max(n for n, at in work.items() if at["block_rows"] == block)
    if row["routing"] == "balanced":
        whole = block * row["experts"] / (row["top_k"] * batch)
        value, term = min((whole, "M_moe E / (b k)"), (until, "tau / b"))
    else:
        value = block / batch if row["module"] == "moe_ffn" else block
        term = "M_moe / b" if row["module"] == "moe_ffn" else "M_attn"
    return Granularity(value, f"{term} {plain(value)}, by counted blocks", (first["row_id"],))


def follows_granularity(
    module: str, routing: str | None = None
) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that the law of granularity lies between N_max and the grid's next N.

    Parameters
    ----------
    module
        The module kind.
    routing
        A routing (default: any).
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row in tables.bounds(module):
            if routing not in (None, row["routing"]):
                continue
            law = granularity(tables, row)
            if law is None:
                text = f"{describe_setting(row)}: {n_max(row)}, no known granularity"
                yield Case(group_of(row), None, text, (row["row_id"],))
                continue
            text = f"{describe_setting(row)}: {n_max(row)}, {law.text}"
            gap = doublings(law.n_max, row["n_max"])
            ids = (row["row_id"], *law.ids)
            yield Case(group_of(row), within_step(row, law.n_max), text, ids, gap)

    return check


_NEAR = 2.0


def predicts(
    *modules: str, near: bool = False, wrong: bool = False
) -> Callable[[ScopeTables], Iterator[Case]]:
    """Return the check that N_idle lies between N_max and the next N of the grid.

    Parameters
    ----------
    modules
        The module kinds.
    near
        Accept a factor of two beyond either end.
    wrong
        Check that it does not lie there.
    """

    def check(tables: ScopeTables) -> Iterator[Case]:
        for row, value, ids in _idle_predictions(tables, *modules):
            hit = _near(row, value) if near else within_step(row, value)
            agrees = hit if hit is None or not wrong else not hit
            text = f"{describe_setting(row)}: N_idle {_n(value)}, {n_max(row)}"
            yield Case(group_of(row), agrees, text, ids, doublings(value, row["n_max"]))

    return check


def tile_before_idle(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether attention's query tile is smaller than N_idle."""
    for row, value, ids in _idle_predictions(tables, ATTENTION.name):
        tile = granularity(tables, row)
        if tile is not None:
            text = f"{describe_setting(row)}: {tile.text}, N_idle {_n(value)}"
            gap = tile.n_max / value
            yield Case(group_of(row), tile.n_max < value, text, (*ids, *tile.ids), gap)


def _idle_predictions(
    tables: ScopeTables, *modules: str
) -> Iterator[tuple[Row, float, tuple[str, ...]]]:
    for row in tables.bounds(*modules):
        prediction = tables.prediction(row, "idle_compute")
        if prediction is not None:
            value = inf if prediction["unbounded"] else prediction["n_max"]
            yield row, value, (row["row_id"], prediction["row_id"])


def _near(row: Row, value: float) -> bool | None:
    if row["next_n"] is None and value * _NEAR >= row["n_max"]:
        return None
    if row["n_max"] / _NEAR <= value <= (row["next_n"] or 0) * _NEAR:
        return None if row["verdict"] == "undecided" else True
    low, high = row["n_low"], row["n_high"]
    return None if low is not None and low / _NEAR <= value <= high * _NEAR else False


def _n(value: float) -> str:
    return "unbounded" if value == inf else plain(value)
