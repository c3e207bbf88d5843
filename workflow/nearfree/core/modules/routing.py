"""How tokens fall on experts: evenly, on k alone, or by a power law (paper, app. C.3).

The power law is that of AIConfigurator's collector (ai-dynamo/aiconfigurator, commit 095f58a51,
collector/helper.py, lines 1070-1085 and 1343-1423, with all experts on one rank): each expert draws
a load x of density x^-a, the loads are scaled to b N k pairs and rounded, none gets more than the
b N tokens, and what is too much goes to those with the fewest pairs. What it gives in the mean is
in `derive.laws.spread`.
"""

import re
from collections.abc import Sequence

from nearfree.core.routing_names import POWER_LAW
from nearfree.core.setting import Setting
from nearfree.errors import ConfigError

SPREADS = ("balanced", "skewed")
"""The routings of which the paper states laws."""
FEW, MANY = (0.01, 2.0), (1.0, 0.8)
"""Between which loads are drawn: up to E pairs, and beyond, there the upper end times b N."""
MEASURED = "loads:"
"""What stands before the digest of measured shares in a routing."""
_NAMED = "power_law:"


def named_routing(text: str) -> str:
    """Return a routing that needs no more than its name, as somebody wrote it.

    Raises
    ------
    ConfigError
        It is neither one of the two bounds nor a power law with an exponent from 0 to below 100,
        of four decimals at most.
    """
    if text in SPREADS:
        return text
    if not re.fullmatch(rf"{_NAMED}\d{{1,2}}(?:\.\d{{1,4}})?", text, re.ASCII):
        raise ConfigError(
            f"{text!r:.60} is no routing",
            remedy="Choose from balanced, skewed, and power_law:EXPONENT, such as power_law:1.2, "
            "with an exponent from 0 to below 100 of four decimals at most",
        )
    return f"{_NAMED}{float(text.removeprefix(_NAMED)):.4f}".rstrip("0").rstrip(".")


def exponent_of(routing: str | None) -> float | None:
    """Return the exponent of a power law, None where the routing is none."""
    named = routing is not None and re.fullmatch(POWER_LAW, routing, re.ASCII)
    return float(str(routing).removeprefix(_NAMED)) if named else None


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
    first k (paper, app. C.3). A power law: the draw whose quantiles lie evenly, (e + 1/2) / E.
    """
    experts, top_k = setting.experts or 0, setting.top_k or 0
    tokens = setting.batch * n
    exponent = exponent_of(setting.routing)
    if exponent is not None:
        even = [(expert + 0.5) / experts for expert in range(experts)]
        return power_law_pairs(even, top_k, tokens, exponent)
    if setting.routing == "skewed":
        return [tokens if expert < top_k else 0 for expert in range(experts)]
    whole, rest = divmod(tokens * top_k, experts)
    return [whole + (expert < rest) for expert in range(experts)]


def power_law_pairs(
    quantiles: Sequence[float], top_k: int, tokens: int, exponent: float
) -> list[int]:
    """Return the pairs of each expert where its load is drawn at a quantile of the power law.

    Parameters
    ----------
    quantiles
        Between 0 and 1, one an expert, rising.
    top_k
        Experts a token, E at most.
    tokens
        b N.
    """
    pairs = tokens * top_k
    low, high = bounds(len(quantiles), top_k, tokens)
    loads = [_drawn(each, low, high, exponent) for each in quantiles]
    scale = pairs / sum(loads)
    rounded = [round(load * scale) for load in loads]
    counts = [min(each, tokens) for each in rounded]
    counts = _raised(counts, sum(rounded) - sum(counts))
    missing = pairs - sum(counts)
    return _raised(counts, missing) if missing > 0 else _lowered(counts, -missing)


def bounds(experts: int, top_k: int, tokens: int) -> tuple[float, float]:
    """Return the smallest and largest load that is drawn, before all are scaled."""
    return (MANY[0], MANY[1] * tokens) if tokens * top_k > experts else FEW


def _drawn(quantile: float, low: float, high: float, exponent: float) -> float:
    """Return the load at a quantile of the density x^-exponent between two ends."""
    power = 1.0 - exponent
    if power == 0.0:
        return float(low * (high / low) ** quantile)
    first, last = low**power, high**power
    return float(((last - first) * quantile + first) ** (1.0 / power))


def _raised(counts: list[int], more: int) -> list[int]:
    """Return rising counts with some more pairs, each given to whoever has the fewest.

    As water fills: the first so many come to one level, the last of them one pair above it.
    """
    total = 0
    for below, count in enumerate(counts):
        if count * below - total >= more:
            break
        total += count
    else:
        below = len(counts)
    level, rest = divmod(total + more, below or 1)
    return [level + (place >= below - rest) for place in range(below)] + counts[below:]


def _lowered(counts: list[int], fewer: int) -> list[int]:
    """Return rising counts with some fewer pairs, each taken from whoever has the most."""
    mirrored = _raised([-count for count in reversed(counts)], fewer)
    return [-count for count in reversed(mirrored)]
