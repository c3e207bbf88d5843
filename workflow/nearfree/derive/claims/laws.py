"""Claims on the laws: whether N_idle or a granularity (expert blocks, query tile) predicts N_max.

The granularity is the paper's, else that of a release's rules, else the block that the adapter
counts at the baseline; in that case tau is the last N of the grid with the same counted block.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from nearfree.core.modules.routing import LAW_ROUTINGS
from nearfree.derive.claims.cases import Case, doublings, n_max, plain, setting_case, within_step
from nearfree.derive.claims.scope_tables import Row, ScopeTables

_FACTOR = 2.0


class Granularity(NamedTuple):
    """A law's prediction for one setting, in words, and the row behind it."""

    n_max: float
    text: str
    row: Row


def granularity(tables: ScopeTables, row: Row) -> Granularity | None:
    """Return the boundary that an MoE or attention granularity predicts, None if unknown."""
    prediction = tables.prediction(row, "principle", "principle_resolved")
    if prediction is not None and not prediction["unbounded"]:
        text = f"{prediction['limiting_term'] or 'the law'} {plain(prediction['n_max'])}"
        return Granularity(prediction["n_max"], text, prediction)
    return _counted(tables, row)


def _counted(tables: ScopeTables, row: Row) -> Granularity | None:
    work = tables.work(row)
    baseline_work = work.get(row["baseline"])
    if (
        baseline_work is None
        or baseline_work["block_rows"] is None
        or row["routing"] not in (None, *LAW_ROUTINGS)
    ):
        return None  # the paper has no law for other routings
    block, batch = baseline_work["block_rows"], row["batch"]
    last_n = max(n for n, point in work.items() if point["block_rows"] == block)
    if row["routing"] == "balanced":
        balanced = block * row["experts"] / (row["top_k"] * batch)
        value, term = min((balanced, "M_moe E / (b k)"), (last_n, "tau / b"))
    else:
        value = block / batch if row["module"] == "moe_ffn" else block
        term = "M_moe / b" if row["module"] == "moe_ffn" else "M_attn"
    return Granularity(value, f"{term} {plain(value)}, by counted blocks", baseline_work)


def follows_granularity(
    tables: ScopeTables, module: str, *, routing: str | None = None
) -> Iterator[Case]:
    """Yield whether the law of granularity lies between N_max and the grid's next N.

    `routing` is the only one to check; None for any.
    """
    for row in tables.bounds(module):
        if routing not in (None, row["routing"]):
            continue
        law = granularity(tables, row)
        if law is None:
            yield setting_case(row, f"{n_max(row)}, no known granularity", agrees=None)
            continue
        agrees, gap = within_step(row, law.n_max), doublings(law.n_max, row["n_max"])
        yield setting_case(row, f"{n_max(row)}, {law.text}", law.row, agrees=agrees, gap=gap)


def predicts(
    tables: ScopeTables, *modules: str, near: bool = False, wrong: bool = False
) -> Iterator[Case]:
    """Yield whether N_idle lies between N_max and the next N of the grid.

    `near` accepts a factor of two beyond either end; `wrong` checks that N_idle does not lie there.
    """
    for row, value, idle in _idle_predictions(tables, *modules):
        hit = _within_factor_two(row, value) if near else within_step(row, value)
        agrees = hit if hit is None or not wrong else not hit
        text, gap = f"N_idle {_n_text(value)}, {n_max(row)}", doublings(value, row["n_max"])
        yield setting_case(row, text, idle, agrees=agrees, gap=gap)


def tile_before_idle(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether attention's query tile is smaller than N_idle."""
    for row, value, idle in _idle_predictions(tables, module):
        tile = granularity(tables, row)
        if tile is not None:
            text, agrees = f"{tile.text}, N_idle {_n_text(value)}", tile.n_max < value
            yield setting_case(row, text, idle, tile.row, agrees=agrees, gap=tile.n_max / value)


def _idle_predictions(tables: ScopeTables, *modules: str) -> Iterator[tuple[Row, float, Row]]:
    for row in tables.bounds(*modules):
        prediction = tables.prediction(row, "idle_compute")
        if prediction is not None:
            yield row, inf if prediction["unbounded"] else prediction["n_max"], prediction


def _within_factor_two(row: Row, value: float) -> bool | None:
    if row["next_n"] is None and value * _FACTOR >= row["n_max"]:
        return None
    if row["n_max"] / _FACTOR <= value <= (row["next_n"] or 0) * _FACTOR:
        return None if row["verdict"] == "undecided" else True
    low, high = row["n_low"], row["n_high"]
    return None if low is not None and low / _FACTOR <= value <= high * _FACTOR else False


def _n_text(value: float) -> str:
    return "unbounded" if value == inf else plain(value)
