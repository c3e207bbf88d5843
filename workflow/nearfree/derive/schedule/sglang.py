"""SGLang: the JSON file of `--speculative-adaptive-config`.

What its loader does (`parsers.SGLANG`): keys of digits are batch sizes, each with a non-empty list
`candidate_steps` of whole numbers >= 0; other keys are tuning for all, and at least one batch size
must be there. A batch takes the entry of the largest key that is not above it, after CUDA graphs
have padded it to a captured size. With one candidate the engine has nothing to adapt: it takes
that many steps. Adaptive steps ask for top-k 1, where K steps make K draft tokens and
`speculative_num_draft_tokens` = K + 1 positions.
"""

import json
from collections.abc import Mapping

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.option import Option
from nearfree.derive.schedule.parsers import SGLANG

DROPPED = (
    "SGLang drops the schedule with a warning for algorithms other than EAGLE and EAGLE3, and under"
    " attention data parallelism, multi-layer EAGLE, two-batch overlap and PD multiplexing."
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
        parsers=SGLANG,
    )
