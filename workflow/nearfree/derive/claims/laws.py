"""Claims on granularity: N_max is what the expert blocks or the query tile let through.

The granularity is the paper's, else that of a release's rules, else the block that the adapter
counts at the baseline; then tau is the last N of the grid that is counted with the same block.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nearfree.derive.claims.cases import Case, group_of, n_max, named, plain
from nearfree.derive.claims.compare import apart, lands
from nearfree.derive.claims.scope_tables import Log, Row


class Granularity(NamedTuple):
    """What a law says of one setting, in words, and the rows behind it."""

    n_max: float
    text: str
    ids: tuple[str, ...]


def granularity(log: Log, row: Row) -> Granularity | None:
    """Return the boundary of an MoE layer or of attention by its granularity, None if unknown."""
    said = log.said(row, "principle", "principle_resolved")
    if said is not None and not said["unbounded"]:
        text = f"{said['limiting_term'] or 'the law'} {plain(said['n_max'])}"
        return Granularity(said["n_max"], text, (said["row_id"],))
    return _counted(log, row)


def _counted(log: Log, row: Row) -> Granularity | None:
    work = log.work(row)
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


def follows_granularity(module: str, routing: str | None = None) -> Callable[[Log], Iterator[Case]]:
    """Return the check that the law of granularity lies between N_max and the grid's next N.

    Parameters
    ----------
    module
        Which.
    routing
        Which routing alone, any if nothing is said.
    """

    def check(log: Log) -> Iterator[Case]:
        for row in log.bounds(module):
            if routing not in (None, row["routing"]):
                continue
            law = granularity(log, row)
            if law is None:
                text = f"{named(row)}: {n_max(row)}, no known granularity"
                yield Case(group_of(row), None, text, (row["row_id"],))
                continue
            text = f"{named(row)}: {n_max(row)}, {law.text}"
            gap = apart(law.n_max, row["n_max"])
            ids = (row["row_id"], *law.ids)
            yield Case(group_of(row), lands(row, law.n_max), text, ids, gap)

    return check
