"""Layouts of models whose layers differ from another model's only in norms, gates and names."""

from collections.abc import Sequence

from msgspec import structs

from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.decoder import all_experts, switched_off, unwindowed
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import (
    FUSED,
    NUMBERED,
    PLAIN,
    Form,
    after_first_dense,
    all_layers,
    deepseek_moe,
    ffn,
    marked_layers,
    moe,
    moe_rule,
)
from nearfree.decoders.layouts.latent import mla
from nearfree.decoders.layouts.layout import (
    FOUR_NORMS,
    GLM_NORMS,
    POST_NORMS,
    WIDE,
    alternating,
    biased,
    block,
    layered,
)
from nearfree.decoders.layouts.mixers import gqa
from nearfree.decoders.layouts.pieces import (
    OF_ATTENTION,
    Layer,
    Piece,
    in_every_layer,
    joined,
    norms,
    vector,
)
from nearfree.decoders.layouts.special import BOTH
from nearfree.errors import Refusals

_FULL, _WINDOWED = "full_attention", "sliding_attention"
_FFN = ffn(bias="mlp_bias")


def unclipped(keys: Keys, layers: int) -> int | None:
    """Return None, for IQuest Coder, whose layers attend to all positions.

    Source: IQuestCoderConfig of transformers 5.23, which refuses the same two keys.
    """
    if keys.has("clip_qkv"):
        raise keys.wrong("clip_qkv", "clips queries, keys and values, which is not read")
    return switched_off(keys, layers)


def one_bias(keys: Keys, layers: int) -> int | None:
    """Return None, for InternLM3; engines read all biases of its attention from one key.

    Source: InternLM3Config of transformers 5.23.
    """
    if keys.flag("attention_bias") != keys.flag("mlp_bias"):
        raise keys.wrong("attention_bias", "is not bias, which the output's projection has")
    return unwindowed(keys, layers)


def without_bias(keys: Keys, layers: int) -> int | None:
    """Return None, for InternLM2, whose attention has biases in the model's own class alone.

    Source: modeling_internlm2.py of internlm/internlm2_5-7b; vllm 0.33.0,
    vllm/model_executor/models/internlm2.py:121-140, and sglang 0.5.23,
    sglang/srt/models/internlm2.py, which load none.
    """
    if keys.flag("bias"):
        raise keys.wrong("bias", "adds biases to attention, which engines do not load")
    return unwindowed(keys, layers)


def without_experts(keys: Keys, layers: int) -> int | None:
    """Return None, for MiniCPM, whose models with experts are not read.

    Source: vllm 0.33.0, vllm/model_executor/models/minicpm.py (MiniCPMMoE); it and sglang 0.5.23,
    sglang/srt/models/minicpm.py, attend to all positions whatever `sparse_config` says.
    """
    if keys.whole("num_experts", least=0, default=0):
        raise keys.wrong("num_experts", "gives layers experts, which are not read")
    return unwindowed(keys, layers)


def one_after_another(keys: Keys, layers: int) -> int | None:
    """Return None, for StableLM, whose attention and FFN run one after the other.

    Source: vllm 0.33.0, vllm/model_executor/models/stablelm.py, and sglang 0.5.23,
    sglang/srt/models/stablelm.py, which read neither key.
    """
    refusals = Refusals()
    for key in ("use_parallel_residual", "qk_layernorm"):
        with refusals.collect():
            if keys.flag(key):
                raise keys.wrong(key, "is set, and engines do not read it")
    refusals.check()
    return unwindowed(keys, layers)


def without_norms(keys: Keys, layers: int) -> int | None:
    """Return None, for Phi 1 and 2, of which norms of queries and keys are not read.

    Source: PhiAttention of transformers 5.23; sglang 0.5.23, sglang/srt/models/phi.py, has none.
    """
    if keys.has("qk_layernorm") and keys.flag("qk_layernorm"):
        raise keys.wrong("qk_layernorm", "normalises queries and keys, which is not read")
    return unwindowed(keys, layers)


