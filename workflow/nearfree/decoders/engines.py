"""In what serving engines differ where they spread a model over GPUs."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype

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
    `beside` says when shared experts run beside the others. `in_parts` are the kinds of models of
    whose rows each rank of a group makes its part ready for experts that are whole on ranks, with
    all of the router and of the shared experts; in `one_stage` are those of them that do so without
    pipeline stages alone. `windowed` are the kinds of models whose windows end the growth of their
    cache, None for all. From the compute capability `narrow_latents` on, 100 for 10.0, a cache of
    latents of which some are selected is in float8 where nobody says otherwise, None if it never
    is. What layers keep of a request in place of a cache is in `states` where its file does not say
    in what, None for the element type. Of the kinds of models in `gathers` each rank of a group
    gathers all queries and keys, whose norm is as wide as these. Layers of those in `joins` add up
    what attention and the FFN give, and sum that over ranks at once, from a release on; of layers
    with shared experts only where it `joins_shared`. `stages_inside` holds where the stages of one
    dp group are neighbours, else the groups of one stage are; `lone_groups` where each dp group of
    a model with experts is a single rank.
    """

    name: EngineName
    layers: Callable[[int, int], tuple[int, ...]]
    over_all: bool
    pads: bool
    parts_experts: bool
    uneven: bool
    whole_blocks: bool
    beside: Beside
    in_parts: frozenset[str] = frozenset()
    one_stage: frozenset[str] = frozenset()
    windowed: frozenset[str] | None = None
    narrow_latents: int | None = None
    states: Dtype | None = None
    gathers: frozenset[str] = frozenset()
    joins: tuple[tuple[str, str], ...] = ()
    joins_shared: bool = False
    stages_inside: bool = False
    lone_groups: bool = False

    def parts_rows(self, parallel: Parallel, model_type: str) -> bool:
        """Return whether each rank of a group makes its part of the rows ready for experts."""
        several = min(parallel.tp, parallel.dp, parallel.ep) > 1
        stages = parallel.pp > 1 and model_type in self.one_stage
        return several and not stages and model_type in self.in_parts

    def keeps_windows(self, model_type: str) -> bool:
        """Return whether windows end the growth of a model's cache."""
        return self.windowed is None or model_type in self.windowed

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


