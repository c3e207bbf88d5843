"""Layouts of early decoders, from GPT-2 to DBRX, whose files name their sizes otherwise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfree.decoders.decoder import Ffn, head_width, routed_experts, unwindowed
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import Feed, Form, Names, ffn, moe
from nearfree.decoders.layouts.layout import biased, block, layered
from nearfree.decoders.layouts.mixers import Heads, gqa
from nearfree.decoders.layouts.pieces import Layer, Matrix, norms
from nearfree.decoders.layouts.special import BOTH
from nearfree.errors import Refusals

_WIDTH, _HIDDEN, _HEADS = "intermediate_size", "hidden_size", "num_attention_heads"
_ALIBI = "biases attention by distance (ALiBi), for which engines run another kernel"
_BIASED: dict[str, Any] = {"qkv_bias": True, "output_bias": True}
_GPT: dict[str, Any] = {
    "root": "transformer", "layers": "h", "embedding": "wte", "norm": "ln_f", "norm_bias": True,
}  # fmt: skip


def _check_off(keys: Keys, reasons: Mapping[str, str]) -> None:
    """Refuse every flag that is set, each with its reason."""
    refusals = Refusals()
    for key, reason in reasons.items():
        with refusals.collect():
            if keys.flag(key):
                raise keys.wrong(key, reason, "Give a model without it")
    refusals.check()


def _check_on(keys: Keys, reasons: Mapping[str, str]) -> None:
    """Refuse every flag that is switched off, each with its reason; absent keys count as on."""
    refusals = Refusals()
    for key, reason in reasons.items():
        with refusals.collect():
            if keys.has(key) and not keys.flag(key):
                raise keys.wrong(key, reason, "Give a model with it")
    refusals.check()


def _wide(up: str, down: str, *, bias: str | bool = True) -> Feed:
    """Return the plan of an FFN without a gate, by default four times as wide as the model."""
    feed = ffn(form=Form((up,), down), bias=bias)

    def sized(keys: Keys) -> Keys:
        return keys.replaced(_WIDTH, keys.whole(_WIDTH, default=4 * keys.whole(_HIDDEN)))

    return Feed(
        lambda keys, layers: feed.plan(sized(keys), layers),
        lambda keys, layers: feed.rule(sized(keys), layers),
    )


def _positions(name: str, key: str, more: int = 0) -> Callable[[Keys], Sequence[Matrix]]:
    """Return the reader of a learned embedding for each position, and `more` of them."""
    return lambda keys: (Matrix(name, "other", keys.whole(_HIDDEN), keys.whole(key) + more),)


def gpt2_window(keys: Keys, layers: int) -> int | None:
    """Return None, for GPT-2; vLLM asserts that the three flags are off.

    Source: vllm 0.33.0, vllm/model_executor/models/gpt2.py:200-205.
    """
    _check_off(
        keys,
        dict.fromkeys(
            ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
            "changes attention, and engines do not read it",
        ),
    )
    return unwindowed(keys, layers)


def opt_window(keys: Keys, layers: int) -> int | None:
    """Return None, for OPT, whose layers have biases and norms before attention and FFN.

    The smallest but one has norms behind them, and embeddings of another width.
    Source: OPTDecoder of transformers 5.23.
    """
    refusals, width = Refusals(), keys.whole(_HIDDEN)
    with refusals.collect():
        _check_on(
            keys,
            {
                "do_layer_norm_before": "has norms behind attention and FFN, which are not read",
                "enable_bias": "leaves out biases, of which no published model does",
                "layer_norm_elementwise_affine": "leaves out weights of norms",
            },
        )
    with refusals.collect():
        _check_off(keys, {"_remove_final_layer_norm": "leaves out the last norm"})
    with refusals.collect():
        key = "word_embed_proj_dim"
        if keys.whole(key, default=width) != width:
            raise keys.wrong(key, f"is not hidden_size {width}: it adds products at both ends")
    refusals.check()
    return unwindowed(keys, layers)


def baichuan_window(keys: Keys, layers: int) -> int | None:
    """Return None, for Baichuan's 7B models, the only ones that rotate queries and keys.

    Source: sglang 0.5.23, sglang/srt/models/baichuan.py (BaichuanForCausalLM), which tells them by
    this width and applies ALiBi on no GPU of NVIDIA.
    """
    if keys.whole(_HIDDEN) != _ROTATED:
        raise keys.wrong(
            _HIDDEN,
            f"is not {_ROTATED}, the width by which engines know the 7B models: another {_ALIBI}",
            "Give a 7B model",
        )
    return unwindowed(keys, layers)


_ROTATED = 4096


def _one_or_all(keys: Keys) -> Heads:
    """Return the heads of a model in which they share one key, unless the file says otherwise."""
    count, width = keys.whole(_HEADS), head_width(keys)
    return Heads(count, 1 if keys.flag("multi_query") else count, width, width)


def falcon_heads(keys: Keys) -> Heads:
    """Return the heads of Falcon: groups in its newer form, else one shared key or one each.

    Attention and FFN read the same rows, and the sum of both is all-reduced once; older models
    that run one after the other are refused, because all that are published have ALiBi.
    Source: vllm 0.33.0, vllm/model_executor/models/falcon.py:107-150 and 283-330.
    """
    refusals, groups = Refusals(), "num_kv_heads"
    with refusals.collect():
        _check_off(keys, {"alibi": _ALIBI})
    with refusals.collect():
        _check_on(keys, {"parallel_attn": "runs attention and FFN one after the other"})
    refusals.check()
    if not keys.flag("new_decoder_architecture"):
        return _one_or_all(keys)
    count, width = keys.whole(_HEADS), head_width(keys)
    kv_heads = keys.whole(groups, default=count)
    if count % kv_heads:
        raise keys.wrong(groups, f"does not divide num_attention_heads {count}")
    return Heads(count, kv_heads, width, width)


def falcon_ffn(keys: Keys, layers: int) -> Layer:
    """Read Falcon's FFN, which vLLM makes four times as wide as the model whatever a file says."""
    width = 4 * keys.whole(_HIDDEN)
    if keys.whole(_WIDTH, default=width) != width:
        raise keys.wrong(_WIDTH, f"is not 4 x hidden_size, the width {width} that vLLM reads")
    return _FALCON_FFN.plan(keys, layers)


