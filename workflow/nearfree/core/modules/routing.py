"""How tokens fall on experts: balanced and skewed routing (paper, app. C.3)."""

from nearfree.core.setting import Setting

SPREADS = ("balanced", "skewed")
"""The routings of which the paper states laws; others have no law and no counted work."""


def first_full(routing: str | None, experts: int | None, top_k: int | None, batch: int) -> int:
    """Return the baseline N that ratios refer to: ceil(E / (b k)) if routing is balanced, else 1.

    From there on every expert has a token, so a further one adds no weights to read (paper,
    app. C.3). A module without experts begins at 1.
    """
    if routing != "balanced" or experts is None or top_k is None:
        return 1
    return -(-experts // (batch * top_k))


def active_experts(routing: str | None, experts: int, top_k: int) -> int:
    """Return E_act, the experts that any token reaches: E if balanced, k if skewed."""
    return experts if routing == "balanced" else top_k


def routed_pairs(setting: Setting, n: int) -> list[int]:
    """Return how many token-expert pairs each expert gets under the setting's routing.

    Balanced: token i goes to experts (i k + j) mod E, j = 0..k-1; skewed: every token to the
    first k (paper, app. C.3).
    """
    experts, top_k = setting.experts or 0, setting.top_k or 0
    tokens = setting.batch * n
    if setting.routing == "skewed":
        return [tokens if expert < top_k else 0 for expert in range(experts)]
    whole, rest = divmod(tokens * top_k, experts)
    return [whole + (expert < rest) for expert in range(experts)]
