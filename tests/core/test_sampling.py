"""Tokens that numbers draw: by their probabilities, and the same whatever is drafted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.sampling import draws, sampled_token

LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=9).map(np.array)
HEATS = st.floats(0.05, 20)


@given(LOGITS, HEATS, st.floats(0, 1, exclude_max=True))
def test_a_token_is_drawn_where_the_number_falls(
    logits: np.ndarray, heat: float, draw: float
) -> None:
    """Its share of the line from 0 to 1 is its probability, in the order of ids."""
    shares = np.exp((logits - logits.max()) / heat)
    shares /= shares.sum()
    token = sampled_token(logits, heat, draw)
    assert shares[:token].sum() <= draw + 1e-9
    assert draw < shares[: token + 1].sum() + 1e-9
    assert shares[token] > 0


@given(LOGITS, st.floats(0, 1, exclude_max=True))
def test_next_to_no_heat_is_greedy(logits: np.ndarray, draw: float) -> None:
    """The best token has all of the probability, or those as good as it share that."""
    whole = np.round(logits)
    for heat in (1e-3, 5e-324):
        assert whole[sampled_token(whole, heat, draw)] == whole.max()


@given(LOGITS, HEATS)
def test_the_largest_number_draws_the_last_token_that_may_come(
    logits: np.ndarray, heat: float
) -> None:
    """However sums are rounded, it is a token, and one with a probability."""
    scaled = np.append(logits, -np.inf)
    assert scaled[sampled_token(scaled, heat, np.nextafter(1.0, 0.0))] > -np.inf


def test_many_draws_have_the_probabilities_of_the_softmax() -> None:
    """Of 20,000 tokens as many are each one as the temperature says, within four deviations."""
    logits, heat = np.array([0.0, 1.0, 2.5]), 0.7
    shares = np.exp(logits / heat) / np.exp(logits / heat).sum()
    numbers = draws(0, "a" * 64, 20_000)
    counts = np.bincount([sampled_token(logits, heat, each) for each in numbers], minlength=3)
    spread = np.sqrt(len(numbers) * shares * (1 - shares))
    assert (np.abs(counts - len(numbers) * shares) < 4 * spread).all()


def test_numbers_are_those_of_a_place_in_the_output_of_a_prompt() -> None:
    """A longer output begins with the same ones; other prompts and seeds have others."""
    assert draws(0, "a", 9)[:4] == draws(0, "a", 4)
    others = [draws(0, "b", 9), draws(1, "a", 9)]
    assert all(not set(each) & set(draws(0, "a", 9)) for each in others)
    assert all(0 <= each < 1 for each in draws(0, "a", 999))
