"""`nearfree tune`: measure an engine, choose a drafting setting by replay, and prove it."""

import argparse
from pathlib import Path

from nearfree.cli.common import OFFLINE, TEXT_OR_JSON, argument, command, positive, temperature
from nearfree.cli.engine_options import engine_name, int_list
from nearfree.errors import StoppedError


@command(
    "tune",
    argument("engine", type=engine_name, metavar="ENGINE", help="the engine, such as llama_cpp"),
    argument(
        "--model",
        type=Path,
        metavar="FILE.gguf",
        help="the weights (default: those of the engine's first study)",
    ),
    argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help='prompts, one JSON object per line: {"prompt": "...", "kind": "code"}; every second '
        "prompt of a kind is held out (default: the package's)",
    ),
    argument(
        "--drafter",
        choices=["none", "prompt_lookup", "draft_model"],
        help="the drafter to consider (default: prompt_lookup, or draft_model with --draft-model)",
    ),
    argument(
        "--draft-model", type=Path, metavar="FILE.gguf", help="a smaller model as the drafter"
    ),
    argument("--threads", type=int_list, help="CPU threads to consider (default: 1 and all cores)"),
    argument(
        "--batch",
        type=positive,
        default=1,
        metavar="B",
        help="prompts decoded at once, as in a server with B slots (default: 1)",
    ),
    argument(
        "--context",
        type=positive,
        metavar="L",
        help="most positions of a prompt with its output (default: 1024, or the model's if fewer)",
    ),
    argument(
        "--temperature",
        type=temperature,
        default=0.0,
        metavar="T",
        help="sampling temperature; each token has its own random number (default: 0, greedy)",
    ),
    argument("--repeats", type=positive, default=3, help="runs of each setting (default: 3)"),
    OFFLINE,
    TEXT_OR_JSON,
    home=True,
)
def run_tune(args: argparse.Namespace) -> int:
    """Find out whether and how an engine should speculate on your prompts, and the speedup.

    It measures T(N) in the engine, decodes each tuning prompt once without drafts, replays the
    outputs under every candidate setting, and chooses the fastest. On the held-out prompts it then
    runs the choice against the engine's default and against no drafts.

    Example: nearfree tune llama_cpp --model FILE.gguf --prompts MINE.jsonl
    """
    from nearfree.cli.tune_engine import tune

    try:
        return tune(args)
    except KeyboardInterrupt:
        raise StoppedError(
            "tuning was stopped",
            remedy="Sealed takes and complete prompts are kept: the same command continues",
        ) from None
