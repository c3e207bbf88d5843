"""Options of llama.cpp: flags with one draft length for all batch sizes, and a proposed cost array.

`--spec-draft-n-max` limits the tokens of a draft, and a draft shorter than `--spec-draft-n-min` is
not verified. `ngram-simple` looks for an earlier occurrence of the last `size-n` tokens and copies
the tokens that followed it, at least `size-n` and at most `size-m`; with the default `size-n` of 12
it drafts nothing where `size-m` is smaller. Source: llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, takewhile

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.expected import checked_curve
from nearfree.derive.schedule.option import Option, parsers
from nearfree.errors import ConfigError

LLAMA_CPP = "llama.cpp"
MODEL, OWN_LAYER, HEAD, LOOKUP = "draft-simple", "draft-mtp", "draft-eagle3", "ngram-simple"
"""Types of drafters: another model, the model's own layer for multi-token prediction, a head that
reads the model's hidden states, and lookup in the text so far."""
PATTERN = 12
"""Tokens that `ngram-simple` looks up by default (`size-n`)."""
PARSERS = parsers("llama-cpp-python", "0.3.36", (
    ("vendor/llama.cpp/common/arg.cpp", "--spec-draft-n-max, --spec-draft-n-min", (4139, 4155),
     "000f144a23a35dd59f80a0590c74fdc310c064562d2621579382d80de76a792a"),
    ("vendor/llama.cpp/common/arg.cpp", "--spec-type", (4248, 4257),
     "f2935a4148bb9f4b11a67b2bff16cfb36333f68ed3899291c77798d2a04c4f22"),
    ("vendor/llama.cpp/common/speculative.cpp", "common_speculative_type_from_name_map", (33, 45),
     "57c08e94f9c01a96ca64c53121e9ef5b101e10ef967df63dd0063870fab1cc9b"),
    ("vendor/llama.cpp/common/arg.cpp",
     "--spec-ngram-simple-size-n, --spec-ngram-simple-size-m", (4289, 4308),
     "2128a39baef2890c7a92c2ec5eecc650433890a8a7660e3f7e7e18fad59290ab"),
    ("vendor/llama.cpp/common/ngram-map.cpp", "common_ngram_simple_draft", (49, 112),
     "92fca668cd670c51d952cd20f57f9d1e7a3ec009880e31f27ca9b7d797382db6"),
))  # fmt: skip
"""The lines of llama.cpp that read the flags and draft accordingly."""


def shortest_draft(passes: Sequence[bool]) -> int:
    """Return the length from which all drafts up to the longest pass; 0 where all drafts do.

    `passes` says whether a draft of 1, 2, ..., K tokens is worth verifying.
    """
    passing = sum(1 for _ in takewhile(bool, reversed(passes)))
    return 0 if passing == len(passes) else max(len(passes) - passing + 1, 0)


def worth_verifying(ratio: Mapping[int, float], k: int, accepted: Sequence[float]) -> list[bool]:
    """Return whether a finished draft of 1, ..., K tokens is worth the forward that verifies it.

    It is if its expected tokens are at least T(N) / T(1): single-position forwards yield that many
    tokens in the same time. `ratio` is T(N) / T(1) at batch size 1 by N; `accepted` is as in
    `expected.speedups`.
    """
    tokens = list(accumulate(accepted, initial=1.0))
    return [tokens[n - 1] >= ratio[n] for n in range(2, k + 2)]


