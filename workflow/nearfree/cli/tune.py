"""Tuning a real engine: measured in it, replayed, chosen, proven."""

import argparse
from pathlib import Path

from nearfree.cli.common import OFFLINE, TEXT_OR_JSON, argument, command, positive, temperature
from nearfree.cli.engine_options import engine_name, whole_list
from nearfree.errors import StoppedError


@command(
    "tune",
    argument("engine", type=engine_name, metavar="ENGINE", help="the engine, such as llama_cpp"),
    argument("--model", type=Path, metavar="FILE.gguf", help="the weights (default: shipped ones)"),
    argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help='prompts, a JSON object a line: {"prompt": "...", "kind": "code"}; every second one '
        "of a kind is held out (default: shipped ones)",
    ),
    argument(
        "--drafter",
        choices=["none", "prompt_lookup", "draft_model"],
        help="what may draft (default: prompt_lookup, or draft_model where one is given)",
    ),
    argument(
        "--draft-model", type=Path, metavar="FILE.gguf", help="a smaller model that may draft"
    ),
    argument("--threads", type=whole_list, help="CPU threads to weigh (default: 1 and all cores)"),
    argument(
        "--batch",
        type=positive,
        default=1,
        metavar="B",
        help="prompts that are decoded at once, as in a server with B slots (default: 1)",
    ),
    argument(
        "--context",
        type=positive,
        metavar="L",
        help="positions of a prompt with its output, at most (default: 1024, or the model's own)",
    ),
    argument(
        "--temperature",
        type=temperature,
        default=0.0,
        metavar="T",
        help="sample with it, each token by a number of its own (default: 0, greedy)",
    ),
    argument("--repeats", type=positive, default=3, help="runs of each setting (default: 3)"),
    OFFLINE,
    TEXT_OR_JSON,
    home=True,
)
def run_tune(args: argparse.Namespace) -> int:
    """Find out whether an engine should speculate, how, and what it wins: on your prompts.

    It measures T(N) in the engine, decodes each prompt once, replays that for every setting,
    chooses one, and runs it against the engine's default and none on prompts that were held out.

    Example: nearfree tune llama_cpp --model FILE.gguf --prompts MINE.jsonl
    """
    from nearfree.cli.tune_engine import tune

    try:
        return tune(args)
    except KeyboardInterrupt:
        raise StoppedError(
            "tuning was stopped",
            remedy="What was sealed, and every whole prompt, is kept: the same command goes on",
        ) from None
