"""MoE FFN: routed experts (paper, sec. 3.3 and 4.2, app. B.1 and C.3)."""


def first_full(routing: str | None, experts: int | None, top_k: int | None, batch: int) -> int:
    """Return the baseline N that ratios refer to: ceil(E / (b k)) if routing is balanced, else 1.

    From there on every expert has a token, so a further one adds no weights to read (paper,
    app. C.3). A module without experts begins at 1.
    """
    if routing != "balanced" or experts is None or top_k is None:
        return 1
    return -(-experts // (batch * top_k))
