"""Expected passes over experts: what tokens that choose at random give in the mean."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.granularity.routed_product import RoutedProduct, binomial
from nearfree.sources.answers.ggml_experts import ExpertProduct
from sources.answers.test_ggml import BUILT, query, recorded

STORED = ExpertProduct(recorded(BUILT), query("q4_k", repack=False))


def drawn(experts: int, top_k: int, tokens: int, draws: int = 2000) -> dict[str, float]:
    """Return the mean rows by path of tokens that choose at random, and the mean unpackings."""
    random, sums = Random(tokens), Counter[str]()  # noqa: S311 (not for secrets)
    for _ in range(draws):
        rows = Counter(e for _ in range(tokens) for e in random.sample(range(experts), top_k))
        for number in rows.values():
            for passes in STORED.passes(number):
                sums[passes.path] += passes.serves
                sums["unpacked"] += passes.unpacked
    return {name: total / draws for name, total in sums.items()}


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 20), (8, 2, 33), (32, 4, 64)])
def test_expectations_are_means_of_random_choices(experts: int, top_k: int, tokens: int) -> None:
    """Both paths of stored K-quants: tiles for experts with 8 rows, dot products for the others."""
    passes = RoutedProduct(STORED, experts, top_k).passes(tokens)
    means = drawn(experts, top_k, tokens)
    assert {item.path for item in passes} == {"expert_vector", "expert_tiled"}
    for item in passes:
        assert item.serves == pytest.approx(means[item.path], rel=0.05)
    assert sum(item.unpacked for item in passes) == pytest.approx(means["unpacked"], rel=0.05)


def test_one_token_is_a_pass_for_each_of_its_experts() -> None:
    """Exactly k experts have one row each."""
    (passes,) = RoutedProduct(STORED, 128, 8).passes(1)
    assert (passes.serves, passes.times, passes.unpacked) == pytest.approx((8, 8, 8))


def test_where_every_expert_is_taken_each_has_all_rows() -> None:
    """With k = E nothing is left to chance."""
    (passes,) = RoutedProduct(STORED, 4, 4).passes(20)
    assert (passes.path, passes.serves, passes.times) == ("expert_tiled", 80, 8)


def test_rare_passes_are_left_out_and_all_rows_are_served() -> None:
    """Of 33 tokens with 8 of 128 experts hardly an expert has 8 rows."""
    (passes,) = RoutedProduct(STORED, 128, 8).passes(33)
    assert (passes.path, passes.serves) == ("expert_vector", pytest.approx(33 * 8))


@given(st.integers(1, 400), st.floats(0.001, 1.0))
def test_probabilities_sum_to_one_about_their_mean(trials: int, probability: float) -> None:
    """Of each number of successes there is one probability."""
    chances = binomial(trials, probability)
    assert len(chances) == trials + 1
    assert sum(chances) == pytest.approx(1.0)
    mean = sum(count * chance for count, chance in enumerate(chances))
    assert mean == pytest.approx(trials * probability)
