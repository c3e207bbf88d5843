"""Plans of FFNs: weights of Dense FFNs, routed experts, shared experts and routers."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from nearfree.decoders.decoder import Ffn, dense, partly_moe, routed_experts, ungated
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.pieces import (
    Kind,
    Layer,
    Matrix,
    Piece,
    Plan,
    dotted,
    flag,
    in_every_layer,
    linear,
    vector,
)
from nearfree.errors import Refusals

Rule = Callable[[Keys, int], Ffn]


class Form(NamedTuple):
    """The matrix names of one FFN in a checkpoint; each of `ups` holds `fused` matrices in one."""

    ups: tuple[str, ...]
    down: str
    fused: int = 1

    def parts(
        self,
        module: str,
        kind: Kind,
        d_model: int,
        d_ff: int,
        *,
        bias: bool = False,
        copies: int = 1,
    ) -> list[Matrix]:
        """Return the matrices of `copies` FFNs whose module has the path `module`."""
        parts: list[Matrix] = []
        for up in self.ups:
            outputs = d_ff * self.fused
            parts += linear(dotted(module, up), kind, d_model, outputs, bias=bias, copies=copies)
        parts += linear(dotted(module, self.down), kind, d_ff, d_model, bias=bias, copies=copies)
        return parts


GATED = Form(("gate_proj", "up_proj"), "down_proj")
PLAIN = Form(("up_proj",), "down_proj")
FUSED = Form(("gate_up_proj",), "down_proj", 2)
NUMBERED = Form(("w1", "w3"), "w2")
LINEAR = Form(("input_linear",), "output_linear", 2)


class Feed(Struct, frozen=True):
    """The plan of the FFNs of a model type, and the rule that describes them."""

    plan: Plan
    rule: Rule

    def __call__(self, keys: Keys, layers: int) -> Layer:
        """Read the keys of a file by the plan."""
        return self.plan(keys, layers)


def ffn(
    *,
    module: str = "mlp",
    width: str = "intermediate_size",
    form: Form = GATED,
    bias: str | bool = False,
) -> Feed:
    """Return the plan of a Dense FFN whose width stands under the key `width`."""

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, d_ff = keys.whole("hidden_size"), keys.whole(width)
        return in_every_layer(
            Piece(tuple(form.parts(module, "ffn", d_model, d_ff, bias=flag(keys, bias))))
        )

    return Feed(plan, dense if len(form.ups) * form.fused > 1 else ungated)


class Names(NamedTuple):
    """The names that a checkpoint has for the parts of an MoE FFN.

    They are relative to `module`, but `dense` is the full path of the Dense FFN in other layers.
    `latent` is the key of the width in which routed experts compute, where it is not the model's;
    `latent_names` are the matrices into that width and back.
    """

    module: str = "mlp"
    experts: str = "experts.*"
    form: Form = GATED
    router: str = "gate"
    shared: str = "shared_experts"
    shared_form: Form = GATED
    shared_gate: str = ""
    dense: str = "mlp"
    bias: bool = False
    dense_bias: str | bool = False
    router_vector: str = ""
    latent: str = ""
    latent_names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")


_NAMES = Names()
SHARED_EXPERT = Names(shared="shared_expert", shared_gate="shared_expert_gate")
"""The names of Qwen's models."""


def moe(rule: Rule, names: Names = _NAMES) -> Feed:
    """Return the plan of layers with experts or a Dense FFN, as the rule decides.

    Some routers correct scores by a bias. It is a buffer, not a parameter, and is left out.
    """

    def plan(keys: Keys, layers: int) -> Layer:
        layout, d_model = rule(keys, layers), keys.whole("hidden_size")
        moe_at = layout.moe_at if isinstance(layout.moe_at, range) else frozenset(layout.moe_at)
        dense_parts: list[Matrix] = []
        if layout.d_ff:
            bias = flag(keys, names.dense_bias)
            dense_parts = names.shared_form.parts(
                names.dense, "ffn", d_model, layout.d_ff, bias=bias
            )
        dense_piece = Piece(tuple(dense_parts))
        moe_piece = Piece(tuple(_sparse(keys, layout, names, d_model)))
        return lambda layer: moe_piece if layer in moe_at else dense_piece

    return Feed(plan, rule)


