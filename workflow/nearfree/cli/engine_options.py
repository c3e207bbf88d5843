"""Options of commands that run or ask about a real engine."""

import argparse
from pathlib import Path

from nearfree.cli.common import argument, positive

CONTEXT, ROUNDS = 64, 32
"""L and visits where none are given."""
_FEWEST_ROUNDS = 3
"""Of the protocol `paired`."""
OF_A_FILE = ("release", "threads", "batch", "context", "positions", "rounds", "no_repack")
"""What says how a file of the user's is measured, as parsed arguments name it."""
OF_A_STUDY = ("weights", "draft_weights", "prompts", "untested", "wait")
"""What says how a study or a plan is."""


def whole_list(text: str) -> tuple[int, ...]:
    """Return whole numbers from 1 on out of a list with commas, rising and each once."""
    try:
        numbers = tuple(positive(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r:.60} is no list of whole numbers, such as 1,2,4"
        ) from error
    if list(numbers) != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r:.60} does not rise, or names a number twice")
    return numbers


def engine_name(text: str) -> str:
    """Return an engine as this project spells it: `llama.cpp` is llama_cpp."""
    return text.strip().lower().replace(".", "_").replace("-", "_")


def rounds(text: str) -> int:
    """Return a whole number from 3 on; argparse turns the error into its own message."""
    number = positive(text)
    if number < _FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{number} is less than {_FEWEST_ROUNDS}")
    return number


ENGINE_OPTIONS = (
    argument(
        "--engine",
        type=engine_name,
        metavar="NAME",
        help="measure in this engine: llama_cpp or openvino",
    ),
    argument("--model", type=Path, metavar="FILE.gguf", help="the weights, with --engine"),
    argument("--release", help="the engine's release (default: the prebuilt one, else the first)"),
    argument("--threads", type=whole_list, help="CPU threads (default: 1)"),
    argument("--batch", type=whole_list, help="requests b (default: 1)"),
    argument("--context", type=whole_list, help=f"cached positions L (default: {CONTEXT})"),
    argument("--positions", type=whole_list, metavar="N,N,...", help="the grid of N"),
    argument(
        "--rounds",
        type=rounds,
        help=f"visits to each N between two to N = 1, at most: 3 or more (default: {ROUNDS})",
    ),
    argument(
        "--no-repack",
        action="store_true",
        default=None,
        help="leave the weights in the file's order (`use_extra_bufts` false)",
    ),
    argument(
        "--weights",
        type=Path,
        metavar="FILE.gguf",
        help="where the weights lie that a plan names by their bytes, if not in the cache",
    ),
    argument("--draft-weights", type=Path, metavar="FILE.gguf", help="the same of a draft model's"),
    argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help="the prompts that a plan of decodes names by their text (default: shipped ones)",
    ),
)
