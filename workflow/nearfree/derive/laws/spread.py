"""How many experts are awake, and how many row blocks they fill, where routing is uneven.

What is expected, sums over experts: of P(m_e > 0), and of E[ceil(m_e / M)] for blocks of M rows.
Where whole experts are spread over ranks, in their order as vLLM and SGLang place them, it is that
of the rank with most pairs, for which all others wait.
"""

from collections.abc import Sequence
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from nearfree.core.modules.moe_ffn import first_experts
from nearfree.core.modules.routing import MEASURED, bounds, exponent_of, first_full
from nearfree.errors import EvidenceError

Array = npt.NDArray[np.float64]
Complex = npt.NDArray[np.complex128]
Layer = tuple[int, int, int]
"""E, k, and over how many ranks whole experts are spread."""
AWAKE = 0.9
"""The share of E from which on few experts are left to wake."""
_DRAWN = 2**17
"""Loads that stand for a power law's: E in each of so many forwards."""
_EACH_OCTAVE = 16
"""Numbers of tokens at which a power law is worked out; between them it is taken as straight."""
_KINDS = 256
"""Measured shares that are told apart; of more, neighbours in size stand for their mean."""
_MOST_TOKENS = 2**20
_NOTHING = 1e-300
"""What stands for 0 where a logarithm is taken."""


