"""Sampling with a temperature, such that drafts change no token of the output.

Each place of an output has its own random number, which draws its token. Drafts are accepted as
long as they equal the drawn tokens, as in llama.cpp (`common_sampler_sample_and_accept_n` of
common/sampling.cpp, lines 678 to 706, in release 3.22.1 of node-llama-cpp: one draw of its
generator per accepted token). So outputs and steps can be replayed as with greedy decoding.
"""

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOTTEST = 100.0
"""The highest temperature that is accepted."""


def draws(seed: int, prompt_sha256: str, count: int) -> tuple[float, ...]:
    """Return one random number per token of an output, uniform in [0, 1).

    They depend only on the seed, the prompt and the place in the output.
    """
    source = random.Random(f"{seed} {prompt_sha256}")  # noqa: S311 (no secret)
    return tuple(source.random() for _ in range(count))


def sampled_token(logits: "NDArray[Any]", temperature: float, draw: float) -> int:
    """Return the sampled token: the first whose cumulative probability exceeds `draw`.

    Parameters
    ----------
    logits
        One logit per token, [vocabulary].
    """
    import numpy as np

    with np.errstate(over="ignore"):  # a temperature near 0 is greedy
        scaled = (logits.astype(np.float64) - logits.max()) / temperature
    cumulated = np.cumsum(np.exp(scaled))
    token = np.searchsorted(cumulated, draw * cumulated[-1], side="right")
    return int(min(token, cumulated.argmax()))  # a draw just below 1 may round up to it
