"""Options of commands that run or predict a real engine."""

import argparse
from pathlib import Path

from nearfree.cli.common import argument, flag, positive, refuse_leading_zero

CONTEXT, ROUNDS = 64, 32
"""Defaults of `--context` and `--rounds`."""
_FEWEST_ROUNDS = 3
"""The minimum of the protocol `paired`."""
FILE_OPTIONS = (
    *("release", "threads", "batch", "context", "positions", "rounds", "no_repack", "kv_dtype"),
)
"""Attributes of parsed arguments that apply to a user's file, not to a study."""
STUDY_OPTIONS = ("weights", "draft_weights", "prompts", "untested", "wait")
"""Attributes of parsed arguments that apply to a study or a plan, not to a user's file."""


def int_list(text: str) -> tuple[int, ...]:
    """Return whole numbers from 1 on, parsed from a comma-separated, strictly rising list."""
    parts = [part.strip() for part in text.split(",")]
    refuse_leading_zero(parts)
    try:
        numbers = tuple(map(positive, parts))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r:.60} is not a list of whole numbers, such as 1,2,4"
        ) from error
    if list(numbers) != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r:.60} does not rise, or repeats a number")
    return numbers


def engine_name(text: str) -> str:
    """Return the project's name of an engine: `llama.cpp` becomes llama_cpp."""
    return text.strip().lower().replace(".", "_").replace("-", "_")


def round_count(text: str) -> int:
    """Return a number of rounds, 3 or more; argparse turns the error into its own message."""
    count = positive(text)
    if count < _FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{count} is less than {_FEWEST_ROUNDS}")
    return count


ENGINE_OPTIONS = (
    argument(
        "--engine",
        type=engine_name,
        metavar="NAME",
        help="measure in this engine: llama_cpp or openvino",
    ),
    argument("--model", type=Path, metavar="FILE.gguf", help="the weights, with --engine"),
    argument(
        "--release",
        help="the engine's release (default: the prebuilt one of envs/engines.lock, else its "
        "first)",
    ),
    argument("--threads", type=int_list, help="CPU threads (default: 1)"),
    argument("--batch", type=int_list, help="requests b (default: 1)"),
    argument("--context", type=int_list, help=f"cached positions L (default: {CONTEXT})"),
    argument("--positions", type=int_list, metavar="N,N,...", help="the grid of N"),
    argument(
        "--rounds",
        type=round_count,
        help=f"most samples of each N, each between two of N = 1: 3 or more (default: {ROUNDS})",
    ),
    flag(
        "--no-repack",
        "keep the weights in the file's layout (`use_extra_bufts` false)",
        default=None,
    ),
    argument(
        "--kv-dtype",
        choices=("float32",),
        help="the format in which openvino caches and computes (default: its own choice)",
    ),
    argument(
        "--weights",
        type=Path,
        metavar="FILE.gguf",
        help="the file of the weights that a plan names by hash, if they are not in the cache",
    ),
    argument(
        "--draft-weights",
        type=Path,
        metavar="FILE.gguf",
        help="the file of a draft model's weights that a plan names by hash",
    ),
    argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help="the file of the prompts that a plan names by hash (default: the package's)",
    ),
)
