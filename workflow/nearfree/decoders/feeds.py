"""Kinds of FFN as weights: dense ones, routed experts, shared ones, and routers."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nearfree.decoders.decoder import Ffn, mixed, routed
from nearfree.decoders.keys import Keys
from nearfree.decoders.pieces import (
    Kind,
    Layer,
    Part,
    Piece,
    Plan,
    flag,
    linear,
    same,
    together,
    under,
    vector,
)
from nearfree.errors import Refusals

Rule = Callable[[Keys, int], Ffn]


class Form(NamedTuple):
    """The matrices of one FFN in a checkpoint: those into its width, of which `fused` are one."""

    ups: tuple[str, ...]
    down: str
    fused: int = 1

    def parts(
        self, at: str, kind: Kind, d_model: int, d_ff: int, *, bias: bool = False, copies: int = 1
    ) -> list[Part]:
        """Return the matrices of `copies` FFNs under a name."""
        parts: list[Part] = []
        for up in self.ups:
            wide = d_ff * self.fused
            parts += linear(under(at, up), kind, d_model, wide, bias=bias, copies=copies)
        parts += linear(under(at, self.down), kind, d_ff, d_model, bias=bias, copies=copies)
        return parts


GATED = Form(("gate_proj", "up_proj"), "down_proj")
PLAIN = Form(("up_proj",), "down_proj")
FUSED = Form(("gate_up_proj",), "down_proj", 2)
NUMBERED = Form(("w1", "w3"), "w2")
LINEAR = Form(("input_linear",), "output_linear", 2)


def ffn(
    *,
    at: str = "mlp",
    width: str = "intermediate_size",
    form: Form = GATED,
    bias: str | bool = False,
) -> Plan:
    """Return the plan of a Dense FFN whose width stands under a key."""

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, d_ff = keys.whole("hidden_size"), keys.whole(width)
        return same(Piece(tuple(form.parts(at, "ffn", d_model, d_ff, bias=flag(keys, bias)))))

    return plan


class Names(NamedTuple):
    """What a checkpoint calls the parts of an MoE FFN, under `at`; `dense` is a whole name.

    `latent` is the key of the width that routed experts work in, where it is not the model's, and
    `latent_names` are the matrices into it and out of it.
    """

    at: str = "mlp"
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
"""What Qwen's models call them."""


def moe(rule: Rule, names: Names = _NAMES) -> Plan:
    """Return the plan of layers with experts or a Dense FFN, as a rule says.

    The bias by which some routers correct scores is a buffer, not a parameter; it is left out.
    """

    def plan(keys: Keys, layers: int) -> Layer:
        found, d_model = rule(keys, layers), keys.whole("hidden_size")
        moe_at = found.moe_at if isinstance(found.moe_at, range) else frozenset(found.moe_at)
        dense: list[Part] = []
        if found.d_ff:
            bias = flag(keys, names.dense_bias)
            dense = names.shared_form.parts(names.dense, "ffn", d_model, found.d_ff, bias=bias)
        plain, sparse = Piece(tuple(dense)), Piece(tuple(_sparse(keys, found, names, d_model)))
        return lambda layer: sparse if layer in moe_at else plain

    return plan


def _sparse(keys: Keys, found: Ffn, names: Names, d_model: int) -> list[Part]:
    experts = found.experts
    if experts is None:
        return []
    at, count = names.at, experts.experts
    inner = keys.whole(names.latent, default=d_model) if names.latent else d_model
    place = under(at, names.experts)
    parts = [
        *linear(under(at, names.router), "router", d_model, count, bias=names.bias),
        *names.form.parts(place, "experts", inner, experts.d_ff, bias=names.bias, copies=count),
    ]
    if names.router_vector:
        parts += vector(under(at, names.router_vector), count, "router")
    if inner != d_model:
        into, out = names.latent_names
        bias = flag(keys, names.dense_bias)
        parts += linear(under(at, into), "ffn", d_model, inner, bias=bias)
        parts += linear(under(at, out), "ffn", inner, d_model, bias=bias)
    if experts.shared_d_ff:
        shared, bias = under(at, names.shared), flag(keys, names.dense_bias)
        width = experts.shared_d_ff
        parts += names.shared_form.parts(shared, "shared_experts", d_model, width, bias=bias)
        if names.shared_gate:
            parts += linear(under(at, names.shared_gate), "shared_experts", d_model, 1)
    return parts


Where = Callable[[Keys, int], Sequence[int]]


def everywhere(keys: Keys, layers: int) -> Sequence[int]:  # noqa: ARG001 (one signature for all)
    """Return all layers."""
    return range(layers)


