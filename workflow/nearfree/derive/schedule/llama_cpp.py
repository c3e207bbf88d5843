"""llama.cpp: the cost array `GGML_BATCH_COSTS` of ggml-org/llama.cpp pull request 17034.

The pull request is a draft of November 2025, and no release reads the variable: the sources of
llama.cpp in llama-cpp-python 0.3.36 do not have it. The form is that of the examples in its text:
numbers separated by commas, the first 1, one for each size of a forward up to 64 tokens. That the
N-th is the cost of a token among N relative to one alone, T(N) / (N T(1)), is read from these
numbers, which fall with N towards a floor.
"""

from collections.abc import Mapping

from nearfree.derive.schedule.expected import checked_curve
from nearfree.derive.schedule.option import Engine, Option
from nearfree.errors import ConfigError

DECIMALS, MOST_COSTS = 6, 64


def option(ratio: Mapping[int, float]) -> Option:
    """Return the line of a shell that sets the cost array.

    Parameters
    ----------
    ratio
        T(N) / T(1) at batch size 1 for every N from 1 to the longest draft and one.

    Raises
    ------
    ConfigError
        The curve makes no sense, leaves an N out, or is too long.
    """
    curve = checked_curve(ratio, "batch 1")
    if len(curve) > MOST_COSTS:
        raise ConfigError(
            f"the latency curve of batch 1 has {len(curve)} N",
            remedy=f"Give those up to {MOST_COSTS}, as many as the pull request measures",
        )
    missing = next((n for n in range(1, len(curve) + 1) if n not in curve), None)
    if missing is not None:
        raise ConfigError(
            f"the latency curve of batch 1 has no N = {missing}",
            remedy="GGML_BATCH_COSTS has no gaps: give every N, or the curve up to that one",
        )
    costs = ",".join(_number(value / n, n) for n, value in curve.items())
    return Option(
        place="the environment of llama.cpp",
        text=f'export GGML_BATCH_COSTS="{costs}"',
        notes=(
            "Needs ggml-org/llama.cpp pull request 17034; no release reads this variable.",
            f"Drafts of up to {len(curve) - 1} tokens have a cost.",
            "The costs are of the curve's backends; llama.cpp's kernels have other tiles.",
        ),
    )


def _number(cost: float, n: int) -> str:
    """Return a cost without an exponent and without trailing zeros."""
    text = f"{cost:.{DECIMALS}f}".rstrip("0").rstrip(".")
    if text == "0":
        raise ConfigError(
            f"the cost of a token at N = {n} is below {10**-DECIMALS:g} of one alone",
            remedy="Check the latency curve of batch 1",
        )
    return text


ENGINE = Engine(name="llama.cpp", moe="vllm", costs=option, largest_batch=1)
