"""Expected passes over the weights of routed experts, for the b N tokens of a forward.

Every token takes k different ones of E experts, each set of k with the same probability. So the
rows of one expert are binomial, with b N trials and the probability k / E. Experts that a model
prefers, or tokens of one text that take the same ones, leave fewer experts with more rows.
"""

from math import exp, lgamma, log

from msgspec import structs

from nearfree.sources.answers.ggml import Passes
from nearfree.sources.answers.ggml_experts import ExpertProduct

LEAST_SHARE = 0.01
"""Least share of all rows that passes of a kind serve; rarer ones are left out."""
_LEAST_PROBABILITY = 1e-12


class RoutedProduct:
    """The products of a layer's experts, by the passes over one expert's matrix.

    Parameters
    ----------
    product
        The rules of one expert's matrix.
    experts, top_k
        The number of experts, and of those that a token takes.
    """

    def __init__(self, product: ExpertProduct, experts: int, top_k: int) -> None:
        self._product, self._experts, self._top_k = product, experts, top_k
        self._passes: dict[int, tuple[Passes, ...]] = {}

    def passes(self, tokens: int) -> tuple[Passes, ...]:
        """Return the expected passes over matrices of one expert each; they serve tokens x k rows.

        Numbers of passes are not whole. Kinds that serve less than LEAST_SHARE of the rows are left
        out, and the others serve theirs.
        """
        if tokens not in self._passes:
            self._passes[tokens] = self._expected(tokens)
        return self._passes[tokens]

    def _expected(self, tokens: int) -> tuple[Passes, ...]:
        sums: dict[tuple[str, str, int], Passes] = {}
        for rows, probability in enumerate(binomial(tokens, self._top_k / self._experts)):
            if rows == 0 or probability < _LEAST_PROBABILITY:
                continue
            for passes in self._product.passes(rows):
                key = passes.path, passes.kernel, passes.holds
                before = sums.get(key)
                expected = _scaled(passes, self._experts * probability)
                sums[key] = expected if before is None else _sum(before, expected)
        routed_rows = tokens * self._top_k
        kept = [item for item in sums.values() if item.serves >= LEAST_SHARE * routed_rows]
        served = sum(item.serves for item in kept)
        return tuple(_scaled(item, routed_rows / served) for item in kept)


def binomial(trials: int, probability: float) -> list[float]:
    """Return the probability of 0, 1, ... trials successes."""
    if probability >= 1.0:
        return [0.0] * trials + [1.0]
    success, failure = log(probability), log(1.0 - probability)
    whole = lgamma(trials + 1)
    return [
        exp(
            whole - lgamma(count + 1) - lgamma(trials - count + 1)
            + count * success + (trials - count) * failure
        )
        for count in range(trials + 1)
    ]  # fmt: skip


def _scaled(passes: Passes, factor: float) -> Passes:
    return structs.replace(
        passes,
        serves=passes.serves * factor,
        times=passes.times * factor,
        windows=passes.unpacked * factor,
    )


def _sum(one: Passes, other: Passes) -> Passes:
    return structs.replace(
        one,
        serves=one.serves + other.serves,
        times=one.times + other.times,
        windows=one.unpacked + other.unpacked,
    )
