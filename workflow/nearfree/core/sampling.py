"""Sampling with a temperature, so that what is drafted changes no token of the output.

The token at a place of an output is drawn by a number of that place's own. Drafts are accepted as
far as they are what is drawn, as llama.cpp does it (`common_sampler_sample_and_accept_n` of
common/sampling.cpp, lines 678 to 706, in release 3.22.1 of node-llama-cpp: one draw of its
generator a token that is kept). So outputs and steps can be replayed as greedy ones can.
"""

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOTTEST = 100.0
"""No temperature is higher."""


def draws(seed: int, prompt_sha256: str, count: int) -> tuple[float, ...]:
    """Return the numbers that draw the tokens of an output, uniform in [0, 1).

    They depend on the seed, the prompt and the place in the output alone.
    """
    source = random.Random(f"{seed} {prompt_sha256}")  # noqa: S311 (no secret)
    return tuple(source.random() for _ in range(count))


def drawn(logits: "NDArray[Any]", temperature: float, draw: float) -> int:
    """Return the token that a number draws: the first whose cumulated probability exceeds it.

    Parameters
    ----------
    logits
        One a token, [vocabulary].
    temperature
        Logits are divided by it before the softmax; above 0.
    draw
        In [0, 1).
    """
    import numpy as np

    with np.errstate(over="ignore"):  # next to no heat is greedy
        scaled = (logits.astype(np.float64) - logits.max()) / temperature
    cumulated = np.cumsum(np.exp(scaled))
    found = np.searchsorted(cumulated, draw * cumulated[-1], side="right")
    return int(min(found, cumulated.argmax()))  # a draw next to 1 may round to it