_FALCON_FFN = _wide("dense_h_to_4h", "dense_4h_to_h", bias="bias")


def falcon_norms(keys: Keys, layers: int) -> Layer:
    """Read Falcon's norms: one, or in its newer form by default two, before attention and FFN."""
    key, newer = "num_ln_in_parallel_attn", keys.flag("new_decoder_architecture")
    count = keys.whole(key, default=1 + newer)
    if count > 1 + newer:
        raise keys.wrong(key, f"is more than the {1 + newer} norms of this form")
    names = ("ln_attn", "ln_mlp") if count == 2 else ("input_layernorm",)
    return norms(*names, bias=True)(keys, layers)


def chatglm_heads(keys: Keys) -> Heads:
    """Return the heads of ChatGLM 2 and 3 and GLM-4, which share keys in groups or have one each.

    What their classes build otherwise, or engines do not read, is refused.
    Source: vllm 0.33.0, vllm/model_executor/models/chatglm.py, and sglang 0.5.23,
    sglang/srt/models/chatglm.py (GLMAttention, GLMBlock); modeling_chatglm.py of THUDM/glm-4-9b.
    """
    refusals, count, width = Refusals(), keys.whole(_HEADS), head_width(keys)
    with refusals.collect():
        _check_on(
            keys,
            {
                "rmsnorm": "has norms with biases, which are not read",
                "post_layer_norm": "leaves out the last norm, which is not read",
            },
        )
    for key, reason in (
        ("pre_seq_len", "puts learned keys and values before all others, which are not read"),
        ("quantization_bit", "stores weights in a format of its own, which engines do not read"),
    ):
        with refusals.collect():
            if not keys.empty(key):
                raise keys.wrong(key, reason, "Give the model without it")
    with refusals.collect():
        if keys.whole("kv_channels", default=width) != width:
            reason = f"is not hidden_size / num_attention_heads {width}, which engines read"
            raise keys.wrong("kv_channels", reason)
    groups = count
    with refusals.collect():
        if keys.flag("multi_query_attention"):
            groups = keys.whole("multi_query_group_num")
            if count % groups:
                raise keys.wrong("multi_query_group_num", f"does not divide {_HEADS} {count}")
    refusals.check()
    return Heads(count, groups, width, width)


def _chatglm_attention(keys: Keys, layers: int) -> Layer:
    biased_output = keys.flag("add_bias_linear")
    plan = gqa(
        module="self_attention", shape=chatglm_heads, fused="query_key_value", output="dense",
        qkv_bias=biased_output or keys.flag("add_qkv_bias"), output_bias=biased_output,
    )  # fmt: skip
    return plan(keys, layers)


