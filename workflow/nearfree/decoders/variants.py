"""Layouts of models whose layers are those of another model but for norms, gates and names."""

from collections.abc import Sequence

from msgspec import structs

from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.decoder import switched_off, unwindowed
from nearfree.decoders.feeds import FUSED, behind_first, deepseek_moe, ffn, marked, moe, some
from nearfree.decoders.keys import Keys
from nearfree.decoders.latent import mla
from nearfree.decoders.layout import FOUR_NORMS, GLM_NORMS, NORMS, Layout, alternating, block
from nearfree.decoders.mixers import gqa
from nearfree.decoders.pieces import Layer, Piece, joined, norms, same, together, vector
from nearfree.decoders.special import BOTH

_FULL, _NEAR = "full_attention", "sliding_attention"
_FFN = ffn(bias="mlp_bias")


def unclipped(keys: Keys, layers: int) -> int | None:
    """Return None, for IQuest Coder, which looks at all positions.

    Source: IQuestCoderConfig of transformers 5.23, which refuses the same two keys.
    """
    if keys.has("clip_qkv"):
        raise keys.wrong("clip_qkv", "bounds queries, keys and values, which is not read")
    return switched_off(keys, layers)


def one_bias(keys: Keys, layers: int) -> int | None:
    """Return None, for InternLM3, whose biases engines read of one key for all of attention.

    Source: InternLM3Config of transformers 5.23.
    """
    if keys.flag("attention_bias") != keys.flag("mlp_bias"):
        raise keys.wrong("attention_bias", "is not bias, which the output's projection has")
    return unwindowed(keys, layers)


def _post_norms(keys: Keys, layers: int) -> Layer:
    """Read the norms behind both pieces of HyperCLOVA X, which a file may leave out."""
    key = "use_post_norm"
    if keys.has(key) and not keys.flag(key):
        return same(Piece(()))
    return norms("post_norm1", "post_norm2")(keys, layers)


def _behind_experts(keys: Keys, layers: int) -> Layer:
    """Read the norm behind the experts of A.X K1. Source: AXK1MoE of transformers 5.23."""
    sparse = frozenset(behind_first(keys, layers))
    norm = Piece(vector("post_mlp_layernorm", keys.whole("hidden_size")))
    return lambda layer: norm if layer in sparse else Piece(())


def _last_of_four(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001 (one signature)
    """Return the kinds of Muse Glimmer's layers, which count in fours from the last one."""
    return [_NEAR if (layers - 1 - layer) % 4 else _FULL for layer in range(layers)]


def _sixth_and_last(keys: Keys, layers: int) -> Sequence[str]:  # noqa: ARG001
    """Return the kinds of Beam's layers: each sixth and the last one alone have no window."""
    kinds = [_NEAR if layer % 6 else _FULL for layer in range(1, layers + 1)]
    return [*kinds[:-1], _FULL]


def _sparse(keys: Keys, layers: int) -> Sequence[int]:
    """Return Beam's layers with experts, where a file does not say them those behind the third."""
    if keys.has("mlp_layer_types"):
        return marked("mlp_layer_types")(keys, layers)
    return range(min(3, layers), layers)


def _spark_attention(keys: Keys, layers: int) -> Layer:
    """Read Spark 2.5's attention, with a gate for each head unless the file says no.

    Source: sglang 0.5.23, sglang/srt/models/spark2_5.py:89-215, and srt/configs/spark2_5.py.
    """
    key = "headwise_attn_output_gate"
    gate = "" if keys.has(key) and not keys.flag(key) else "g_proj"
    return alternating(4, fused="q_k_v_proj", output="out_proj", gate=gate)(keys, layers)


beam_moe = some(_sparse, count=("num_experts",))
"""The FFNs of Beam. Source: BeamConfig and BeamMoE of transformers 5.23."""


def _beam_attention(keys: Keys, layers: int) -> Layer:
    """Read Beam's attention, whose gate is one product with queries, keys and values.

    Source: BeamAttention of transformers 5.23; vllm 0.33.0, vllm/models/beam/nvidia/attention.py
    (qkv_gate_proj), and sglang 0.5.23, sglang/srt/models/beam.py:520-554, part it where ranks are
    more than heads of keys.
    """
    plan = alternating(_sixth_and_last, norm=True, gate="gate_proj", wide_gate=True, **BOTH)
    attention, bias = plan(keys, layers), keys.whole("num_attention_heads")
    more = Piece(vector("self_attn.gate_bias", bias, "attention"))

    def layer(number: int) -> Piece:
        piece = attention(number)
        kinds = tuple(
            structs.replace(kind, gate=True, wide_gates=False)
            for kind in piece.attention
            if isinstance(kind, Grouped)
        )
        return joined([piece._replace(attention=kinds), more])

    return layer


VARIANTS = {
    "internlm3": block(gqa(window=one_bias, **BOTH), _FFN),
    "iquestcoder": block(gqa(window=unclipped, **BOTH), _FFN),
    "hyperclovax": Layout(together(NORMS, gqa(window=unwindowed, **BOTH), _FFN, _post_norms)),
    "glm_ocr_text": Layout(together(GLM_NORMS, gqa(window=unwindowed), ffn(form=FUSED))),
    "axk1": block(mla(), moe(deepseek_moe), _behind_experts),
    "muse_glimmer_text": Layout(
        together(FOUR_NORMS, alternating(_last_of_four, gate="gate_proj", wide_gate=True), ffn())
    ),
    "spark2_5": block(_spark_attention, ffn()),
    "beam": Layout(together(FOUR_NORMS, _beam_attention, moe(beam_moe))),
}
"""By model type. Sources: modeling files of transformers 5.23; of Spark 2.5 sglang 0.5.23."""
