"""In what serving engines differ where they spread a model over GPUs."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from nearfree.core.parallel import Parallel

EngineName = Literal["vllm", "sglang", "trtllm"]
PADDING = 64
"""Rows of the embedding and the LM head are padded to its multiple.
Source: vllm 0.33.0, vllm/model_executor/layers/vocab_parallel_embedding.py:36 and 95-97; sglang
0.5.23, sglang/srt/layers/vocab_parallel_embedding.py:48 and 57-59."""


def before_the_last(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage: a rest lies on stages before the last.

    Source: get_pp_indices of vllm 0.33.0, vllm/distributed/utils.py:225-230.
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (2 <= stages - stage <= rest + 1) for stage in range(stages))


def at_the_last(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage: a rest lies on the last stages.

    Source: get_pp_indices of sglang 0.5.23, sglang/srt/distributed/utils.py:137-148.
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (stage >= stages - rest) for stage in range(stages))


def at_the_first(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage: a rest lies on the first stages.

    Source: Mapping.pp_layers of NVIDIA/TensorRT-LLM at 05ebebb, tensorrt_llm/mapping.py.
    """
    each, rest = divmod(layers, stages)
    return tuple(each + (stage < rest) for stage in range(stages))


class Beside(NamedTuple):
    """Shared experts that run on a stream of their own, beside the router and routed experts.

    From the release `first` on, for steps of up to `most_tokens` tokens, None for all.
    """

    first: str
    most_tokens: int | None


class Engine(NamedTuple):
    """How an engine spreads a model over the ranks of tensor and data parallel groups.

    `over_all` holds where the FFN, the shared experts and the LM head are cut over all tp x dp
    ranks, which see the requests of all groups; else over the tp ranks of a group, which see its
    own. `pads` holds where a vocabulary is padded until it can be cut, `parts_experts` where ep may
    be any divisor of tp x dp, `uneven` where ep need not divide the experts, and `whole_blocks`
    where the parts of query, key, value, gate and up must be whole blocks of quantisation.
    `beside` says when shared experts run beside the others, None where they do not.
    """

    name: EngineName
    layers: Callable[[int, int], tuple[int, ...]]
    over_all: bool
    pads: bool
    parts_experts: bool
    uneven: bool
    whole_blocks: bool
    beside: Beside | None = None

    def ranks(self, parallel: Parallel) -> int:
        """Return among how many ranks the FFN, the shared experts and the LM head are cut."""
        return parallel.ranks if self.over_all else parallel.tp

    def groups(self, parallel: Parallel) -> int:
        """Return among how many groups requests are parted there."""
        return 1 if self.over_all else parallel.dp

    def padded(self, vocabulary: int, ranks: int) -> int:
        """Return the rows of the embedding or the LM head with those that only fill it up.

        Source: sglang/srt/layers/vocab_parallel_embedding.py:273-274 of sglang 0.5.23, where the
        padding grows with the ranks.
        """
        rows = -(-vocabulary // PADDING) * PADDING
        if self.pads and rows % ranks:
            return -(-vocabulary // (PADDING * ranks)) * PADDING * ranks
        return rows


VLLM = Engine(
    name="vllm",
    layers=before_the_last,
    over_all=False,
    pads=False,
    parts_experts=False,
    uneven=True,
    whole_blocks=False,
    beside=Beside(first="0.14.0", most_tokens=256),
)
"""Source: vllm 0.33.0, in vllm/model_executor: layers/fused_moe/config.py:1198-1245 (each dp group
has its own matrices; experts are cut over all ranks, or each rank has whole ones),
layers/fused_moe/expert_map_manager.py:66-69 (experts that ep does not divide),
layers/vocab_parallel_embedding.py:304-306 (a vocabulary that tp must divide), layers/linear.py:562
(parts of merged matrices that are no whole blocks). Shared experts: vllm/envs.py:250 of 0.14.0, the
oldest of the releases read that has it, and layers/fused_moe/runner/shared_experts.py of 0.20.2,
SharedExperts._determine_shared_experts_order."""
SGLANG = Engine(
    name="sglang",
    layers=at_the_last,
    over_all=True,
    pads=True,
    parts_experts=True,
    uneven=False,
    whole_blocks=True,
    beside=Beside(first="0.5.9", most_tokens=None),
)
"""Without an all-to-all backend and with its defaults, under which tokens of all groups are
gathered before the FFN. Source: sglang 0.5.23, in sglang/srt: runtime_context.py:73-76 and 142-157
(attention takes what dp leaves of all ranks; moe_tp is what ep leaves), models/qwen2_moe.py:355-384
(shared experts), models/glm4_moe.py:745-752 (Dense FFN), layers/logits_processor.py:469 (LM head),
layers/moe/fused_moe_triton/layer.py:414 (experts that ep must divide),
layers/quantization/fp8.py:595-609. Shared experts in captured graphs: models/deepseek_v2.py:569-580
of 0.5.9."""
TRTLLM = Engine(
    name="trtllm",
    layers=at_the_first,
    over_all=False,
    pads=False,
    parts_experts=True,
    uneven=False,
    whole_blocks=False,
    beside=Beside(first="1.0.0", most_tokens=None),
)
"""Source: NVIDIA/TensorRT-LLM at 05ebebb, tensorrt_llm/mapping.py: tp of the experts is
moe_tp_size x moe_ep_size, and a rank has experts // moe_ep_size of them; _torch/models/
modeling_deepseekv3.py, Deepseekv3MoE.forward (shared experts on an auxiliary stream). How it pads a
vocabulary and parts what shares a scale was not read."""
ENGINES: Mapping[str, Engine] = {each.name: each for each in (VLLM, SGLANG, TRTLLM)}


def engine_of(moe: str | None) -> Engine:
    """Return the engine whose experts' kernels are named, vLLM where it is none."""
    return ENGINES.get(moe or "", VLLM)