def behind_first(keys: Keys, layers: int) -> Sequence[int]:
    """Return the layers that `mlp_layer_types` names, else those behind the first dense ones.

    Source: configurations of DeepSeek-V3 and GLM's DSA of transformers 5.23.
    """
    if keys.has("mlp_layer_types"):
        found = marked("mlp_layer_types")(keys, layers)
        if keys.has("first_k_dense_replace"):
            rest = range(keys.whole("first_k_dense_replace", least=0), layers)
            _agree(keys, "mlp_layer_types", "first_k_dense_replace", found, rest)
        return found
    if keys.has("moe_layer_freq") and keys.whole("moe_layer_freq", least=0) != 1:
        raise keys.wrong("moe_layer_freq", "is not understood", "Give a model with 1")
    return range(keys.whole("first_k_dense_replace", least=0), layers)


def behind_dense(keys: Keys, layers: int) -> Sequence[int]:
    """Return the layers behind `num_dense_layers`. Source: AfmoeConfig of transformers 5.23."""
    return range(keys.whole("num_dense_layers", least=0), layers)


def marked(key: str) -> Where:
    """Return what reads a list that marks layers with experts by 1 or "sparse"."""

    def where(keys: Keys, layers: int) -> Sequence[int]:
        marks = keys.each(key)
        if len(marks) < layers or set(marks) - {0, 1, "sparse", "dense"}:
            raise keys.wrong(key, f"does not say of {layers} layers whether they have experts")
        return [layer for layer in range(layers) if marks[layer] in {1, "sparse"}]

    return where


def interleaved(keys: Keys, layers: int) -> Sequence[int]:
    """Return Llama 4's layers with experts. Source: Llama4TextConfig of transformers 5.23."""
    if keys.has("moe_layers"):
        found = sorted(set(keys.list_of("moe_layers", int)))
        if found and not (found[0] >= 0 and found[-1] < layers):
            raise keys.wrong("moe_layers", f"names others than {layers} layers")
        if keys.has("interleave_moe_layer_step"):
            rest = _interleaved(keys, layers)
            _agree(keys, "moe_layers", "interleave_moe_layer_step", found, rest)
        return found
    return _interleaved(keys, layers)


def _interleaved(keys: Keys, layers: int) -> Sequence[int]:
    step = keys.whole("interleave_moe_layer_step")
    return range(step - 1, layers, step)


def _agree(keys: Keys, one: str, other: str, found: Sequence[int], rest: Sequence[int]) -> None:
    """Refuse two keys that name different layers with experts: engines read either of them."""
    if list(found) != list(rest):
        layer = min(set(found) ^ set(rest))
        raise keys.wrong(one, f"contradicts {other} at layer {layer}", "Leave one of them out")


def periodic(keys: Keys, layers: int) -> Sequence[int]:
    """Return Jamba's layers with experts. Source: JambaConfig of transformers 5.23."""
    if keys.whole("num_experts") == 1:
        return ()
    period = keys.whole("expert_layer_period")
    return range(keys.whole("expert_layer_offset", least=0), layers, period)


