"""vLLM: `num_speculative_tokens_per_batch_size` in `--speculative-config`.

What its validator and its lookup do (`parsers.VLLM`): entries are `[first, last, K]` with both
ends included, whole numbers, first >= 1, K >= 0; sorted by their first, they must not overlap, and
the first begins at 1. A gap and the batch sizes after the last entry keep the K before them, up to
`max_num_seqs`. Each K is cut to `num_speculative_tokens`, which must be above 0. The batch size is
the number of requests that a step schedules.
"""

import json
from collections.abc import Mapping

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.option import Option
from nearfree.derive.schedule.parsers import VLLM

KEY = "num_speculative_tokens_per_batch_size"
DROPPED = (
    "vLLM drops the schedule with a warning under data parallelism, and on model runner V1 for"
    " methods other than ngram, eagle, eagle3, mtp, draft_model and dflash."
)


def option(k_by_batch: Mapping[int, int]) -> Option:
    """Return the keys of `--speculative-config` that hold a schedule, as one JSON object.

    Parameters
    ----------
    k_by_batch
        K by batch size, from `schedule.draft_lengths` or `expected.best_lengths`.

    Raises
    ------
    ConfigError
        Batch 1 is missing, no K is above 0, or a number is out of range; vLLM refuses these too.
    """
    schedule = ranges(k_by_batch)
    most = max(part.k for part in schedule)
    last = schedule[-1].last
    return Option(
        place="--speculative-config",
        text=json.dumps({"num_speculative_tokens": most, KEY: schedule}),
        notes=(
            "Add the keys of the drafter (method, model) and leave --spec-tokens out.",
            f"Batches above {last} keep the last K, up to max_num_seqs.",
            DROPPED,
        ),
        parsers=VLLM,
    )