def all_positions_of_solar(keys: Keys, layers: int) -> int | None:  # noqa: ARG001
    """Return None, for Solar Pro, whose window engines do not read.

    Its layers also mix the states of earlier ones in, by operations on rows as norms are.
    Source: vllm 0.33.0, vllm/model_executor/models/solar.py, and sglang 0.5.23,
    sglang/srt/models/solar.py (bskcn: backbone skip connections).
    """
    return None


def one_kind_of_pangu(keys: Keys, layers: int) -> int | None:
    """Return None, for openPangu Embedded, of whose class only the dense form is read.

    Source: vllm 0.33.0, vllm/model_executor/models/openpangu.py (OpenPanguDecoderLayer).
    """
    refusals = Refusals()
    for key, reason in (
        ("interleaved_sliding_window", "gives layers windows"),
        ("n_routed_experts", "gives layers experts"),
        ("param_sink_number", "adds learned keys as sinks"),
        ("sandwich_norm", "adds norms behind attention and FFN"),
    ):
        with refusals.collect():
            if not keys.empty(key):
                raise keys.wrong(key, f"{reason}, which is not read of this model type")
    with refusals.collect():
        if keys.has("qkv_bias") and keys.flag("qkv_bias") != keys.flag("attention_bias"):
            raise keys.wrong("qkv_bias", "is not bias, which the output's projection has")
    with refusals.collect():
        if keys.has("is_causal") and not keys.flag("is_causal"):
            raise keys.wrong("is_causal", "makes it an encoder", "Give a decoder")
    refusals.check()
    return unwindowed(keys, layers)


def _post_norms(keys: Keys, layers: int) -> Layer:
    """Read the norms after both pieces of HyperCLOVA X, which a file may switch off."""
    key = "use_post_norm"
    if keys.has(key) and not keys.flag(key):
        return in_every_layer(Piece(()))
    return norms("post_norm1", "post_norm2")(keys, layers)


def _behind_experts(keys: Keys, layers: int) -> Layer:
    """Read the norm after the experts of A.X K1. Source: AXK1MoE of transformers 5.23."""
    moe_layers = frozenset(after_first_dense(keys, layers))
    norm = Piece(vector("post_mlp_layernorm", keys.whole("hidden_size")))
    return lambda layer: norm if layer in moe_layers else Piece(())


