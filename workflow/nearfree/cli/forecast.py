"""`nearfree predict`: N_max of a model, or the settings in which K positions are near-free."""

import argparse
from functools import partial
from pathlib import Path

from nearfree.cli.common import (
    argument,
    command,
    flag,
    in_one_thread,
    output_format,
    positive,
    tokens,
)
from nearfree.cli.deployment_options import add_answer_options, add_deployment
from nearfree.cli.serving_engine import add_engine_options


@command(
    "predict",
    partial(add_deployment, required=False),
    add_engine_options,
    add_answer_options,
    flag("--all", "also print every predictor, T(N), the modules and the constants", default=None),
    argument(
        "--positions",
        type=positive,
        metavar="K",
        help="print the batch sizes and contexts at which K positions are near-free",
    ),
    argument(
        "--accepted",
        type=tokens,
        metavar="TOKENS",
        help="measured tokens per forward, from 1 up; adds accepted / N_max to the answer",
    ),
    argument(
        "--curves",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/PLATFORM.json with T(N) of every study of config/studies.yaml, for each "
        "--platform (default: those of `here`); config.yaml names the folder as `curves`",
    ),
    output_format("csv", "json", "text", default="text", note="; csv holds T(N), one row per N"),
    answers=True,
)
def run_predict(args: argparse.Namespace) -> int:
    """Predict how many positions of a model are near-free on a platform, and what limits them.

    Prints the deployment, N_max, the module that limits it with its rule's file and lines, T(1)
    with the cost of 2 to 16 positions, memory, and the evidence. With --all it also prints the
    boundary by each predictor, T(N) / T(1) with each module's share, and the options that move
    the limit. With --positions K it prints the batch sizes and contexts at which K
    positions are near-free, and T(K) / T(1) at the others. The defaults are b = 1 and L = 4096,
    with --positions b from 1 to 256 and L from 1024 to 65536, and balanced routing. With --curves
    FOLDER it writes T(N) of all studies into one file per platform, from which the workflow can
    simulate the platform without its GPUs.

    With --engine llama_cpp it predicts the forward of a GGUF file on a CPU: N_max by the rules of
    the engine's source, the steps up to 33 rows with file and lines, and T(N) where the results
    root holds curves of the same release, threads and weight types. Only the file's header is
    read. L defaults to 64. On an NVIDIA GPU the rules answer alone.

    Example: nearfree predict --model qwen3_30b_a3b --platform h200 --batch 8 --context 16384
    --tp 2
    """
    in_one_thread()
    from nearfree.cli.answers import predict

    return predict(args)