def llama_cpp_option(
    k_by_batch: Mapping[int, int],
    *,
    kind: str,
    shortest: int | None,
    ratio: Mapping[int, float],
    epsilon: float,
) -> Option:
    """Return the flags that set one draft length, that of batch size 1.

    Parameters
    ----------
    k_by_batch
        K by batch size, from `schedule.draft_lengths` or `expected.best_choice`.
    kind
        The type of drafter: MODEL, OWN_LAYER, HEAD or LOOKUP.
    shortest
        The shortest draft that is worth verifying, from `shortest_draft`; None without an
        acceptance rate, on which it depends.
    ratio
        T(N) / T(1) at batch size 1, for the proposed cost array.
    epsilon
        The tolerance; a note names shorter drafts beyond it.

    Raises
    ------
    ConfigError
        Batch 1 is missing, K is 0, or a number is out of range; of a curve as in `cost_array`.
    """
    k = ranges(k_by_batch)[0].k
    return Option(
        place="the command line of llama-server or llama-cli, beside -m (and -md for a drafter)",
        text=_flags(kind, k, shortest),
        notes=(
            *_notes(kind, k, ratio),
            *(_tolerance_notes(k, ratio, epsilon) if shortest is None else ()),
        ),
        parsers=PARSERS,
    )


def _flags(kind: str, k: int, shortest: int | None) -> str:
    if kind == LOOKUP:
        size = min(PATTERN, k)
        return (
            f"--spec-type {kind} --spec-ngram-simple-size-n {size} --spec-ngram-simple-size-m {k}"
        )
    least = "" if shortest is None else f" --spec-draft-n-min {min(shortest, k)}"
    return f"--spec-type {kind} --spec-draft-n-max {k}{least}"


def _tolerance_notes(k: int, ratio: Mapping[int, float], epsilon: float) -> Iterator[str]:
    """Yield a note of the shorter drafts that are not near-free, where T(N) falls beyond them."""
    lengths = ", ".join(f"{n - 1}" for n in range(2, k + 1) if ratio[n] > 1 + epsilon)
    if lengths:
        yield (
            f"Drafts of {lengths} tokens are beyond the tolerance: whether one is worth verifying "
            "once it is made, so that --spec-draft-n-min keeps it, is a matter of --acceptance."
        )


def _notes(kind: str, k: int, ratio: Mapping[int, float]) -> list[str]:
    notes = ["llama.cpp takes one K for all batch sizes: this is that of one request."]
    if kind == LOOKUP:
        notes.append(
            "ngram-simple drafts nothing where size-n, the tokens that it looks for, is above "
            f"size-m; its defaults are {PATTERN} and 48."
        )
    else:
        others = ", ".join(other for other in (MODEL, OWN_LAYER, HEAD) if other != kind)
        lookup = _flags(LOOKUP, k, None)
        notes.append(f"For another drafter name {others}; without one give {lookup}")
    notes.append("T(N) is that of the backends above; llama.cpp's kernels have other tiles.")
    array = cost_array({n: value for n, value in ratio.items() if n <= MOST_COSTS})
    notes.append(
        f"proposed, and read by no release (ggml-org/llama.cpp pull request 17034): {array}"
    )
    return notes


DECIMALS, MOST_COSTS = 6, 64


def cost_array(ratio: Mapping[int, float]) -> str:
    """Return the shell line that sets the cost array of llama.cpp pull request 17034.

    The pull request is a draft of November 2025, and no release reads the variable: the sources of
    llama.cpp in llama-cpp-python 0.3.36 do not have it. The format follows the examples in its
    text: numbers separated by commas, one for each forward size up to 64 tokens, the first one 1.
    The N-th is taken to be the cost per token of N tokens relative to one, T(N) / (N T(1)): the
    numbers of the examples fall with N towards a floor. `ratio` is T(N) / T(1) at batch size 1 for
    every N from 1 to the longest draft plus one. Raises ConfigError if the curve is invalid, lacks
    an N, or is too long.
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
    costs = ",".join(_cost_text(value / n, n) for n, value in curve.items())
    return f'export GGML_BATCH_COSTS="{costs}"'


def _cost_text(cost: float, n: int) -> str:
    """Return a cost as decimal text without an exponent or trailing zeros."""
    text = f"{cost:.{DECIMALS}f}".rstrip("0").rstrip(".")
    if text == "0":
        raise ConfigError(
            f"the cost of a token at N = {n} is below {10**-DECIMALS:g} of one alone",
            remedy="Check the latency curve of batch 1",
        )
    return text
