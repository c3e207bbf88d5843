"""vLLM: `num_speculative_tokens_per_batch_size` in `--speculative-config`.

What its validator and its lookup do (`PARSERS`): entries are `[first, last, K]` with both
ends included, whole numbers, first >= 1, K >= 0; sorted by their first, they must not overlap, and
the first begins at 1. A gap and the batch sizes after the last entry keep the K before them, up to
`max_num_seqs`. Each K is cut to `num_speculative_tokens`, which must be above 0. The batch size is
the number of requests that a step schedules.
"""

import json
from collections.abc import Mapping

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.option import Engine, Option, Parser

KEY = "num_speculative_tokens_per_batch_size"
DROPPED = (
    "vLLM drops the schedule with a warning under data parallelism, and on model runner V1 for"
    " methods other than ngram, eagle, eagle3, mtp, draft_model and dflash."
)
PARSERS = (
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/v1/spec_decode/dynamic/utils.py",
        name="validate_and_normalize_dynamic_sd_schedule",
        lines=(7, 74),
        sha256="cef757932ff6dc294fe0aa920b4414330abe79396fb2a3cd75f5108c42be3225",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/v1/spec_decode/dynamic/utils.py",
        name="build_dynamic_sd_schedule_lookup",
        lines=(77, 148),
        sha256="227a6817c55f6a65a9d83d305c0c35ba57819a51cc5b5c81af9600a7cdbe4cb3",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/speculative.py",
        name="SpeculativeConfig.num_speculative_tokens",
        lines=(413, 413),
        sha256="a84f1f6bd54815d2d2f6b6715ab2152244e8de7c1bdd9f357929a8f54299e1ad",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/speculative.py",
        name="SpeculativeConfig.num_speculative_tokens_per_batch_size",
        lines=(524, 524),
        sha256="f04b8917d21fee61a2d7cc3f525e858311dad80a0eb43e36bf78fe2ecf08ef42",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/vllm.py",
        name="VllmConfig._maybe_disable_dynamic_sd_for_v1",
        lines=(1088, 1108),
        sha256="8b6f57f17e216b5c4b5b264123da6f06fe32920510849d69c91cf6715850762a",
    ),
    Parser(
        package="vllm",
        version="0.33.0",
        file="vllm/config/vllm.py",
        name="VllmConfig._maybe_disable_dynamic_sd_for_data_parallel",
        lines=(1110, 1127),
        sha256="f9697310aee77e7538d7ca8289116d9ff47719ba93f7bfe3a9eabcbafd3f7ee7",
    ),
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
        parsers=PARSERS,
    )


ENGINE = Engine(name="vllm", moe="vllm", lengths=option, parsers=PARSERS)
