"""Attention over a KV cache: idle compute, and the slack of a query tile.

Batch cancels: b requests read b caches. With g = heads / kv_heads query heads to a key-value head
the width of the cache cancels too, and the query heads' FLOPs do not.
"""

import polars as pl

M_ATTN = "M_attn"


def idle_compute(
    balance: pl.Expr, element_bytes: pl.Expr, context: pl.Expr, group: pl.Expr | int = 1
) -> pl.Expr:
    """Return N_idle = rho s L / (2 g L - rho s), +inf if 2 g L <= rho s.

    With g = 1 it is the paper's (sec. 3.4, app. B.2). Causal masking is not counted, as there.

    Parameters
    ----------
    balance
        rho, FLOP per byte.
    element_bytes
        s, bytes of an element.
    context
        L, cached positions a request, at least 1.
    group
        g, query heads that share a key-value head.
    """
    moved = balance * element_bytes
    room = 2 * group * context - moved
    return pl.when(room > 0).then(moved * context / room).otherwise(float("inf"))