_V4 = frozenset({"deepseek_v4", "deepseek_ref"})
_OLMO = frozenset({"olmo2", "olmo3"})
VLLM = Engine(
    name="vllm",
    layers=before_the_last,
    over_all=False,
    pads=False,
    parts_experts=False,
    uneven=True,
    whole_blocks=False,
    beside=Beside(first="0.14.0", most_tokens=256),
    in_parts=_V4 | {
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "mistral4",
        "kimi_linear", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_moe_text",
        "nemotron_h", "llama4_text", "gpt_oss", "granitemoe", "mimo_v2_flash", "axk1",
    },
    one_stage=_V4 | {"kimi_linear"},
    gathers=_OLMO | {"olmoe"},
    joins=(("cohere", "0.29.0"), ("cohere2", "0.29.0"), ("cohere2_moe", "0.33.0")),
    stages_inside=True,
)  # fmt: skip
"""Source: vllm 0.33.0, in vllm/model_executor: layers/fused_moe/config.py:1198-1245 (each dp group
has its own matrices; experts are cut over all ranks, or each rank has whole ones),
layers/fused_moe/expert_map_manager.py:66-69 (experts that ep does not divide),
layers/vocab_parallel_embedding.py:304-306 (a vocabulary that tp must divide), layers/linear.py:562
(parts of merged matrices that are no whole blocks). Shared experts: vllm/envs.py:250 of 0.14.0, the
oldest of the releases read that has it, and layers/fused_moe/runner/shared_experts.py of 0.20.2,
SharedExperts._determine_shared_experts_order. Rows in parts: use_sequence_parallel_moe of
vllm/config/parallel.py:768-785, and the models that ask it, in vllm/model_executor/models
(deepseek_v2.py:312 and 252-275, qwen3_moe.py:152, qwen3_next.py:150, qwen2_moe.py:85-105,
nemotron_h.py:157 and 101-123, llama4.py:95 and 115, gpt_oss.py:372, granitemoe.py:271,
mimo_v2.py:136, AXK1.py:135) and vllm/models (deepseek_v4/nvidia/model.py:571-581 and 140-170,
kimi_k3/nvidia/model.py:709-714). Queries and keys: _apply_qk_norm of olmo2.py and olmoe.py. One
sum: CohereDecoderLayer of commandr.py of 0.29.0, which 0.28.0 has not, and
cohere2_moe.py:348-370 and 580-596, which 0.32.0 has not. Order of ranks:
initialize_model_parallel of vllm/distributed/parallel_state.py (dp x pp x tp)."""
SGLANG = Engine(
    name="sglang",
    layers=at_the_last,
    over_all=True,
    pads=True,
    parts_experts=True,
    uneven=False,
    whole_blocks=True,
    beside=Beside(first="0.5.9", most_tokens=None),
    windowed=_V4
    | {
        "llama4_text",
        "gpt_oss",
        "mimo_v2_flash",
        "step3p5",
        "gemma4_text",
        "laguna",
        "mellum",
        "granite_swa",
        "granitemoe_swa",
        "beam",
        "muse_glimmer_text",
        "spark2_5",
    },
    narrow_latents=100,
    states="float32",
    gathers=_OLMO,
    joins=(("cohere2_moe", "0.5.23"),),
    joins_shared=True,
)
"""Without an all-to-all backend and with its defaults, under which tokens of all groups are
gathered before the FFN. Source: sglang 0.5.23, in sglang/srt: runtime_context.py:73-76 and 142-157
(attention takes what dp leaves of all ranks; moe_tp is what ep leaves), models/qwen2_moe.py:355-384
(shared experts), models/glm4_moe.py:745-752 (Dense FFN), layers/logits_processor.py:469 (LM head),
layers/moe/fused_moe_triton/layer.py:414 (experts that ep must divide),
layers/quantization/fp8.py:595-609. Shared experts in captured graphs: models/deepseek_v2.py:569-580
of 0.5.9. Windows: is_hybrid_swa_model of configs/model_config.py:2651-2700, and
configs/spark2_5.py:66. Latents: arg_groups/overrides.py:490-546, and server_args.py:1142 of 0.5.9.
States: configs/mamba_utils.py:47-112. Queries and keys: models/olmo2.py,
Olmo2Attention._apply_qk_norm. One sum: models/cohere2_moe.py:420-454. Order of ranks:
initialize_model_parallel of distributed/parallel_state.py (pp x dp x tp)."""
TRTLLM = Engine(
    name="trtllm",
    layers=at_the_first,
    over_all=False,
    pads=False,
    parts_experts=True,
    uneven=False,
    whole_blocks=False,
    beside=Beside(first="1.0.0", most_tokens=None),
    lone_groups=True,
)
"""Source: NVIDIA/TensorRT-LLM at 05ebebb, tensorrt_llm/mapping.py: tp of the experts is
moe_tp_size x moe_ep_size, and a rank has experts // moe_ep_size of them; _torch/models/
modeling_deepseekv3.py, Deepseekv3MoE.forward (shared experts on an auxiliary stream), and
_torch/modules/attention.py (tp is 1 where enable_attention_dp is set). How it pads a
vocabulary and parts what shares a scale was not read."""
FUSED = {
    **dict.fromkeys(("deepseek_v3", "glm_moe_dsa"), ("0.5.9", 256)),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text", "glm4_moe_lite"), ("0.5.9", None)),
    "qwen3_next": ("0.5.14", None),
}
"""Kinds of models whose one shared expert SGLang runs as one more of the routed ones, which every
token takes, where these are not spread by ep, are stored alike and run by no kernel of FlashInfer's
TRTLLM; the oldest release read that does so, and of how many routed experts alone, if not of any.
Source: sglang 0.5.23, in sglang/srt: models/deepseek_v2.py:3325-3400 (of 384 Kimi's in Quark's
format; DeepSeek V3.2 has another architecture), glm4_moe.py:1012-1037 and 1284,
glm4v_moe.py:87-107, glm4_moe_lite.py:732-750, qwen3_next.py:556 with qwen2_moe.py:137-168, and
arg_groups/overrides.py:1526-1553 (TRTLLM); deepseek_v2.py:2853-2895 of 0.5.9."""
ENGINES: Mapping[str, Engine] = {each.name: each for each in (VLLM, SGLANG, TRTLLM)}


def engine_of(moe: str | None) -> Engine:
    """Return the engine whose experts' kernels are named, vLLM where it is none."""
    return ENGINES.get(moe or "", VLLM)
