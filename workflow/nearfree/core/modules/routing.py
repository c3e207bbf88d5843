"""The routing of tokens to experts: balanced, skewed, or by a power law (paper, app. C.3).

The power law is that of AIConfigurator's collector (ai-dynamo/aiconfigurator, commit 095f58a51,
collector/helper.py, lines 1070-1085 and 1343-1423, with all experts on one rank). Each expert draws
a load x with density x^-a. The loads are scaled to b N k pairs and rounded; no expert gets more
than the b N tokens, and the excess goes to the experts with the fewest pairs. `derive.laws.spread`
has the means.
"""

import re
from collections.abc import Sequence

from nearfree.core.routing_names import POWER_LAW
from nearfree.core.setting import Setting
from nearfree.errors import ConfigError

LAW_ROUTINGS = ("balanced", "skewed")
"""The routings for which the paper states laws."""
FEW, MANY = (0.01, 2.0), (1.0, 0.8)
"""The bounds of the drawn loads: for up to E pairs, and for more; there the upper one times b N."""
MEASURED = "loads:"
"""The prefix of a routing by measured loads; the digest of their shares follows."""
_POWER_LAW_PREFIX = "power_law:"


def named_routing(text: str) -> str:
    """Return the normal form of a routing that a user named: balanced, skewed or a power law.

    Raises
    ------
    ConfigError
        The text is neither balanced nor skewed, nor a power law with an exponent of at least 0 and
        below 100 with at most four decimals.
    """
    if text in LAW_ROUTINGS:
        return text
    if not re.fullmatch(rf"{_POWER_LAW_PREFIX}\d{{1,2}}(?:\.\d{{1,4}})?", text, re.ASCII):
        raise ConfigError(
            f"{text!r:.60} is no routing",
            remedy="Choose from balanced, skewed, and power_law:EXPONENT, such as power_law:1.2, "
            "with an exponent from 0 to below 100 of four decimals at most",
        )
    return f"{_POWER_LAW_PREFIX}{float(text.removeprefix(_POWER_LAW_PREFIX)):.4f}".rstrip(
        "0"
    ).rstrip(".")


def exponent_of(routing: str | None) -> float | None:
    """Return the exponent of a power-law routing; None for another routing."""
    is_power_law = routing is not None and re.fullmatch(POWER_LAW, routing, re.ASCII)
    return float(str(routing).removeprefix(_POWER_LAW_PREFIX)) if is_power_law else None


def routing_baseline(
    routing: str | None, experts: int | None, top_k: int | None, batch: int
) -> int:
    """Return the baseline N that ratios refer to: ceil(E / (b k)) if routing is balanced, else 1.

    From this N on every expert has a token, so a further token adds no weights to read (paper,
    app. C.3). For a module without experts the baseline is 1.
    """
    if routing != "balanced" or experts is None or top_k is None:
        return 1
    return -(-experts // (batch * top_k))


def active_experts(routing: str | None, experts: int, top_k: int) -> int:
    """Return E_act, the number of experts with tokens: E if balanced, k if skewed."""
    return experts if routing == "balanced" else top_k


def routed_pairs(setting: Setting, n: int) -> list[int]:
    """Return the number of token-expert pairs of each expert under the setting's routing.

    Balanced: token i goes to experts (i k + j) mod E, j = 0..k-1. Skewed: every token goes to the
    first k (paper, app. C.3). Power law: loads at the even quantiles (e + 1/2) / E.
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
    """Return the number of pairs of each expert, given the quantiles of the experts' loads.

    Parameters
    ----------
    quantiles
        One per expert, between 0 and 1, increasing.
    """
    pairs = tokens * top_k
    low, high = bounds(len(quantiles), top_k, tokens)
    loads = [_load_at(quantile, low, high, exponent) for quantile in quantiles]
    scale = pairs / sum(loads)
    rounded = [round(load * scale) for load in loads]
    counts = [min(count, tokens) for count in rounded]
    counts = _add_pairs(counts, sum(rounded) - sum(counts))
    missing = pairs - sum(counts)
    return _add_pairs(counts, missing) if missing > 0 else _remove_pairs(counts, -missing)


def bounds(experts: int, top_k: int, tokens: int) -> tuple[float, float]:
    """Return the smallest and largest load that can be drawn, before scaling."""
    return (MANY[0], MANY[1] * tokens) if tokens * top_k > experts else FEW


def _load_at(quantile: float, low: float, high: float, exponent: float) -> float:
    """Return the load at a quantile of the density x^-exponent on [low, high]."""
    power = 1.0 - exponent
    if power == 0.0:
        return float(low * (high / low) ** quantile)
    first, last = low**power, high**power
    return float(((last - first) * quantile + first) ** (1.0 / power))


def _add_pairs(counts: list[int], added: int) -> list[int]:
    """Return increasing counts with more pairs, each added to the expert with the fewest pairs.

    Like filling with water: the first `raised` counts reach one level, some of them one more.
    """
    total = 0
    for raised, count in enumerate(counts):
        if count * raised - total >= added:
            break
        total += count
    else:
        raised = len(counts)
    level, rest = divmod(total + added, raised or 1)
    return [level + (index >= raised - rest) for index in range(raised)] + counts[raised:]


def _remove_pairs(counts: list[int], removed: int) -> list[int]:
    """Return increasing counts with fewer pairs, each removed from the expert with the most."""
    mirrored = _add_pairs([-count for count in reversed(counts)], removed)
    return [-count for count in reversed(mirrored)]
