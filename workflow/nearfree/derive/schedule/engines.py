"""The engines that take schedules: the text of their options, and the lines that read them."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.full_graphs import LARGEST, MOST_REQUESTS, outside_full_graphs
from nearfree.derive.schedule.llama_cpp import LLAMA_CPP
from nearfree.derive.schedule.option import Option, parsers


class Engine(NamedTuple):
    """An engine that takes draft lengths by batch size, or one draft length for all.

    Parameters
    ----------
    name
        Its name on the command line.
    moe
        The backend of its MoE layers.
    lengths
        Function that writes its option from K by batch size; None for an engine that takes one K.
    largest_batch
        The largest batch size that its option covers; None for any.
    since
        The first release that reads its option as written here; None where every known release
        does.
    """

    name: str
    moe: str
    lengths: Callable[[Mapping[int, int]], Option] | None = None
    largest_batch: int | None = None
    since: str | None = None


KEY = "num_speculative_tokens_per_batch_size"
_VLLM_DROPS = (
    "vLLM drops the schedule with a warning under data parallelism, and on model runner V1 for"
    " methods other than ngram, eagle, eagle3, mtp, draft_model and dflash."
)
VLLM_PARSERS = parsers("vllm", "0.33.0", (
    ("vllm/v1/spec_decode/dynamic/utils.py", "validate_and_normalize_dynamic_sd_schedule", (7, 74),
     "cef757932ff6dc294fe0aa920b4414330abe79396fb2a3cd75f5108c42be3225"),
    ("vllm/v1/spec_decode/dynamic/utils.py", "build_dynamic_sd_schedule_lookup", (77, 148),
     "227a6817c55f6a65a9d83d305c0c35ba57819a51cc5b5c81af9600a7cdbe4cb3"),
    ("vllm/config/speculative.py", "SpeculativeConfig.num_speculative_tokens", (413, 413),
     "a84f1f6bd54815d2d2f6b6715ab2152244e8de7c1bdd9f357929a8f54299e1ad"),
    ("vllm/config/speculative.py",
     "SpeculativeConfig.num_speculative_tokens_per_batch_size", (524, 524),
     "f04b8917d21fee61a2d7cc3f525e858311dad80a0eb43e36bf78fe2ecf08ef42"),
    ("vllm/config/vllm.py", "VllmConfig._maybe_disable_dynamic_sd_for_v1", (1088, 1108),
     "8b6f57f17e216b5c4b5b264123da6f06fe32920510849d69c91cf6715850762a"),
    ("vllm/config/vllm.py", "VllmConfig._maybe_disable_dynamic_sd_for_data_parallel", (1110, 1127),
     "f9697310aee77e7538d7ca8289116d9ff47719ba93f7bfe3a9eabcbafd3f7ee7"),
    ("vllm/config/vllm.py", "VllmConfig._set_cudagraph_sizes", (2398, 2656),
     "f6c71aa0532da44e11ac5c6204bdc43e37a8322c2b8b509dee8bd4aac9e65a57"),
    ("vllm/v1/worker/gpu/cudagraph_utils.py", "CudaGraphManager._init_candidates", (256, 394),
     "c017d0137f301ae00e5e5ed0c4f208b572066b18b6d9f343929a048e374c3e42"),
))  # fmt: skip


def vllm_option(
    k_by_batch: Mapping[int, int], *, requests: int = MOST_REQUESTS, largest: int = LARGEST
) -> Option:
    """Return the keys of `--speculative-config` that hold a schedule, as one JSON object.

    vLLM's validator and lookup (the parsers) require entries `[first, last, K]` of whole numbers
    with both ends included, first >= 1 and K >= 0. Sorted by `first` they must not overlap, and the
    first one begins at 1. Batch sizes in a gap or after the last entry get the K of the entry
    before, up to `max_num_seqs`. Each K is cut to `num_speculative_tokens`, which must be above 0.
    The batch size is the number of requests that a step schedules.

    Parameters
    ----------
    k_by_batch
        K by batch size, from `schedule.draft_lengths` or `expected.best_choice`.
    requests, largest
        As in `full_graphs.outside_full_graphs`, of the GPU that serves.

    Raises
    ------
    ConfigError
        Batch 1 is missing, no K is above 0, or a number is out of range; vLLM refuses these too.
    """
    schedule = ranges(k_by_batch)
    longest = max(part.k for part in schedule)
    last = schedule[-1].last
    return Option(
        place="--speculative-config",
        text=json.dumps({"num_speculative_tokens": longest, KEY: schedule}),
        notes=(
            "Add the keys of the drafter (method, model) and leave --spec-tokens out.",
            f"Batches above {last} keep the last K, up to max_num_seqs.",
            _VLLM_DROPS,
            *_graph_notes(k_by_batch, requests, largest),
        ),
        parsers=VLLM_PARSERS,
    )


def _graph_notes(k_by_batch: Mapping[int, int], requests: int, largest: int) -> Iterator[str]:
    """Yield a note of the batch sizes whose steps leave the full graphs, if any do."""
    k_by_batch_size = {
        batch: part.k for part in ranges(k_by_batch) for batch in range(part.first, part.last + 1)
    }
    batches = outside_full_graphs(k_by_batch_size, requests=requests, largest=largest)
    if batches:
        listed = [
            *map(str, batches[:_LISTED_BATCHES]),
            *(["..."] if batches[_LISTED_BATCHES:] else []),
        ]
        yield (
            f"{len(batches)} of {len(k_by_batch_size)} batch sizes ({', '.join(listed)}) leave the "
            "full graphs of model runner V2, as the next captured count is another K's; where each "
            "K + 1 is a power of two none does."
        )


_LISTED_BATCHES = 8
_SGLANG_DROPS = (
    "SGLang drops the schedule with a warning for algorithms other than EAGLE and EAGLE3, and under"
    " attention data parallelism, multi-layer EAGLE, two-batch overlap and PD multiplexing."
)
SGLANG_PARSERS = parsers("sglang", "0.5.23", (
    ("sglang/srt/speculative/adaptive_spec_params.py", "_load_adaptive_config", (103, 139),
     "7e926ef54fc00034ccd07fb0676baa053a9cb3fb25e7b55305d6d336433c5148"),
    ("sglang/srt/speculative/adaptive_spec_params.py", "adaptive_unsupported_reason", (56, 100),
     "2e315677f2a59b43fbb84d0a605668100e63658e91a9b159a46d18bdce418478"),
    ("sglang/srt/speculative/adaptive_spec_params.py", "AdaptiveStepSlot", (153, 272),
     "97b247a052aef801ea9fd3ae41dbd9877f21732f3d1d4f576248f79597c8b7ea"),
    ("sglang/srt/speculative/adaptive_spec_params.py", "AdaptiveSpeculativeParams", (275, 358),
     "2f60eeebe94ab6e63b464176de8def20d565f1dadc540dd0035240de4f6cfa72"),
    ("sglang/srt/arg_groups/speculative_hook.py", "_init_adaptive_speculative_params", (1392, 1427),
     "71f4c15ae339fea542f5007bb410f461fad524765b23c7c5fd1fce0f6455cd48"),
))  # fmt: skip

_SGLANG_MAX_REQUESTS = 48
_MAX_REQUESTS_NOTE = (
    f"Give --max-running-requests {{}}: without it SGLang runs at most {_SGLANG_MAX_REQUESTS} "
    "requests under speculation."
)
"""sglang 0.5.23, sglang/srt/arg_groups/speculative_hook.py:1086-1094."""


def sglang_option(k_by_batch: Mapping[int, int]) -> Option:
    """Return the file that holds a schedule, with one candidate K per range of batch sizes.

    SGLang's loader (the parsers) reads keys of digits as batch sizes, each with a non-empty list
    `candidate_steps` of whole numbers >= 0. Other keys are settings for all batch sizes, and at
    least one batch size is required. A batch uses the entry of the largest key that is not above
    it; where `--cuda-graph-bs-decode` names captured sizes, the size that the batch is padded to
    counts instead (speculative/eagle_worker_v2.py:1412). With one candidate the engine has nothing
    to adapt and takes that many steps. Adaptive steps require top-k 1, where K steps make K draft
    tokens and `speculative_num_draft_tokens` = K + 1 positions. `k_by_batch` is as in
    `vllm_option`. Raises ConfigError if batch 1 is missing, no K is above 0, or a number is out of
    range.
    """
    schedule = ranges(k_by_batch)
    last = schedule[-1].last
    steps = ", ".join(map(str, sorted({part.k for part in schedule})))
    return Option(
        place="the file that --speculative-adaptive-config names",
        text=json.dumps({str(part.first): {"candidate_steps": [part.k]} for part in schedule}),
        notes=(
            "Give --speculative-adaptive, and --speculative-eagle-topk 1 or none.",
            f"--speculative-num-steps must be left out or one of {steps}.",
            *([_MAX_REQUESTS_NOTE.format(last)] if last > _SGLANG_MAX_REQUESTS else []),
            f"Batches above {last} keep the last K.",
            "Every distinct K has CUDA graphs of its own, and takes memory for them.",
            _SGLANG_DROPS,
        ),
        parsers=SGLANG_PARSERS,
    )


_VLLM_READS = "0.24.0"
"""Its vllm/v1/spec_decode/dynamic/utils.py is the file of the parsers; vllm/config/speculative.py
of 0.20.2, 0.22.0 and 0.23.0 has no such key."""
_SGLANG_READS = "0.5.13"
"""The first release whose `_load_adaptive_config` reads entries by batch size; K = 0 is read from
0.5.14 on. 0.5.11 and 0.5.12 read one list of steps for all batch sizes and ignore other keys;
0.5.10 has no such file."""

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(name="vllm", moe="vllm", lengths=vllm_option, since=_VLLM_READS),
        Engine(name="sglang", moe="sglang", lengths=sglang_option, since=_SGLANG_READS),
        Engine(name=LLAMA_CPP, moe="vllm", largest_batch=1),
    )
}
"""The engines by their name on the command line."""
BY_LENGTHS = {name: engine.lengths for name, engine in ENGINES.items() if engine.lengths}
"""The functions that write an option, by engine that takes draft lengths by batch size."""


def drop_reason(engine: str, groups: int) -> str | None:
    """Return the reason why an engine ignores every schedule; None where it does not.

    `engine` is a name of ENGINES; `groups` is the degree of data parallelism of attention: above 1
    both engines that take draft lengths by batch size run one K (the parsers).
    """
    if groups == 1 or ENGINES[engine].lengths is None:
        return None
    return f"{engine} drops a schedule under data parallelism, and {groups} groups are asked about"