def _sparse(keys: Keys, layout: Ffn, names: Names, d_model: int) -> list[Matrix]:
    experts = layout.experts
    if experts is None:
        return []
    module, count = names.module, experts.experts
    expert_width = keys.whole(names.latent, default=d_model) if names.latent else d_model
    experts_path = dotted(module, names.experts)
    parts = [
        *linear(dotted(module, names.router), "router", d_model, count, bias=names.bias),
        *names.form.parts(
            experts_path, "experts", expert_width, experts.d_ff, bias=names.bias, copies=count
        ),
    ]
    if names.router_vector:
        parts += vector(dotted(module, names.router_vector), count, "router")
    if expert_width != d_model:
        down_name, up_name = names.latent_names
        bias = flag(keys, names.dense_bias)
        parts += linear(dotted(module, down_name), "ffn", d_model, expert_width, bias=bias)
        parts += linear(dotted(module, up_name), "ffn", expert_width, d_model, bias=bias)
    if experts.shared_d_ff:
        shared, bias = dotted(module, names.shared), flag(keys, names.dense_bias)
        width = experts.shared_d_ff
        parts += names.shared_form.parts(shared, "shared_experts", d_model, width, bias=bias)
        if names.shared_gate:
            parts += linear(dotted(module, names.shared_gate), "shared_experts", d_model, 1)
    return parts


LayerRule = Callable[[Keys, int], Sequence[int]]


def all_layers(keys: Keys, layers: int) -> Sequence[int]:  # noqa: ARG001 (one signature for all)
    """Return all layers, counted from 0."""
    return range(layers)


def after_first_dense(keys: Keys, layers: int) -> Sequence[int]:
    """Return the layers with experts: by `mlp_layer_types`, else all after the first dense ones.

    Source: configurations of DeepSeek-V3 and GLM's DSA of transformers 5.23.
    """
    if keys.has("mlp_layer_types"):
        moe_at = marked_layers("mlp_layer_types")(keys, layers)
        if keys.has("first_k_dense_replace"):
            others = range(keys.whole("first_k_dense_replace", least=0), layers)
            _agree(keys, "mlp_layer_types", "first_k_dense_replace", moe_at, others)
        return moe_at
    if keys.has("moe_layer_freq") and keys.whole("moe_layer_freq", least=0) != 1:
        raise keys.wrong("moe_layer_freq", "is not understood", "Give a model with 1")
    return range(keys.whole("first_k_dense_replace", least=0), layers)


def after_dense(keys: Keys, layers: int) -> Sequence[int]:
    """Return the layers from `num_dense_layers` on. Source: AfmoeConfig of transformers 5.23."""
    return range(keys.whole("num_dense_layers", least=0), layers)


def marked_layers(key: str, otherwise: LayerRule | None = None) -> LayerRule:
    """Return the reader of a list that marks layers with experts by 1 or "sparse"."""

    def where(keys: Keys, layers: int) -> Sequence[int]:
        if otherwise and not keys.has(key):
            return otherwise(keys, layers)
        marks = keys.each(key)
        if len(marks) < layers or set(marks) - {0, 1, "sparse", "dense"}:
            raise keys.wrong(key, f"does not say of {layers} layers whether they have experts")
        return [layer for layer in range(layers) if marks[layer] in {1, "sparse"}]

    return where


def interleaved_layers(keys: Keys, layers: int) -> Sequence[int]:
    """Return Llama 4's layers with experts. Source: Llama4TextConfig of transformers 5.23."""
    if keys.has("moe_layers"):
        moe_at = sorted(set(keys.list_of("moe_layers", int)))
        if moe_at and not (moe_at[0] >= 0 and moe_at[-1] < layers):
            raise keys.wrong("moe_layers", f"names others than {layers} layers")
        if keys.has("interleave_moe_layer_step"):
            others = _interleaved(keys, layers)
            _agree(keys, "moe_layers", "interleave_moe_layer_step", moe_at, others)
        return moe_at
    return _interleaved(keys, layers)


