"""Tokens sampled by given random numbers: by their probabilities, independent of drafts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.sampling import draws, sampled_token

LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=9).map(np.array)
TEMPERATURES = st.floats(0.05, 20)


@given(LOGITS, TEMPERATURES, st.floats(0, 1, exclude_max=True))
def test_a_token_is_sampled_where_the_number_falls(
    logits: np.ndarray, temperature: float, draw: float
) -> None:
    """A token's share of the line from 0 to 1 is its probability, in the order of ids."""
    shares = np.exp((logits - logits.max()) / temperature)
    shares /= shares.sum()
    token = sampled_token(logits, temperature, draw)
    assert shares[:token].sum() <= draw + 1e-9
    assert draw < shares[: token + 1].sum() + 1e-9
    assert shares[token] > 0


@given(LOGITS, st.floats(0, 1, exclude_max=True))
def test_sampling_near_zero_temperature_is_greedy(logits: np.ndarray, draw: float) -> None:
    """The best token has all of the probability, or equally good ones share it."""
    rounded = np.round(logits)
    for temperature in (1e-3, 5e-324):
        assert rounded[sampled_token(rounded, temperature, draw)] == rounded.max()


@given(LOGITS, TEMPERATURES)
def test_the_largest_number_samples_a_token_that_has_a_probability(
    logits: np.ndarray, temperature: float
) -> None:
    """However sums are rounded, the result is a token with a probability above zero."""
    scaled = np.append(logits, -np.inf)
    assert scaled[sampled_token(scaled, temperature, np.nextafter(1.0, 0.0))] > -np.inf


def test_many_draws_have_the_probabilities_of_the_softmax() -> None:
    """Of 20,000 tokens each one's share is its probability, within four deviations."""
    logits, temperature = np.array([0.0, 1.0, 2.5]), 0.7
    shares = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    numbers = draws(0, "a" * 64, 20_000)
    counts = np.bincount(
        [sampled_token(logits, temperature, number) for number in numbers], minlength=3
    )
    spread = np.sqrt(len(numbers) * shares * (1 - shares))
    assert (np.abs(counts - len(numbers) * shares) < 4 * spread).all()


def test_random_numbers_depend_on_seed_prompt_and_position() -> None:
    """A longer output begins with the same numbers; other prompts and seeds have others."""
    assert draws(0, "a", 9)[:4] == draws(0, "a", 4)
    other_draws = [draws(0, "b", 9), draws(1, "a", 9)]
    assert all(not set(numbers) & set(draws(0, "a", 9)) for numbers in other_draws)
    assert all(0 <= number < 1 for number in draws(0, "a", 999))