def some(
    where: Where,
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
        Which.
    count, top_k, width, dense
        The keys of the experts, of those that a token takes, of an expert's width, of a Dense
        FFN's.
    shared
        The keys whose product is the width of what every token passes, none without such.
    """

    def rule(keys: Keys, layers: int) -> Ffn:
        shared_d_ff, experts, found = int(bool(shared)), None, Refusals()
        for key in shared:
            with found.collect():
                shared_d_ff *= keys.whole(key, least=0)
        with found.collect():
            of = keys.one_of(*count)
            experts = routed(keys, of, top_k=top_k, width=width, shared_d_ff=shared_d_ff)
        found.check()
        return mixed(keys, layers, where(keys, layers), experts, dense)

    return rule


def listed(keys: Keys, layers: int) -> Sequence[int]:
    """Return Step 3's layers with experts: those of a text, else those behind the first three.

    Source: Step3p7TextConfig of transformers 5.23.
    """
    if not keys.has("moe_layers_enum"):
        return behind_first(keys, layers)
    found = keys.text("moe_layers_enum").replace(" ", "").split(",")
    if not all(re.fullmatch(r"\d{1,4}", each) for each in found):
        raise keys.wrong("moe_layers_enum", "is no list of layers")
    return sorted({int(each) for each in found} & set(range(layers)))


deepseek_moe = some(
    behind_first,
    count=("n_routed_experts",),
    shared=("n_shared_experts", "moe_intermediate_size"),
)
"""The FFNs of DeepSeek V2 and V3 and of what took their form."""
llama4_moe = some(
    interleaved,
    count=("num_local_experts",),
    width="intermediate_size",
    shared=("intermediate_size",),
    dense="intermediate_size_mlp",
)
"""The FFNs of Llama 4. Source: Llama4TextDecoderLayer and Llama4TextMoe of transformers 5.23."""

deepseek_v4_moe = some(
    everywhere,
    count=("n_routed_experts",),
    shared=("n_shared_experts", "moe_intermediate_size"),
)
"""The FFNs of DeepSeek V4: routed experts in every layer, in the first `num_hash_layers` by the
token's own number, whose router's product runs all the same (DeepseekV4HashRouter)."""


def granite_hybrid_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Granite 4: a Dense FFN in every layer, and experts beside it, if any.

    Engines run it behind the experts, and sum both over ranks apart, which they do of no shared
    experts. Source: GraniteMoeHybridDecoderLayer of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/granitemoehybrid.py and granitemoeshared.py (GraniteMoeSharedMLP),
    and sglang 0.5.23, sglang/srt/models/granitemoehybrid.py.
    """
    width = keys.whole("shared_intermediate_size")
    if not keys.whole("num_local_experts", least=0):
        return Ffn(width)
    experts = routed(keys, "num_local_experts", width="intermediate_size")
    return Ffn(width, range(layers), experts, beside=True)


GRANITE = moe(
    some(everywhere, count=("num_local_experts",), width="intermediate_size"),
    Names(at="block_sparse_moe", experts="", form=LINEAR, router="router.layer"),
)
"""The experts of Granite's models."""


def granite_hybrid_ffn(keys: Keys, layers: int) -> Layer:
    """Read what `granite_hybrid_moe` counts."""
    dense = ffn(at="shared_mlp", width="shared_intermediate_size", form=LINEAR)
    if not keys.whole("num_local_experts", least=0):
        return dense(keys, layers)
    return together(dense, GRANITE)(keys, layers)


_SHARED = ("num_shared_experts", "moe_intermediate_size")
afmoe_moe = some(behind_dense, count=("num_experts",), shared=_SHARED)
"""The FFNs of Trinity. Source: AfmoeSparseMoeBlock of transformers 5.23."""
exaone_moe = some(behind_first, count=("num_experts",), shared=_SHARED)
"""The FFNs of K-EXAONE. Source: ExaoneMoeSparseMoEBlock of transformers 5.23."""
laguna_moe = some(
    marked("mlp_layer_types"), count=("num_experts",), shared=("shared_expert_intermediate_size",)
)
"""The FFNs of Laguna. Source: LagunaSparseMoeBlock of transformers 5.23; vllm 0.33.0,
vllm/model_executor/models/laguna.py (get_mlp_layer_types), asks which layers have experts."""


def hy_v3_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Hunyuan 3.

    Source: HYV3MoE of transformers 5.23 and sglang 0.5.23, sglang/srt/models/hunyuan_v3.py:102;
    vllm 0.33.0, vllm/model_executor/models/hy_v3.py:144, has an expert's width of another key.
    """
    found, key = exaone_moe(keys, layers), "expert_hidden_dim"
    if found.experts and keys.whole(key, default=found.experts.d_ff) != found.experts.d_ff:
        raise keys.wrong(key, "differs from moe_intermediate_size, and engines disagree on it")
    return found


step3_moe = some(listed, count=("num_experts",), shared=("share_expert_dim",))
"""The FFNs of Step 3.5 and 3.7. Source: Step3p7TextConfig of transformers 5.23."""
mimo_v2_moe = some(marked("moe_layer_freq"), count=("n_routed_experts",))
"""The FFNs of MiMo-V2. Source: vllm 0.33.0, vllm/model_executor/models/mimo_v2.py."""


_m3_moe = some(
    marked("moe_layer_freq"),
    count=("num_local_experts",),
    width="intermediate_size",
    shared=("shared_intermediate_size",),
    dense="dense_intermediate_size",
)


def m3_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of MiniMax M3.

    Source: MiniMaxM3VLTextConfig of transformers 5.23; vllm 0.33.0, vllm/models/minimax_m3/nvidia/
    model.py:242-249, makes the shared experts of other keys.
    """
    found, key = _m3_moe(keys, layers), "n_shared_experts"
    if keys.has(key) and found.experts:
        wide = keys.whole(key, least=0) * found.experts.d_ff
        if wide != found.experts.shared_d_ff:
            why = f"makes shared experts {wide} wide, shared_intermediate_size others"
            raise keys.wrong(key, why)
    return found


def first_sharing(keys: Keys, layers: int) -> int:
    """Return from which layer of Gemma 4 on all attend to what layers before them cached."""
    return layers - keys.whole("num_kv_shared_layers", least=0, default=0)


def gemma4_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of Gemma 4: where layers have experts, a Dense FFN is beside them.

    Of E2B those of layers that share a cache are twice as wide.
    Source: Gemma4TextMLP and Gemma4TextDecoderLayer of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/gemma4.py:596-606, and sglang 0.5.23,
    sglang/srt/models/gemma4_causal.py:586-590, have the same widths.
    """
    d_ff, double = keys.whole("intermediate_size"), "use_double_wide_mlp"
    first = first_sharing(keys, layers)
    if keys.flag(double) and first < layers:
        if keys.flag("enable_moe_block"):
            raise keys.wrong(double, "is not read beside experts", "Leave one of them out")
        return Ffn(2 * d_ff, widths=((2 * d_ff, layers - first), (d_ff, first)))
    if not keys.flag("enable_moe_block"):
        return Ffn(d_ff)
    experts = routed(keys, "num_experts", top_k="top_k_experts")
    return Ffn(d_ff, range(layers), experts, beside=True)