def _interleaved(keys: Keys, layers: int) -> Sequence[int]:
    step = keys.whole("interleave_moe_layer_step")
    return range(step - 1, layers, step)


def _agree(
    keys: Keys, key: str, other_key: str, moe_at: Sequence[int], others: Sequence[int]
) -> None:
    """Refuse two keys that name different layers with experts: some engines read either."""
    if list(moe_at) != list(others):
        layer = min(set(moe_at) ^ set(others))
        raise keys.wrong(key, f"contradicts {other_key} at layer {layer}", "Leave one of them out")


def periodic_layers(keys: Keys, layers: int) -> Sequence[int]:
    """Return Jamba's layers with experts. Source: JambaConfig of transformers 5.23."""
    if keys.whole("num_experts") == 1:
        return ()
    period = keys.whole("expert_layer_period")
    return range(keys.whole("expert_layer_offset", least=0), layers, period)


def moe_rule(
    where: LayerRule,
    *,
    count: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts"),
    top_k: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared: tuple[str, ...] = (),
    dense: str = "intermediate_size",
) -> Rule:
    """Return the rule of models in which some layers have experts.

    Parameters
    ----------
    where
        Returns the layers with experts.
    count, top_k, width, dense
        The keys of the number of experts, of the experts per token, of an expert's width and of
        the Dense FFN's width. The first key of `count` that is present holds.
    shared
        The keys whose product is the width of the shared experts; empty if there are none.
    """

    def rule(keys: Keys, layers: int) -> Ffn:
        shared_d_ff, experts, refusals = int(bool(shared)), None, Refusals()
        for key in shared:
            with refusals.collect():
                shared_d_ff *= keys.whole(key, least=0)
        with refusals.collect():
            count_key = keys.one_of(*count)
            experts = routed_experts(
                keys, count_key, top_k=top_k, width=width, shared_d_ff=shared_d_ff
            )
        refusals.check()
        return partly_moe(keys, layers, where(keys, layers), experts, dense)

    return rule


def enumerated_layers(keys: Keys, layers: int) -> Sequence[int]:
    """Return Step 3's layers with experts: those a string lists, else those after the first dense.

    Source: Step3p7TextConfig of transformers 5.23.
    """
    if not keys.has("moe_layers_enum"):
        return after_first_dense(keys, layers)
    numbers = keys.text("moe_layers_enum").replace(" ", "").split(",")
    if not all(re.fullmatch(r"\d{1,4}", number) for number in numbers):
        raise keys.wrong("moe_layers_enum", "is no list of layers")
    return sorted({int(number) for number in numbers} & set(range(layers)))


deepseek_moe = moe_rule(
    after_first_dense,
    count=("n_routed_experts",),
    shared=("n_shared_experts", "moe_intermediate_size"),
)
"""The FFNs of DeepSeek V2 and V3, and of models that adopted their form."""
llama4_moe = moe_rule(
    interleaved_layers,
    count=("num_local_experts",),
    width="intermediate_size",
    shared=("intermediate_size",),
    dense="intermediate_size_mlp",
)
"""The FFNs of Llama 4. Source: Llama4TextDecoderLayer and Llama4TextMoe of transformers 5.23."""

deepseek_v4_moe = moe_rule(
    all_layers,
    count=("n_routed_experts",),
    shared=("n_shared_experts", "moe_intermediate_size"),
)
"""The FFNs of DeepSeek V4: routed experts in every layer. The first `num_hash_layers` choose them
by the token's id; the router's product runs all the same (DeepseekV4HashRouter)."""


