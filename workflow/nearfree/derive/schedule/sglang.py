"""SGLang: the JSON file of `--speculative-adaptive-config`.

What its loader does (`PARSERS`): keys of digits are batch sizes, each with a non-empty list
`candidate_steps` of whole numbers >= 0; other keys are tuning for all, and at least one batch size
must be there. A batch takes the entry of the largest key that is not above it, after CUDA graphs
have padded it to a captured size. With one candidate the engine has nothing to adapt: it takes
that many steps. Adaptive steps ask for top-k 1, where K steps make K draft tokens and
`speculative_num_draft_tokens` = K + 1 positions.
"""

import json
from collections.abc import Mapping

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.option import Engine, Option, Parser

DROPPED = (
    "SGLang drops the schedule with a warning for algorithms other than EAGLE and EAGLE3, and under"
    " attention data parallelism, multi-layer EAGLE, two-batch overlap and PD multiplexing."
)
PARSERS = (
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="_load_adaptive_config",
        lines=(103, 139),
        sha256="7e926ef54fc00034ccd07fb0676baa053a9cb3fb25e7b55305d6d336433c5148",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="adaptive_unsupported_reason",
        lines=(56, 100),
        sha256="2e315677f2a59b43fbb84d0a605668100e63658e91a9b159a46d18bdce418478",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="AdaptiveStepSlot",
        lines=(153, 272),
        sha256="97b247a052aef801ea9fd3ae41dbd9877f21732f3d1d4f576248f79597c8b7ea",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/speculative/adaptive_spec_params.py",
        name="AdaptiveSpeculativeParams",
        lines=(275, 358),
        sha256="2f60eeebe94ab6e63b464176de8def20d565f1dadc540dd0035240de4f6cfa72",
    ),
    Parser(
        package="sglang",
        version="0.5.23",
        file="sglang/srt/arg_groups/speculative_hook.py",
        name="_init_adaptive_speculative_params",
        lines=(1392, 1427),
        sha256="71f4c15ae339fea542f5007bb410f461fad524765b23c7c5fd1fce0f6455cd48",
    ),
)


def option(k_by_batch: Mapping[int, int]) -> Option:
    """Return the file that holds a schedule: one candidate for each range of batch sizes.

    Parameters
    ----------
    k_by_batch
        K by batch size, from `schedule.draft_lengths` or `expected.best_lengths`.

    Raises
    ------
    ConfigError
        Batch 1 is missing, no K is above 0, or a number is out of range.
    """
    schedule = ranges(k_by_batch)
    steps = ", ".join(map(str, sorted({part.k for part in schedule})))
    return Option(
        place="the file that --speculative-adaptive-config names",
        text=json.dumps({str(part.first): {"candidate_steps": [part.k]} for part in schedule}),
        notes=(
            "Give --speculative-adaptive, and --speculative-eagle-topk 1 or none.",
            f"--speculative-num-steps must be left out or one of {steps}.",
            f"Batches above {schedule[-1].last} keep the last K.",
            "Every distinct K has CUDA graphs of its own, and takes memory for them.",
            DROPPED,
        ),
        parsers=PARSERS,
    )


ENGINE = Engine(name="sglang", moe="sglang", lengths=option, parsers=PARSERS)
