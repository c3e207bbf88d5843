"""Warnings of a schedule: a drafter that does not fit, a release that does not read the option."""

from collections.abc import Iterable, Iterator

from msgspec import UNSET
from packaging.version import Version

from nearfree.backends.names import BackendRelease
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.model_file import ModelFile
from nearfree.decoders.ranks.engines import engine_of
from nearfree.decoders.state_kinds import State
from nearfree.derive.memory import needs
from nearfree.derive.schedule.engines import ENGINES
from nearfree.units import BYTES_PER_GB

_NO_LAYER = (
    "'s file names no layer of its own for further tokens (num_nextn_predict_layers and the "
    "like): this is what one like its last layer would cost"
)
_TRANSLATED = "tokens have to be translated, and fewer drafts are accepted"
_REFUSED = (
    "vLLM refuses such a draft model unless it is told to translate tokens "
    "(use_heterogeneous_vocab)"
)
"""Source: vllm-project/vllm at 0052a5b8, vllm/config/speculative.py,
verify_equal_vocab_size_if_draft_model."""
_STANDALONE = (
    "sglang drops the schedule of a draft model, which is its algorithm STANDALONE: it drafts "
    "--speculative-num-steps at any batch size"
)
"""Source: adaptive_unsupported_reason of `engines.SGLANG_PARSERS`."""
_ALL_CACHED = (
    "vllm caches all positions of layers that see a chunk of them where a head drafts: the largest "
    "batch and context that fit are fewer than those of the model alone"
)
"""Source: vllm 0.33.0, vllm/config/vllm.py:2235-2245."""


def drafter_warnings(engine: str, model: ModelFile, drafter: ModelFile | None) -> Iterator[str]:
    """Yield warnings about the drafter of a schedule.

    The drafter is a model or a head; None where the model's own layer drafts.
    """
    if drafter is None:
        if not model.drafts:
            yield model.name + _NO_LAYER
        return
    target, draft_decoder = model.decoder, drafter.decoder
    if target is None or draft_decoder is None:
        return
    if draft_decoder.states is not UNSET:
        chunked = any(isinstance(kind, Grouped) and kind.chunk for kind in target.attention)
        if engine == "vllm" and chunked:
            yield _ALL_CACHED
        if drafter.vocabulary not in (0, target.vocabulary):
            yield (
                f"{drafter.name} is the head of a model of {drafter.vocabulary:,} tokens, and "
                f"{model.name} has {target.vocabulary:,}: it was not trained on its states"
            )
        return
    if engine == "sglang":
        yield _STANDALONE
    if target.vocabulary != draft_decoder.vocabulary:
        yield (
            f"{drafter.name} has {draft_decoder.vocabulary:,} tokens and {model.name} "
            f"{target.vocabulary:,}: {_REFUSED if engine == 'vllm' else _TRANSLATED}"
        )


_STATE_COUNTS = {"vllm": "K + 1 (up to K + 2 where it caches prefixes)", "sglang": "K + 2"}
"""States per request that an engine keeps to verify K drafts. Source: vllm 0.33.0,
vllm/model_executor/layers/mamba/abstract.py:83-90 with MambaSpec.max_memory_usage_bytes of
vllm/v1/kv_cache_interface.py; sglang 0.5.23, sglang/srt/mem_cache/memory_pool.py:880-895."""


def state_warnings(engine: str, model: ModelFile) -> Iterator[str]:
    """Yield a warning where a drafting engine keeps more states per request than memory counts."""
    decoder, model_needs = model.decoder, needs(model, None)
    if engine not in _STATE_COUNTS or decoder is None or model_needs is None:
        return
    if any(isinstance(kind, State) for kind in decoder.attention):
        size = model_needs.state_bytes(engine_of(engine), 1) / BYTES_PER_GB
        yield (
            f"memory counts one state of a request, {size:.2g} GB on all GPUs together: {engine} "
            f"keeps {_STATE_COUNTS[engine]} of them with K drafts, so that fewer requests fit than "
            "here"
        )


def release_warnings(engine: str, served: Iterable[BackendRelease]) -> Iterator[str]:
    """Yield a warning for each serving release, or other engine, that does not read the option.

    Of llama.cpp, whose steps are never timed, its option says so (`llama_cpp.py`). `engine` is a
    name of ENGINES; `served` are releases that run the steps, or whose graphs the steps are padded
    to. Without a version any release may be meant.
    """
    since, others = ENGINES[engine].since, set()
    for release in dict.fromkeys(served):
        if release.name != engine:
            others.add(release.name)
        elif since and release.version and Version(release.version) < Version(since):
            yield (
                f"{release} does not read this option, which {engine} has from {since} on: "
                "until then it drafts one K at all batch sizes"
            )
    if ENGINES[engine].lengths is not None:
        for other in sorted(others):
            yield (
                f"T(N) is of steps as {other} runs them, while {engine} reads this option: "
                f"leave --moe and --graphs out, or name {engine} by them"
            )