class PowerLaw(Struct, frozen=True):
    """Loads as `core.modules.routing.power_law_pairs` draws them, with this exponent.

    The expectation is the mean over forwards whose quantiles are a Latin hypercube: each expert's
    own lie evenly, and experts are independent. They are the same every time. Which experts share a
    rank is drawn anew for each forward.
    """

    exponent: float

    def awake(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return how many of E experts have a pair among b N tokens; of a rank of `ep`."""
        return _mean(self.exponent, (experts, top_k, ep), tokens, None)

    def blocks(self, experts: int, top_k: int, tokens: int, rows: int, ep: int = 1) -> float:
        """Return how many blocks of so many rows their pairs fill."""
        return _mean(self.exponent, (experts, top_k, ep), tokens, rows)

    def pairs(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return how many token-expert pairs they have."""
        if ep == 1:
            return float(tokens * top_k)
        return _mean(self.exponent, (experts, top_k, ep), tokens, 0)


class Loads:
    """Loads that somebody measured, as shares of all pairs.

    Several layers stand for their mean layer. Each token is taken to choose by itself, so that it
    takes an expert with probability k times the expert's share whichever others it takes, and an
    expert's pairs are binomial: no approximation is made of k different experts. Tokens of one
    text that choose alike wake fewer experts than this.

    Parameters
    ----------
    shares
        The share of each expert, [layers, E]; they sum to one in each layer.
    """

    def __init__(self, shares: Sequence[Sequence[float]]) -> None:
        self._all = np.array(shares, dtype=np.float64)
        flat = np.sort(self._all.ravel())
        kinds = np.array_split(flat, min(len(flat), _KINDS))
        self._shares = np.array([kind.mean() for kind in kinds])
        self._many = np.array([len(kind) for kind in kinds], dtype=np.float64) / len(shares)
        self._logs: dict[tuple[int, int], Complex] = {}
        self._ranks: dict[int, Loads] = {1: self}

    def awake(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return how many experts have a pair among b N tokens; of a rank of `ep`."""
        if ep > 1:
            return self._busiest(ep).awake(experts, top_k, tokens)
        return float(((1.0 - (1.0 - self._chances(top_k)) ** tokens) * self._many).sum())

    def blocks(self, experts: int, top_k: int, tokens: int, rows: int, ep: int = 1) -> float:
        """Return how many blocks of so many rows their pairs fill.

        M E[ceil(m / M)] = E[m] + E[-m mod M], and the second follows from the characteristic
        function of m at the roots of unity, (1 - p + p w^j)^(b N).
        """
        if ep > 1:
            return self._busiest(ep).blocks(experts, top_k, tokens, rows)
        padding = (np.exp(tokens * self._root_logs(top_k, rows)) * _padding(rows)).real.sum(axis=1)
        return float((self._many * (tokens * self._chances(top_k) + padding)).sum() / rows)

    def pairs(self, experts: int, top_k: int, tokens: int, ep: int = 1) -> float:
        """Return how many token-expert pairs they have."""
        if ep > 1:
            return self._busiest(ep).pairs(experts, top_k, tokens)
        return float(tokens * (self._many * self._chances(top_k)).sum())

    def _busiest(self, ep: int) -> "Loads":
        """Return the loads of the rank that has most pairs, in each layer."""
        if ep not in self._ranks:
            parts = np.split(self._all, first_experts(self._all.shape[1], ep)[1:], axis=1)
            most = np.argmax([part.sum(axis=1) for part in parts], axis=0)
            loads = np.zeros((len(most), parts[0].shape[1]))
            for layer, rank in enumerate(most):
                loads[layer, : parts[rank].shape[1]] = parts[rank][layer]
            self._ranks[ep] = Loads(loads.tolist())
        return self._ranks[ep]

    def _chances(self, top_k: int) -> Array:
        """Return how likely a token takes each kind of expert."""
        return np.asarray(np.minimum(top_k * self._shares, 1.0))

    def _root_logs(self, top_k: int, rows: int) -> Complex:
        """Return ln(1 - p + p w^j) by kind of expert and root, [kinds, rows // 2 + 1]."""
        key = top_k, rows
        if key not in self._logs:
            roots = np.exp(2j * np.pi * np.arange(rows // 2 + 1) / rows)
            inner = 1.0 - self._chances(top_k)[:, None] * (1.0 - roots)
            self._logs[key] = np.log(np.where(inner == 0.0, _NOTHING, inner))
        return self._logs[key]


Spread = PowerLaw | Loads


def spread_of(
    routing: str | None, shares: Sequence[Sequence[float]] | None = None
) -> Spread | None:
    """Return the law of loads that are uneven, None where they are even.

    Parameters
    ----------
    shares
        Measured shares, [layers, E], where the routing has their digest.

    Raises
    ------
    EvidenceError
        The routing has a digest of shares that are not given.
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
    """Return the first N from which waking experts hardly adds to T(N).

    It is `first_full`, and of a power law the first N at which AWAKE of E experts are expected to
    be awake, b N = 2^20 where there is none.
    """
    law = spread_of(routing)
    if law is None or experts is None or top_k is None:
        return first_full(routing, experts, top_k, batch)
    below, most = 0, 1
    while batch * most < _MOST_TOKENS and not _mostly(law, experts, top_k, batch * most):
        below, most = most, 2 * most
    while most - below > 1:
        middle = (below + most) // 2
        if _mostly(law, experts, top_k, batch * middle):
            most = middle
        else:
            below = middle
    return most


def _mostly(law: Spread, experts: int, top_k: int, tokens: int) -> bool:
    return law.awake(experts, top_k, tokens) >= AWAKE * experts


@lru_cache(maxsize=2**16)
def _mean(exponent: float, layer: Layer, tokens: int, rows: int | None) -> float:
    """Return a power law's blocks of so many rows, of 0 its pairs, and of None its awake experts.

    Between the numbers of tokens that are worked out it is straight, on each side of the last at
    which loads are drawn from FEW.
    """

    def value(each: int) -> float:
        pairs, many = _power_law(exponent, layer, each)
        of_each = pairs > 0 if rows is None else np.ceil(pairs / rows) if rows else pairs
        return float((of_each * many).sum())

    experts, top_k, _ = layer
    few = experts // top_k
    step = max(1, 2 ** (tokens.bit_length() - 1) // _EACH_OCTAVE)
    below = tokens // step * step
    above = below + step
    if tokens > few >= below:
        below = few + 1
    elif tokens <= few < above:
        above = few
    if tokens in (below, above):
        return value(tokens)
    share = (tokens - below) / (above - below)
    return float((1.0 - share) * value(below) + share * value(above))


@lru_cache(maxsize=2**14)
def _power_law(exponent: float, layer: Layer, tokens: int) -> tuple[Array, Array]:
    """Return numbers of pairs, and how many experts of the busiest rank are expected to have each.

    The same steps as `power_law_pairs`, a forward a row.
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
        counts = _of_busiest(counts, ep)
    many = np.bincount(counts.astype(np.int64).ravel())
    found = np.flatnonzero(many)
    return found.astype(np.float64), many[found] / forwards


def _of_busiest(counts: Array, ep: int) -> Array:
    """Return the pairs of the experts of the busiest rank, of all forwards together."""
    forwards, experts = counts.shape
    starts = first_experts(experts, ep)
    placed = np.take_along_axis(counts, _places(experts, forwards), axis=1)
    most = np.argmax(np.add.reduceat(placed, starts, axis=1), axis=1)
    rank_of = np.repeat(np.arange(ep), np.diff([*starts, experts]))
    return np.asarray(placed[rank_of == most[:, None]])


@lru_cache(maxsize=8)
def _places(experts: int, forwards: int) -> npt.NDArray[np.int64]:
    """Return an order of the experts for each forward, the same every time."""
    random = Random(forwards)  # noqa: S311 (not for secrets)
    drawn = [[random.random() for _ in range(experts)] for _ in range(forwards)]
    return np.argsort(np.array(drawn), axis=1)


def _raised(counts: Array, more: Array) -> Array:
    """Return rising counts, a forward a row, with more pairs, each given to who has the fewest."""
    (short,) = np.nonzero(more)
    if not len(short):
        return counts
    filled, places = counts[short], np.arange(counts.shape[1])
    sums = np.cumsum(filled, axis=1)
    below = np.count_nonzero(filled * (places + 1) - sums < more[short, None], axis=1)
    level, rest = np.divmod(sums[np.arange(len(short)), below - 1] + more[short], below)
    water = level[:, None] + (places >= (below - rest)[:, None])
    raised = counts.copy()
    raised[short] = np.where(places < below[:, None], water, filled)
    return raised


@lru_cache(maxsize=64)
def _quantiles(experts: int) -> Array:
    """Return quantiles [forwards, E], rising in each: a Latin hypercube, the same every time."""
    forwards = -(-_DRAWN // experts)
    random = Random(experts)  # noqa: S311 (not for secrets)
    orders = np.argsort([[random.random() for _ in range(forwards)] for _ in range(experts)])
    return np.sort((orders.T + 0.5) / forwards, axis=1)


@lru_cache(maxsize=64)
def _padding(rows: int) -> Complex:
    """Return what each root of unity w^j adds to E[-m mod M]; a conjugate pair counts as one."""
    each = np.arange(rows)
    parts = np.fft.ifft(-each % rows).conj()[: rows // 2 + 1]
    pairs = (each > 0) & (2 * each != rows)
    return np.asarray(parts * (1.0 + pairs[: rows // 2 + 1]))
