"""Expected active experts and row blocks of an MoE layer whose routing is uneven.

The expectations are sums over experts e with m_e token-expert pairs: of P(m_e > 0) for the active
experts, and of E[ceil(m_e / M)] for blocks of M rows. Under expert parallelism, where vLLM and
SGLang place whole experts on ranks in their order, they are those of the rank with most pairs, for
which all others wait.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from nearfree.core.modules.moe_ffn import first_experts
from nearfree.core.modules.routing import MEASURED, bounds, exponent_of, routing_baseline
from nearfree.errors import EvidenceError

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]
Layer = tuple[int, int, int]
"""E, k, and the number of ranks of expert parallelism."""
AWAKE_SHARE = 0.9
"""The share of E above which additional experts hardly add to T(N)."""
_DRAWN_LOADS = 2**17
"""Loads that are drawn from a power law in all: E in each forward."""
_PER_OCTAVE = 16
"""Numbers of tokens per octave at which a power law is evaluated; between them it is linear."""
_DISTINCT_SHARES = 256
"""Most distinct measured shares; more are merged into means of neighbours in size."""
_MOST_TOKENS = 2**20
_TINY = 1e-300
"""Stands for 0 under a logarithm."""


class PowerLaw(Struct, frozen=True):
    """Loads as `core.modules.routing.power_law_pairs` draws them, with this exponent.

    The expectation is the mean over forwards whose quantiles form a Latin hypercube: the quantiles
    of each expert are evenly spaced, and experts are independent. The sample is the same every
    time. The experts of a rank are drawn anew for each forward.
    """

    exponent: float

    def awake(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return the expected active experts of b N tokens, on the busiest of `ep` ranks."""
        return _mean(self.exponent, (experts, top_k, ep), tokens, None)

    def blocks(self, experts: int, top_k: int, tokens: int, rows: int, ep: int = 1) -> float:
        """Return the expected blocks of `rows` rows that the pairs fill, on the busiest rank."""
        return _mean(self.exponent, (experts, top_k, ep), tokens, rows)

    def pairs(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return the expected token-expert pairs, on the busiest rank."""
        if ep == 1:
            return float(tokens * top_k)
        return _mean(self.exponent, (experts, top_k, ep), tokens, 0)


class Loads:
    """Measured loads, as shares of all pairs.

    Several layers stand for their mean layer. Tokens are taken as independent: a token chooses an
    expert with probability k times the expert's share, so that an expert's pairs are binomial. Sums
    over experts need no more than that, whichever other experts a token chooses: its k different
    experts are not approximated. Tokens of one text that choose the same experts activate fewer
    experts than this. `shares`, [layers, E], sum to 1 in each layer.
    """

    def __init__(self, shares: Sequence[Sequence[float]]) -> None:
        self._layer_shares = np.array(shares, dtype=np.float64)
        sorted_shares = np.sort(self._layer_shares.ravel())
        share_groups = np.array_split(sorted_shares, min(len(sorted_shares), _DISTINCT_SHARES))
        self._shares = np.array([group.mean() for group in share_groups])
        group_sizes = np.array([len(group) for group in share_groups], dtype=np.float64)
        self._experts = group_sizes / len(shares)
        self._root_log_cache: dict[tuple[int, int], Complex] = {}
        self._busiest_loads: dict[int, Loads] = {1: self}

    def awake(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return the expected active experts of b N tokens, on the busiest of `ep` ranks."""
        if ep > 1:
            return self._busiest(ep).awake(experts, top_k, tokens)
        return float(((1.0 - (1.0 - self._probabilities(top_k)) ** tokens) * self._experts).sum())

    def blocks(self, experts: int, top_k: int, tokens: int, rows: int, ep: int = 1) -> float:
        """Return the expected blocks of `rows` rows that the pairs fill, on the busiest rank.

        M E[ceil(m / M)] = E[m] + E[-m mod M], and the second follows from the characteristic
        function of m at the roots of unity, (1 - p + p w^j)^(b N).
        """
        if ep > 1:
            return self._busiest(ep).blocks(experts, top_k, tokens, rows)
        padding = (np.exp(tokens * self._root_logs(top_k, rows)) * _padding(rows)).real.sum(axis=1)
        return float((self._experts * (tokens * self._probabilities(top_k) + padding)).sum() / rows)

    def pairs(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return the expected token-expert pairs, on the busiest rank."""
        if ep > 1:
            return self._busiest(ep).pairs(experts, top_k, tokens)
        return float(tokens * (self._experts * self._probabilities(top_k)).sum())

    def _busiest(self, ep: int) -> "Loads":
        """Return the loads of the rank with most pairs, in each layer."""
        if ep not in self._busiest_loads:
            starts = first_experts(self._layer_shares.shape[1], ep)
            parts = np.split(self._layer_shares, starts[1:], axis=1)
            busiest = np.argmax([part.sum(axis=1) for part in parts], axis=0)
            loads = np.zeros((len(busiest), parts[0].shape[1]))
            for layer, rank in enumerate(busiest):
                loads[layer, : parts[rank].shape[1]] = parts[rank][layer]
            self._busiest_loads[ep] = Loads(loads.tolist())
        return self._busiest_loads[ep]

    def _probabilities(self, top_k: int) -> Array:
        """Return the probability that a token chooses an expert, for each distinct share."""
        return np.asarray(np.minimum(top_k * self._shares, 1.0))

    def _root_logs(self, top_k: int, rows: int) -> Complex:
        """Return ln(1 - p + p w^j) by distinct share and root, [shares, rows // 2 + 1]."""
        key = top_k, rows
        if key not in self._root_log_cache:
            roots = np.exp(2j * np.pi * np.arange(rows // 2 + 1) / rows)
            inner = 1.0 - self._probabilities(top_k)[:, None] * (1.0 - roots)
            self._root_log_cache[key] = np.log(np.where(inner == 0.0, _TINY, inner))
        return self._root_log_cache[key]


Spread = PowerLaw | Loads


def spread_of(
    routing: str | None, shares: Sequence[Sequence[float]] | None = None
) -> Spread | None:
    """Return the law of uneven loads, None where loads are even.

    `shares`, [layers, E], are the measured ones if the routing names their digest. Raises
    EvidenceError if the routing names a digest of shares, and they are not given.
    """
    if routing is not None and routing.startswith(MEASURED):
        if shares is None:
            raise EvidenceError(
                f"the shares of {routing} are not known", remedy="Give their file with --loads"
            )
        return Loads(shares)
    exponent = exponent_of(routing)
    return None if exponent is None else PowerLaw(exponent)


def first_awake(routing: str | None, experts: int | None, top_k: int | None, batch: int) -> int:
    """Return the first N from which activating experts hardly adds to T(N).

    It is `routing_baseline`. For a power law it is the first N whose expected active experts reach
    AWAKE_SHARE of E; if there is none, b N = 2^20.
    """
    law = spread_of(routing)
    if law is None or experts is None or top_k is None:
        return routing_baseline(routing, experts, top_k, batch)

    def mostly_active(n: int) -> bool:
        return law.awake(experts, top_k, batch * n) >= AWAKE_SHARE * experts

    below, above = 0, 1
    while batch * above < _MOST_TOKENS and not mostly_active(above):
        below, above = above, 2 * above
    return bisect_left(range(above), x=True, lo=below + 1, key=mostly_active)


@lru_cache(maxsize=2**16)
def _mean(exponent: float, layer: Layer, tokens: int, rows: int | None) -> float:
    """Return a power law's expected blocks of `rows` rows, pairs if 0, active experts if None.

    Between the evaluated numbers of tokens it is linear, separately below and above the last number
    at which loads are drawn from FEW.
    """

    def value_at(number_of_tokens: int) -> float:
        pairs, expected_experts = _power_law(exponent, layer, number_of_tokens)
        amounts = pairs > 0 if rows is None else np.ceil(pairs / rows) if rows else pairs
        return float((amounts * expected_experts).sum())

    experts, top_k, _ = layer
    last_few = experts // top_k
    step = max(1, 2 ** (tokens.bit_length() - 1) // _PER_OCTAVE)
    below = tokens // step * step
    above = below + step
    if tokens > last_few >= below:
        below = last_few + 1
    elif tokens <= last_few < above:
        above = last_few
    if tokens in (below, above):
        return value_at(tokens)
    share = (tokens - below) / (above - below)
    return float((1.0 - share) * value_at(below) + share * value_at(above))


@lru_cache(maxsize=2**14)
def _power_law(exponent: float, layer: Layer, tokens: int) -> tuple[Array, Array]:
    """Return numbers of pairs, and the expected experts of the busiest rank that have as many.

    The steps are those of `power_law_pairs`, with a row per forward.
    """
    experts, top_k, ep = layer
    pairs = tokens * top_k
    low, high = bounds(experts, top_k, tokens)
    power = 1.0 - exponent
    quantiles = _quantiles(experts)
    loads = (
        low * (high / low) ** quantiles
        if power == 0.0
        else ((high**power - low**power) * quantiles + low**power) ** (1.0 / power)
    )
    rounded = np.rint(loads * (pairs / loads.sum(axis=1, keepdims=True)))
    counts = np.minimum(rounded, tokens)
    counts = _raised(counts, (rounded - counts).sum(axis=1))
    missing = pairs - counts.sum(axis=1)
    counts = _raised(counts, np.maximum(missing, 0.0))
    counts = -_raised(-counts[:, ::-1], np.maximum(-missing, 0.0))
    forwards = len(counts)
    if ep > 1:
        counts = _busiest_counts(counts, ep)
    experts_by_pairs = np.bincount(counts.astype(np.int64).ravel())
    pair_numbers = np.flatnonzero(experts_by_pairs)
    return pair_numbers.astype(np.float64), experts_by_pairs[pair_numbers] / forwards


def _busiest_counts(counts: Array, ep: int) -> Array:
    """Return the pairs of the experts of each forward's busiest rank, in one array."""
    forwards, experts = counts.shape
    starts = first_experts(experts, ep)
    placed = np.take_along_axis(counts, _expert_orders(experts, forwards), axis=1)
    busiest = np.argmax(np.add.reduceat(placed, starts, axis=1), axis=1)
    rank_of = np.repeat(np.arange(ep), np.diff([*starts, experts]))
    return np.asarray(placed[rank_of == busiest[:, None]])


@lru_cache(maxsize=8)
def _expert_orders(experts: int, forwards: int) -> npt.NDArray[np.int64]:
    """Return a random order of the experts for each forward, the same every time."""
    random = Random(forwards)  # noqa: S311 (not for secrets)
    drawn = [[random.random() for _ in range(experts)] for _ in range(forwards)]
    return np.argsort(np.array(drawn), axis=1)


def _raised(counts: Array, more: Array) -> Array:
    """Return ascending counts, a row per forward, with `more` pairs added to the smallest."""
    (incomplete,) = np.nonzero(more)
    if not len(incomplete):
        return counts
    ascending, ranks = counts[incomplete], np.arange(counts.shape[1])
    sums = np.cumsum(ascending, axis=1)
    below = np.count_nonzero(ascending * (ranks + 1) - sums < more[incomplete, None], axis=1)
    level, remainder = np.divmod(
        sums[np.arange(len(incomplete)), below - 1] + more[incomplete], below
    )
    levelled = level[:, None] + (ranks >= (below - remainder)[:, None])
    raised = counts.copy()
    raised[incomplete] = np.where(ranks < below[:, None], levelled, ascending)
    return raised


@lru_cache(maxsize=64)
def _quantiles(experts: int) -> Array:
    """Return quantiles [forwards, E], ascending in each: a fixed Latin hypercube."""
    forwards = -(-_DRAWN_LOADS // experts)
    random = Random(experts)  # noqa: S311 (not for secrets)
    orders = np.argsort([[random.random() for _ in range(forwards)] for _ in range(experts)])
    return np.sort((orders.T + 0.5) / forwards, axis=1)


@lru_cache(maxsize=64)
def _padding(rows: int) -> Complex:
    """Return the coefficient of each root of unity w^j in E[-m mod M], conjugate pairs merged."""
    remainders = np.arange(rows)
    coefficients = np.fft.ifft(-remainders % rows).conj()[: rows // 2 + 1]
    has_conjugate = (remainders > 0) & (2 * remainders != rows)
    return np.asarray(coefficients * (1.0 + has_conjugate[: rows // 2 + 1]))
