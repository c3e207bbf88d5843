"""MoE FFN: idle compute of routed experts, and the slack of padded expert blocks.

Under balanced routing all E experts are active, under skewed routing the same k; how many are
under other routings is not a number of the setting, so the callers refuse those.
"""

import polars as pl

ETA = 2
"""Activation accesses a routed pair in the combine stage (paper, app. B.1)."""
MATRICES, GATED_MATRICES = 2, 3
"""Projections of an expert: the paper's up and down; gate, up and down where it is gated."""
SLACK, SKEWED_SLACK, VALIDITY = "M_moe E / (b k)", "M_moe / b", "tau / b"


def idle_compute(
    *,
    balance: pl.Expr,
    element_bytes: pl.Expr,
    batch: pl.Expr,
    active_experts: pl.Expr,
    top_k: pl.Expr,
    d_ff: pl.Expr,
    matrices: pl.Expr | int = MATRICES,
) -> pl.Expr:
    """Return N_idle, +inf where the layer stays memory-bound for any N (paper, sec. 3.3, app. B.1).

    N_idle = 2 rho s E_act d_ff / (b (4 k d_ff - rho s (1 + 3 k + eta k))) for the two matrices of
    the paper's experts; for `matrices` m, the 4 and 2 become 2 m and m.

    Parameters
    ----------
    balance
        rho, FLOP per byte.
    element_bytes
        s, bytes of an element.
    batch, active_experts, top_k
        b, E_act and k.
    d_ff
        Width of an expert, elements.
    matrices
        Projections of an expert.
    """
    moved = balance * element_bytes
    room = 2 * matrices * top_k * d_ff - moved * (1 + 3 * top_k + ETA * top_k)
    n_idle = matrices * moved * active_experts * d_ff / (batch * room)
    return pl.when(room > 0).then(n_idle).otherwise(float("inf"))


def active_experts(routing: pl.Expr, experts: pl.Expr, top_k: pl.Expr) -> pl.Expr:
    """Return E_act: E if balanced, k if skewed, null for another routing (paper, app. C.3)."""
    return pl.when(routing == "balanced").then(experts).when(routing == "skewed").then(top_k)


def slack_terms(
    *,
    routing: pl.Expr,
    m_moe: pl.Expr,
    tau: pl.Expr,
    experts: pl.Expr,
    top_k: pl.Expr,
    batch: pl.Expr,
) -> dict[str, pl.Expr]:
    """Return the terms of the law of an MoE layer, null where one does not apply (paper, sec. 4.2).

    Balanced: M_moe E / (b k) positions fill the blocks of all experts, and tau / b keep the
    configuration. Skewed: M_moe / b fill those of k experts; the paper has no tau there, so give
    null for it to state the paper's law. With b = 1 the balanced terms are the paper's too.

    Parameters
    ----------
    routing
        balanced or skewed; all terms are null for another one.
    m_moe
        Rows of an expert block, tokens.
    tau
        The last number of tokens (b N) for which the configuration holds; null for no limit.
    experts, top_k, batch
        E, k and b.
    """
    known = routing.is_in(["balanced", "skewed"])
    return {
        SLACK: pl.when(routing == "balanced").then(m_moe * experts / (batch * top_k)),
        SKEWED_SLACK: pl.when(routing == "skewed").then(m_moe / batch),
        VALIDITY: pl.when(known).then(tau / batch),
    }
