"""Expected values of uneven loads: against draws, in limits, and over numbers of tokens."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.core.modules.routing import power_law_pairs
from nearfree.derive.laws.spread import AWAKE_SHARE, Loads, PowerLaw, first_awake, spread_of
from nearfree.errors import EvidenceError

DRAWS = 400
CASES = [(8, 2, 7, 1.01), (64, 6, 100, 1.2), (60, 4, 33, 1.0), (128, 8, 13, 1.2), (32, 1, 90, 0.0)]
WEIGHTS = st.lists(st.integers(0, 9), min_size=2, max_size=24).filter(any)


def near(value: float, drawn: list[float]) -> None:
    """Assert that a value is the mean of what was drawn, within five standard errors."""
    error = np.std(drawn) / np.sqrt(len(drawn))
    assert abs(value - np.mean(drawn)) <= 5.0 * error + 2e-3 * np.mean(drawn)


@pytest.mark.parametrize(("experts", "top_k", "tokens", "exponent"), CASES)
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_power_law_is_the_mean_of_its_draws(
    experts: int, top_k: int, tokens: int, exponent: float, rows: int
) -> None:
    """Blocks and awake experts are those of independent draws in the mean."""
    random = np.random.default_rng(experts + tokens)
    drawn = [
        np.array(power_law_pairs(sorted(random.random(experts)), top_k, tokens, exponent))
        for _ in range(DRAWS)
    ]
    law = PowerLaw(exponent)
    blocks = [float(np.ceil(pairs / rows).sum()) for pairs in drawn]
    near(law.blocks(experts, top_k, tokens, rows), blocks)
    near(law.awake(experts, top_k, tokens), [float((pairs > 0).sum()) for pairs in drawn])


def chosen(shares: np.ndarray, top_k: int, tokens: int, random: np.random.Generator) -> np.ndarray:
    """Return the pairs of each expert where every token takes k different ones, by their shares.

    Experts lie in a row in random order, each as long as k times its share, and a token takes those
    under k marks one apart: so it takes each with just that probability, and none twice.
    """
    counts = np.zeros(len(shares), dtype=int)
    for _ in range(tokens):
        order = random.permutation(len(shares))
        ends = np.cumsum(top_k * shares[order])
        marks = random.random() + np.arange(top_k)
        counts[order[np.minimum(np.searchsorted(ends, marks), len(shares) - 1)]] += 1
    return counts


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("tokens", [3, 40])
def test_measured_loads_are_the_mean_of_draws(rows: int, tokens: int) -> None:
    """Blocks and awake experts are those of tokens that take k different experts, by shares."""
    shares = np.array([0.25, 0.2, 0.15, 0.15, 0.1, 0.08, 0.05, 0.02, 0.0])
    random = np.random.default_rng(rows + tokens)
    drawn = [chosen(shares, 3, tokens, random) for _ in range(DRAWS)]
    law = Loads([shares.tolist()])
    blocks = [float(np.ceil(pairs / rows).sum()) for pairs in drawn]
    near(law.blocks(9, 3, tokens, rows), blocks)
    near(law.awake(9, 3, tokens), [float((pairs > 0).sum()) for pairs in drawn])


@given(WEIGHTS, st.integers(1, 500), st.integers(1, 64))
def test_measured_blocks_never_fall(weights: list[int], tokens: int, rows: int) -> None:
    """A token more fills no fewer blocks and wakes no fewer experts; all pairs have their rows."""
    law = Loads([[weight / sum(weights) for weight in weights]])
    blocks, more = (law.blocks(len(weights), 1, count, rows) for count in (tokens, tokens + 1))
    assert more >= blocks - 1e-9
    assert law.awake(len(weights), 1, tokens + 1) >= law.awake(len(weights), 1, tokens)
    assert blocks * rows >= tokens * (1 - 1e-9)
    assert law.blocks(len(weights), 1, tokens, 1) == pytest.approx(tokens)


@given(st.integers(2, 64), st.integers(1, 4), st.integers(1, 60))
def test_equal_loads_are_balanced_in_the_mean(experts: int, top_k: int, tokens: int) -> None:
    """Equal shares are binomial pairs of k / E a token: awake is E (1 - (1 - k / E)^(b N))."""
    top_k = min(top_k, experts)
    law = Loads([[1.0 / experts] * experts] * 3)
    awake = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
    assert law.awake(experts, top_k, tokens) == pytest.approx(awake)
    assert law.blocks(experts, top_k, tokens, 61) == pytest.approx(awake)


def test_all_on_k_experts_is_skewed() -> None:
    """Shares of 1 / k on k experts give each of them every token."""
    law = Loads([[0.25] * 4 + [0.0] * 12])
    assert law.awake(16, 4, 33) == pytest.approx(4.0)
    assert law.blocks(16, 4, 33, 16) == pytest.approx(4 * 3)


def test_layers_stand_for_their_mean() -> None:
    """Loads by layer are the mean of what each layer would be by itself."""
    layers = [[0.7, 0.2, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25]]
    blocks = [Loads([layer]).blocks(4, 1, 30, 8) for layer in layers]
    assert Loads(layers).blocks(4, 1, 30, 8) == pytest.approx(sum(blocks) / 2)


@given(st.integers(2, 200), st.integers(1, 8), st.integers(1, 3000), st.integers(1, 128))
@settings(max_examples=15, deadline=None)
def test_power_law_blocks_lie_between_bounds(
    experts: int, top_k: int, tokens: int, rows: int
) -> None:
    """No more blocks than pairs, nor than one an expert more than full ones; no fewer than full."""
    top_k = min(top_k, experts)
    blocks = PowerLaw(1.2).blocks(experts, top_k, tokens, rows)
    pairs = tokens * top_k
    assert pairs / rows * (1 - 1e-9) <= blocks <= min(pairs, pairs / rows + experts) * (1 + 1e-9)


@pytest.mark.parametrize(("experts", "top_k", "batch"), [(8, 2, 1), (64, 6, 3), (128, 8, 1)])
def test_most_experts_are_awake_from_the_first_such_n(experts: int, top_k: int, batch: int) -> None:
    """At the baseline of a power law nine in ten experts are awake, and one N before fewer are."""
    first = first_awake("power_law:1.2", experts, top_k, batch)
    law = PowerLaw(1.2)
    assert law.awake(experts, top_k, batch * first) >= AWAKE_SHARE * experts
    assert first == 1 or law.awake(experts, top_k, batch * (first - 1)) < AWAKE_SHARE * experts
    assert first_awake("balanced", experts, top_k, batch) == -(-experts // (batch * top_k))


def test_even_routing_has_no_law_of_uneven_loads() -> None:
    """Only a power law and measured shares are uneven; shares that nobody gives are missed."""
    assert spread_of("balanced") is spread_of(None) is None
    assert spread_of("power_law:1.2") == PowerLaw(1.2)
    with pytest.raises(EvidenceError, match="--loads"):
        spread_of("loads:0123456789ab")


def placed(law: PowerLaw | Loads, ep: int) -> tuple[float, float, float]:
    """Return awake experts, blocks and pairs of the busiest rank of 16 experts, k = 2, b N = 40."""
    return law.awake(16, 2, 40, ep), law.blocks(16, 2, 40, 8, ep), law.pairs(16, 2, 40, ep)


@pytest.mark.parametrize("law", [PowerLaw(1.2), Loads([[1 / 16] * 16, [0.5, *[0.5 / 15] * 15]])])
def test_the_busiest_rank_has_more_than_its_share(law: PowerLaw | Loads) -> None:
    """It has more than the mean rank's pairs, not all, and no more awake experts than it has.

    A single rank has all.
    """
    assert law.pairs(16, 2, 40) == pytest.approx(80)
    for ep in (2, 3, 4, 16):
        awake, blocks, pairs = placed(law, ep)
        assert 80 / ep < pairs < 80
        assert 0 < awake <= -(-16 // ep)
        assert blocks >= pairs / 8 - 1e-9


def test_measured_loads_lie_on_ranks_in_their_order() -> None:
    """The busiest rank is the one whose neighbours have most together, in each layer."""
    first, last = [0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6]
    law, of_rank = Loads([first, last]), Loads([[0.4, 0.3], [0.2, 0.6]])
    assert law.pairs(4, 1, 100, 2) == pytest.approx(75)
    assert law.blocks(4, 1, 100, 16, 2) == of_rank.blocks(2, 1, 100, 16)
    assert law.awake(4, 1, 3, 2) == of_rank.awake(2, 1, 3)


def test_the_mean_of_draws_is_the_busiest_rank_of_a_power_law() -> None:
    """Experts that are drawn and dealt to ranks at random have as many pairs on the fullest one."""
    random, experts, ep = Random(7), 16, 4  # noqa: S311 (not for secrets)
    means = []
    for _ in range(4000):
        quantiles = sorted(random.random() for _ in range(experts))
        counts = power_law_pairs(quantiles, 2, 40, 1.2)
        random.shuffle(counts)
        means.append(max(sum(counts[at : at + 4]) for at in range(0, experts, 4)))
    mean = sum(means) / len(means)
    assert PowerLaw(1.2).pairs(experts, 2, 40, ep) == pytest.approx(mean, rel=0.02)


def test_the_busiest_rank_exceeds_the_mean_by_the_guides_figures() -> None:
    """The figures of the guide: how much more than the mean rank the busiest of a power law has."""
    law = PowerLaw(1.2)
    for ep, awake, blocks in ((8, 1.25, 1.5), (32, 1.7, 2.8)):
        few = law.awake(128, 8, 16, ep) / (law.awake(128, 8, 16) / ep)
        many = law.blocks(128, 8, 512, 16, ep) / (law.blocks(128, 8, 512, 16) / ep)
        assert (few, many) == pytest.approx((awake, blocks), rel=0.02)