def dbrx_heads(keys: Keys) -> Heads:
    """Return the heads of DBRX.

    Queries, keys and values may be clipped, which is an operation on rows as norms are.
    Source: DbrxAttention of transformers 5.23.
    """
    count, width = keys.whole(_HEADS), head_width(keys)
    inner = keys.inner(keys.one_of("attn_config"))
    kv_heads = inner.whole("kv_n_heads")
    if count % kv_heads:
        raise inner.wrong("kv_n_heads", f"does not divide n_heads {count}")
    return Heads(count, kv_heads, width, width)


def dbrx_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of DBRX: experts in every layer, whose gate engines take to be SiLU's.

    Source: DbrxFFNConfig of transformers 5.23; vllm 0.33.0, vllm/model_executor/models/dbrx.py.
    """
    inner = keys.inner(keys.one_of("ffn_config"))
    activation = inner.inner("ffn_act_fn")
    if activation.has("name") and activation.text("name") != "silu":
        raise activation.wrong("name", "is not silu, the only one that engines run")
    experts = routed_experts(inner, "moe_num_experts", top_k="moe_top_k", width="ffn_hidden_size")
    return Ffn(None, range(layers), experts)


EARLY = {
    "gpt2": layered(
        norms("ln_1", "ln_2", bias=True),
        gqa(module="attn", window=gpt2_window, fused="c_attn", output="c_proj", **_BIASED),
        _wide("c_fc", "c_proj"),
    )._replace(**_GPT, outside=_positions("transformer.wpe", "n_positions")),
    "gpt_bigcode": layered(
        norms("ln_1", "ln_2", bias=True),
        gqa(module="attn", shape=_one_or_all, fused="c_attn", output="c_proj", **_BIASED),
        _wide("c_fc", "c_proj"),
    )._replace(**_GPT, outside=_positions("transformer.wpe", "n_positions")),
    "gptj": layered(
        norms("ln_1", bias=True),
        gqa(module="attn", window=unwindowed, output="out_proj"),
        _wide("fc_in", "fc_out"),
    )._replace(**_GPT, head_bias="lm_head_bias"),
    "opt": layered(
        norms("self_attn_layer_norm", "final_layer_norm", bias=True),
        gqa(window=opt_window, output="out_proj", **_BIASED),
        ffn(module="", form=Form(("fc1",), "fc2"), bias=True),
    )._replace(
        root="model.decoder", norm="final_layer_norm", norm_bias=True,
        outside=_positions("model.decoder.embed_positions", "max_position_embeddings", 2),
    ),
    "olmo": layered(gqa(window=unwindowed, **BOTH), ffn())._replace(norm=""),
    "baichuan": block(gqa(window=baichuan_window, fused="W_pack"), ffn()),
    "orion": biased(gqa(window=unwindowed), ffn()),
    "falcon": layered(
        falcon_norms,
        gqa(
            module="self_attention", shape=falcon_heads, fused="query_key_value", output="dense",
            qkv_bias="bias", output_bias="bias",
        ),
        Feed(falcon_ffn, _FALCON_FFN.rule),
    )._replace(**_GPT | {"embedding": "word_embeddings"}),
    "chatglm": block(
        _chatglm_attention,
        ffn(form=Form(("dense_h_to_4h",), "dense_4h_to_h", 2), bias="add_bias_linear"),
    )._replace(
        root="transformer", layers="encoder.layers", embedding="embedding.word_embeddings",
        norm="encoder.final_layernorm", head="transformer.output_layer",
    ),
    "dbrx": layered(
        norms("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
        gqa(module="norm_attn_norm.attn", shape=dbrx_heads, fused="Wqkv", output="out_proj"),
        moe(dbrx_moe, Names(
            module="ffn", experts="experts.mlp", form=Form(("w1", "v1"), "w2"),
            router="router.layer",
        )),
    )._replace(root="transformer", layers="blocks", embedding="wte", norm="norm_f"),
}  # fmt: skip
"""By model type. Sources: modeling files of transformers 5.23; of Baichuan sglang 0.5.23, of Orion
and ChatGLM vllm 0.33.0. OLMo's norms have no weights; where it clips queries, keys and values, that
is an operation on rows, as in DBRX."""