_SHARED = ("num_shared_experts", "moe_intermediate_size")
afmoe_moe = moe_rule(after_dense, count=("num_experts",), shared=_SHARED)
"""The FFNs of Trinity. Source: AfmoeSparseMoeBlock of transformers 5.23."""
exaone_moe = moe_rule(after_first_dense, count=("num_experts",), shared=_SHARED)
"""The FFNs of K-EXAONE. Source: ExaoneMoeSparseMoEBlock of transformers 5.23."""
laguna_moe = moe_rule(
    marked_layers("mlp_layer_types"),
    count=("num_experts",),
    shared=("shared_expert_intermediate_size",),
)
"""The FFNs of Laguna. Source: LagunaSparseMoeBlock of transformers 5.23; vllm 0.33.0,
vllm/model_executor/models/laguna.py (get_mlp_layer_types), reads the layers with experts."""


def hy_v3_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Hunyuan 3.

    Source: HYV3MoE of transformers 5.23 and sglang 0.5.23, sglang/srt/models/hunyuan_v3.py:102;
    vllm 0.33.0, vllm/model_executor/models/hy_v3.py:144, reads an expert's width from another key.
    """
    layout, key = exaone_moe(keys, layers), "expert_hidden_dim"
    if layout.experts and keys.whole(key, default=layout.experts.d_ff) != layout.experts.d_ff:
        raise keys.wrong(key, "differs from moe_intermediate_size, and engines disagree on it")
    return layout


step3_moe = moe_rule(enumerated_layers, count=("num_experts",), shared=("share_expert_dim",))
"""The FFNs of Step 3.5 and 3.7. Source: Step3p7TextConfig of transformers 5.23."""
mimo_v2_moe = moe_rule(marked_layers("moe_layer_freq"), count=("n_routed_experts",))
"""The FFNs of MiMo-V2. Source: vllm 0.33.0, vllm/model_executor/models/mimo_v2.py."""


_m3_moe = moe_rule(
    marked_layers("moe_layer_freq"),
    count=("num_local_experts",),
    width="intermediate_size",
    shared=("shared_intermediate_size",),
    dense="dense_intermediate_size",
)


def m3_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of MiniMax M3.

    Source: MiniMaxM3VLTextConfig of transformers 5.23; vllm 0.33.0, vllm/models/minimax_m3/nvidia/
    model.py:242-249, takes the shared experts' width from other keys.
    """
    layout, key = _m3_moe(keys, layers), "n_shared_experts"
    if keys.has(key) and layout.experts:
        shared_d_ff = keys.whole(key, least=0) * layout.experts.d_ff
        if shared_d_ff != layout.experts.shared_d_ff:
            why = f"makes shared experts {shared_d_ff} wide, shared_intermediate_size others"
            raise keys.wrong(key, why)
    return layout


def first_sharing_layer(keys: Keys, layers: int) -> int:
    """Return the first layer of Gemma 4 from which on all attend to caches of earlier layers."""
    return layers - keys.whole("num_kv_shared_layers", least=0, default=0)


def gemma4_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Gemma 4: layers with experts also have a Dense FFN beside them.

    In E2B the FFNs of layers that share a cache are twice as wide.
    Source: Gemma4TextMLP and Gemma4TextDecoderLayer of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/gemma4.py:596-606, and sglang 0.5.23,
    sglang/srt/models/gemma4_causal.py:586-590, have the same widths.
    """
    d_ff, double_wide = keys.whole("intermediate_size"), "use_double_wide_mlp"
    first = first_sharing_layer(keys, layers)
    if keys.flag(double_wide) and first < layers:
        if keys.flag("enable_moe_block"):
            raise keys.wrong(double_wide, "is not read beside experts", "Leave one of them out")
        return Ffn(2 * d_ff, widths=((2 * d_ff, layers - first), (d_ff, first)))
    if not keys.flag("enable_moe_block"):
        return Ffn(d_ff)
    experts = routed_experts(keys, "num_experts", top_k="top_k_experts")
    return Ffn(d_ff, range(layers), experts, beside=True)
