"""How serving engines differ in spreading a model over GPUs."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from nearfree.backends.names import is_since
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype

EngineName = Literal["vllm", "sglang", "trtllm"]
Remainder = Literal["before_last", "last", "first"]
PADDING = 64
"""Rows of the embedding and the LM head are padded to a multiple of this.
Source: vllm 0.33.0, vllm/model_executor/layers/vocab_parallel_embedding.py:36 and 95-97; sglang
0.5.23, sglang/srt/layers/vocab_parallel_embedding.py:48 and 57-59."""


class SharedStream(NamedTuple):
    """When shared experts run on a CUDA stream of their own, in parallel with routed experts.

    They do from the release `first` on, in steps of up to `most_tokens` tokens (None: of any size).
    """

    first: str
    most_tokens: int | None


class NormFusion(NamedTuple):
    """Which all-reduces an engine fuses with the norm after them, by FlashInfer's kernels.

    It does so from the release `first` on, and for the model types of `since` from their own
    releases on (None: for all but those of `without`); with data parallel groups from `groups`
    and with pipeline stages from `stages` on (None: never).
    """

    first: str
    since: tuple[tuple[str, str], ...] | None = None
    without: frozenset[str] = frozenset()
    groups: str | None = None
    stages: str | None = None


class Engine(NamedTuple):
    """How an engine spreads a model over the ranks of tensor and data parallel groups.

    Fields that hold model types do so by `model_type`.

    Parameters
    ----------
    remainder
        The pipeline stages that take the remainder if their number does not divide the layers:
        those just before the last, the last or the first ones.
    over_all
        Whether the FFN, the shared experts and the LM head are sharded over all tp x dp ranks, each
        of which sees the requests of all groups. Otherwise they are sharded over the tp ranks of a
        group, which see only the group's requests.
    pads
        Whether a vocabulary is padded until the ranks divide it.
    any_ep
        Whether ep may be any divisor of tp x dp, not only 1 or tp x dp.
    uneven_experts
        Whether ep need not divide the number of experts.
    whole_blocks
        Whether shards of query, key, value, gate and up must be whole blocks of quantisation.
    beside
        When shared experts run in parallel with the routed ones.
    sequence_parallel
        Model types whose rows are divided among the ranks of a group before the experts. Each rank
        then runs the whole router and the whole shared experts on its part, and experts are whole.
    sequence_parallel_one_stage
        Those of them that do so only without pipeline stages.
    bounded_caches
        Model types whose cache stops growing at the attention window; None for all.
    narrow_latents
        The compute capability, 100 for 10.0, from which on a cache of latents with selection is in
        float8 by default; None if it never is.
    state_dtype
        The dtype of states for which a file gives none; None for the model's dtype.
    gathers
        Model types whose norm of queries and keys spans all heads, so that each rank of a group
        gathers all queries and keys.
    joint_sums
        Model types, each with the first release, whose layers add the outputs of attention and FFN
        and all-reduce the sum once.
    joint_sums_with_shared
        Whether that includes layers with shared experts.
    stages_inside
        Whether the stages of one dp group are neighbouring ranks; otherwise the dp groups of one
        stage are.
    lone_groups
        Whether each dp group of a model with experts is a single rank.
    norm_fusion
        Which all-reduces of a layer are fused with the norm after them; None: none that is known.
    """

    name: EngineName
    remainder: Remainder
    over_all: bool
    pads: bool
    any_ep: bool
    uneven_experts: bool
    whole_blocks: bool
    beside: SharedStream
    sequence_parallel: frozenset[str] = frozenset()
    sequence_parallel_one_stage: frozenset[str] = frozenset()
    bounded_caches: frozenset[str] | None = None
    narrow_latents: int | None = None
    state_dtype: Dtype | None = None
    gathers: frozenset[str] = frozenset()
    joint_sums: tuple[tuple[str, str], ...] = ()
    joint_sums_with_shared: bool = False
    stages_inside: bool = False
    lone_groups: bool = False
    norm_fusion: NormFusion | None = None

    def layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Return the number of layers of each pipeline stage."""
        quotient, rest = divmod(layers, stages)
        starts = {"before_last": stages - 1 - rest, "last": stages - rest, "first": 0}
        taking = range(starts[self.remainder], starts[self.remainder] + rest)
        return tuple(quotient + (stage in taking) for stage in range(stages))

    def uses_sequence_parallel(self, parallel: Parallel, model_type: str) -> bool:
        """Return whether rows are divided among the ranks of a group before the experts."""
        is_parallel = min(parallel.tp, parallel.dp, parallel.ep) > 1
        excluded = parallel.pp > 1 and model_type in self.sequence_parallel_one_stage
        return is_parallel and not excluded and model_type in self.sequence_parallel

    def fuses_norms(self, version: str | None, parallel: Parallel, model_type: str) -> bool:
        """Return whether a release fuses a layer's all-reduces with the norms after them.

        Without a version it is the newest release.
        """
        rule = self.norm_fusion
        if rule is None or model_type in rule.without:
            return False
        needed: list[str | None] = [rule.first]
        if rule.since is not None:
            needed.append(dict(rule.since).get(model_type))
        if parallel.dp > 1:
            needed.append(rule.groups)
        if parallel.pp > 1:
            needed.append(rule.stages)
        return all(first is not None and is_since(version, first) for first in needed)

    def bounds_cache(self, model_type: str) -> bool:
        """Return whether a model's cache stops growing at its attention window."""
        return self.bounded_caches is None or model_type in self.bounded_caches

    def ranks(self, parallel: Parallel) -> int:
        """Return the number of ranks over which FFN, shared experts and LM head are sharded."""
        return parallel.ranks if self.over_all else parallel.tp

    def groups(self, parallel: Parallel) -> int:
        """Return the number of groups among which requests are divided in these modules."""
        return 1 if self.over_all else parallel.dp

    def padded(self, vocabulary: int, ranks: int) -> int:
        """Return the rows of the embedding or the LM head, padding included.

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
    remainder="before_last",
    over_all=False,
    pads=False,
    any_ep=False,
    uneven_experts=True,
    whole_blocks=False,
    beside=SharedStream(first="0.14.0", most_tokens=256),
    sequence_parallel=_V4 | {
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "mistral4",
        "kimi_linear", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_next", "qwen3_5_moe_text",
        "nemotron_h", "llama4_text", "gpt_oss", "granitemoe", "mimo_v2_flash", "axk1",
    },
    sequence_parallel_one_stage=_V4 | {"kimi_linear"},
    gathers=_OLMO | {"olmoe", "flex_olmo", "olmo_hybrid"},
    joint_sums=(
        ("falcon", "0.8.0"), ("cohere", "0.29.0"), ("cohere2", "0.29.0"), ("cohere2_moe", "0.33.0"),
    ),
    stages_inside=True,
    norm_fusion=NormFusion(
        first="0.17.0",
        without=frozenset({
            "bloom", "cohere", "cohere2", "cohere2_moe", "dbrx", "falcon", "gpt2", "gpt_bigcode",
            "gpt_neox", "gptj", "jais2", "mpt", "nemotron", "opt", "orion", "phi", "phimoe",
            "stablelm", "starcoder2",
        }),
        groups="0.21.0",
        stages="0.24.0",
    ),
)  # fmt: skip
"""Source: vllm 0.33.0, in vllm/model_executor: layers/fused_moe/config.py:1198-1245 (each dp group
has its own matrices; experts are sharded over all ranks, or each rank has whole ones),
layers/fused_moe/expert_map_manager.py:66-69 (experts that ep does not divide),
layers/vocab_parallel_embedding.py:304-306 (a vocabulary that tp must divide), layers/linear.py:562
(shards of merged matrices that are no whole blocks). Shared experts: vllm/envs.py:250 of 0.14.0,
the oldest of the releases read that has it, and layers/fused_moe/runner/shared_experts.py of
0.20.2, SharedExperts._determine_shared_experts_order. Sequence parallelism:
use_sequence_parallel_moe of vllm/config/parallel.py:768-785, and the models that call it, in
vllm/model_executor/models
(deepseek_v2.py:312 and 252-275, qwen3_moe.py:152, qwen3_next.py:150, qwen2_moe.py:85-105,
nemotron_h.py:157 and 101-123, llama4.py:95 and 115, gpt_oss.py:372, granitemoe.py:271,
mimo_v2.py:136, AXK1.py:135) and vllm/models (deepseek_v4/nvidia/model.py:571-581 and 140-170,
kimi_k3/nvidia/model.py:709-714). Queries and keys: _apply_qk_norm of olmo2.py and olmoe.py. Joint
sums: falcon.py:283-330 (0.8.0 is the oldest release that is read), CohereDecoderLayer of
commandr.py of 0.29.0, absent in 0.28.0, and cohere2_moe.py:348-370 and 580-596, absent in 0.32.0.
Order of ranks: initialize_model_parallel of vllm/distributed/parallel_state.py (dp x pp x tp).
Stages:
get_pp_indices of vllm/distributed/utils.py:225-230. Fused norms: enable_allreduce_rms_fusion and
OPTIMIZATION_LEVEL_02 of vllm/config/vllm.py:113 and 204 of 0.17.0 (without groups and stages), 182
of 0.33.0; 0.21.0 and 0.22.0 fuse with stages, too, 0.23.0 does not. The patterns are of RMS norms
(vllm/compilation/passes/fusion/allreduce_rms_fusion.py:349-545): models with other norms are left
out."""
SGLANG = Engine(
    name="sglang",
    remainder="last",
    over_all=True,
    pads=True,
    any_ep=True,
    uneven_experts=False,
    whole_blocks=True,
    beside=SharedStream(first="0.5.9", most_tokens=None),
    bounded_caches=_V4
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
    state_dtype="float32",
    gathers=_OLMO,
    joint_sums=(("cohere2_moe", "0.5.23"),),
    joint_sums_with_shared=True,
    norm_fusion=NormFusion(
        first="0.5.6",
        since=(
            ("deepseek_v3", "0.5.6"), ("kimi_k2", "0.5.6"), ("gpt_oss", "0.5.6"),
            ("glm4_moe", "0.5.7"), ("qwen3_moe", "0.5.7"), ("glm4_moe_lite", "0.5.8"),
            ("qwen3_5_moe_text", "0.5.10"), ("qwen3_5_text", "0.5.10"), ("deepseek_v32", "0.5.12"),
            ("glm_moe_dsa", "0.5.12"), ("qwen3_next", "0.5.12"), ("qwen3_vl_moe_text", "0.5.14"),
            ("nemotron_h", "0.5.14"), ("deepseek_v4", "0.5.23"),
        ),
        stages="0.5.6",
    ),
)  # fmt: skip
"""SGLang with its defaults and without an all-to-all backend: tokens of all groups are gathered
before the FFN. Source: sglang 0.5.23, in sglang/srt: runtime_context.py:73-76 and 142-157
(attention's tp is all ranks / dp; moe_tp is all ranks / ep), models/qwen2_moe.py:355-384
(shared experts), models/glm4_moe.py:745-752 (Dense FFN), layers/logits_processor.py:469 (LM head),
layers/moe/fused_moe_triton/layer.py:414 (experts that ep must divide),
layers/quantization/fp8.py:595-609. Shared experts in captured graphs: models/deepseek_v2.py:569-580
of 0.5.9. Windows: is_hybrid_swa_model of configs/model_config.py:2651-2700, and
configs/spark2_5.py:66. Latents: arg_groups/overrides.py:490-546, and server_args.py:1142 of 0.5.9.
States: configs/mamba_utils.py:47-112. Queries and keys: models/olmo2.py,
Olmo2Attention._apply_qk_norm. Joint sums: models/cohere2_moe.py:420-454. Order of ranks:
initialize_model_parallel of distributed/parallel_state.py (pp x dp x tp). Stages: get_pp_indices of
distributed/utils.py:137-148. Fused norms: architectures in server_args.py:1028 and 1085 of 0.5.6,
1479 of 0.5.7, 1607 of 0.5.8, 1681 of 0.5.9, 2090 of 0.5.10, 2441 of 0.5.12 and 4296 of 0.5.14, and
arg_groups/overrides.py:955-1001; MiMo's, whose kernel is of another library, are left out."""
TRTLLM = Engine(
    name="trtllm",
    remainder="first",
    over_all=False,
    pads=False,
    any_ep=True,
    uneven_experts=False,
    whole_blocks=False,
    beside=SharedStream(first="1.0.0", most_tokens=None),
    lone_groups=True,
)
"""Source: NVIDIA/TensorRT-LLM at 05ebebb, tensorrt_llm/mapping.py: stages by Mapping.pp_layers; tp
of the experts is moe_tp_size x moe_ep_size, and a rank has experts // moe_ep_size of them;
_torch/models/modeling_deepseekv3.py, Deepseekv3MoE.forward (shared experts on an auxiliary
stream), and _torch/modules/attention.py (tp is 1 where enable_attention_dp is set). How it pads a
vocabulary and shards weights that share a scale was not read."""
FUSED = {
    **dict.fromkeys(("deepseek_v3", "glm_moe_dsa"), ("0.5.9", 256)),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text", "glm4_moe_lite"), ("0.5.9", None)),
    "qwen3_next": ("0.5.14", None),
    "bailing_hybrid": ("0.5.23", None),
}
"""Model types whose one shared expert SGLang runs as one more routed expert, which every token
takes. It does so only if routed experts are not spread by ep (Ling 3's even then), have the same
format as the shared one, and are not run by a TRTLLM kernel of FlashInfer. The values are the
oldest release read that does so, and the number of routed experts to which it is limited (None:
any).
Source: sglang 0.5.23, in sglang/srt: models/deepseek_v2.py:3325-3400 (of 384 Kimi's in Quark's
format; DeepSeek V3.2 has another architecture), glm4_moe.py:1012-1037 and 1284,
glm4v_moe.py:87-107, glm4_moe_lite.py:732-750, qwen3_next.py:556 with qwen2_moe.py:137-168,
bailing_moe_v3.py:1429-1510, and arg_groups/overrides.py:1526-1553 (TRTLLM);
deepseek_v2.py:2853-2895 of 0.5.9."""
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG, TRTLLM)}


def engine_of(moe: str | None) -> Engine:
    """Return the engine of the named MoE kernels; vLLM if they are no engine's."""
    return ENGINES.get(moe or "", VLLM)