def _last_of_four(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001 (one signature)
    """Return the kinds of Muse Glimmer's layers: each fourth, from the last back, is full."""
    return [_WINDOWED if (layers - 1 - layer) % 4 else _FULL for layer in range(layers)]


def _sixth_and_last(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001
    """Return the kinds of Beam's layers: each sixth and the last have no window."""
    kinds = [_WINDOWED if layer % 6 else _FULL for layer in range(1, layers + 1)]
    return [*kinds[:-1], _FULL]


def _spark_attention(keys: Keys, layers: int) -> Layer:
    """Read Spark 2.5's attention, with one gate per head unless the file switches it off.

    Source: sglang 0.5.23, sglang/srt/models/spark2_5.py:89-215, and srt/configs/spark2_5.py.
    """
    key = "headwise_attn_output_gate"
    gate = "" if keys.has(key) and not keys.flag(key) else "g_proj"
    return alternating(4, fused="q_k_v_proj", output="out_proj", gate=gate)(keys, layers)


beam_moe = moe_rule(
    marked_layers("mlp_layer_types", lambda _, layers: range(3, layers)), count=("num_experts",)
)
"""The FFNs of Beam, by default with experts from the fourth layer on. Source: BeamConfig and
BeamMoE of transformers 5.23."""


kolibri_moe = moe_rule(
    all_layers, count=("num_experts", "num_local_experts"),
    shared=("shared_expert_intermediate_size",),
)  # fmt: skip
"""The FFNs of Kolibri, with one shared expert in each layer. Source: Kolibri1SparseMoeBlock of
transformers 5.23."""


def _beam_attention(keys: Keys, layers: int) -> Layer:
    """Read Beam's attention, whose gate is made by the product of query, key and value.

    Source: BeamAttention of transformers 5.23; vllm 0.33.0, vllm/models/beam/nvidia/attention.py
    (qkv_gate_proj), and sglang 0.5.23, sglang/srt/models/beam.py:520-554, split it where there are
    more ranks than key heads.
    """
    plan = alternating(_sixth_and_last, norm=True, gate="gate_proj", wide_gate=True, **BOTH)
    attention, heads = plan(keys, layers), keys.whole("num_attention_heads")
    gate_bias = Piece(vector("self_attn.gate_bias", heads, OF_ATTENTION))

    def layer(number: int) -> Piece:
        piece = attention(number)
        kinds = tuple(
            structs.replace(kind, gate=True, wide_gates=False)
            for kind in piece.attention
            if isinstance(kind, Grouped)
        )
        return joined([piece._replace(attention=kinds), gate_bias])

    return layer


VARIANTS = {
    "internlm3": block(gqa(window=one_bias, **BOTH), _FFN),
    "iquestcoder": block(gqa(window=unclipped, **BOTH), _FFN),
    "hyperclovax": block(gqa(window=unwindowed, **BOTH), _FFN, _post_norms),
    "glm_ocr_text": layered(GLM_NORMS, gqa(window=unwindowed), ffn(form=FUSED)),
    "exaone": layered(
        norms("ln_1", "ln_2"),
        gqa(module="attn.attention", window=unwindowed, output="out_proj", **BOTH),
        ffn(form=Form(("c_fc_0", "c_fc_1"), "c_proj"), bias="mlp_bias"),
    )._replace(root="transformer", layers="h", embedding="wte", norm="ln_f"),
    "internlm2": layered(
        norms("attention_norm", "ffn_norm"),
        gqa(module="attention", window=without_bias, fused="wqkv", output="wo"),
        ffn(module="feed_forward", form=NUMBERED),
    )._replace(embedding="tok_embeddings", head="output"),
    "minicpm": block(gqa(window=without_experts), ffn()),
    "solar": block(gqa(window=all_positions_of_solar, **BOTH), _FFN),
    "PanguEmbedded": block(gqa(window=one_kind_of_pangu, **BOTH), _FFN),
    "stablelm": biased(gqa(window=one_after_another, qkv_bias="use_qkv_bias"), ffn()),
    "jais2": biased(gqa(window=unwindowed, **BOTH), ffn(form=PLAIN, bias="mlp_bias")),
    "phi": layered(
        norms("input_layernorm", bias=True),
        gqa(window=without_norms, qkv_bias=True, output_bias=True, output="dense"),
        ffn(form=Form(("fc1",), "fc2"), bias=True),
    )._replace(norm="final_layernorm", norm_bias=True, head_bias="lm_head_bias"),
    "gpt_neox": biased(
        gqa(module="attention", window=unwindowed, fused="query_key_value", output="dense", **BOTH),
        ffn(form=Form(("dense_h_to_4h",), "dense_4h_to_h"), bias=True),
    )._replace(root="gpt_neox", embedding="embed_in", norm="final_layer_norm"),
    "vaultgemma": layered(
        norms("input_layernorm", "pre_feedforward_layernorm"),
        alternating(2, soft_cap="attn_logit_softcapping", **BOTH),
        ffn(),
    ),
    "youtu": block(mla(), ffn()),
    "deepseek": block(gqa(window=unwindowed, **BOTH), moe(deepseek_moe)),
    "flex_olmo": layered(POST_NORMS, gqa(window=unwindowed, norm=True, **WIDE), moe(all_experts)),
    "axk1": block(mla(), moe(deepseek_moe), _behind_experts),
    "muse_glimmer_text": layered(
        FOUR_NORMS, alternating(_last_of_four, gate="gate_proj", wide_gate=True), ffn()
    ),
    "spark2_5": block(_spark_attention, ffn()),
    "kolibri1": layered(GLM_NORMS, alternating(5, norm=True), moe(kolibri_moe)),
    "beam": layered(FOUR_NORMS, _beam_attention, moe(beam_moe)),
}
"""By model type. Sources: modeling files of transformers 5.23; of Spark 2.5 sglang 0.5.23; of the
first four and DeepSeek's first MoE vllm 0.33.0, vllm/model_executor/models/exaone.py, internlm2.py,
minicpm.py, stablelm.py and deepseek_v2.py (DeepseekAttention)."""
