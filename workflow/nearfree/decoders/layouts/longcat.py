"""LongCat-Flash: a layer has two attentions, two Dense FFNs and experts, of which some are idle."""

from msgspec import structs

from nearfree.decoders.decoder import Experts, Ffn
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.feeds import Feed, all_layers, ffn, moe, moe_rule
from nearfree.decoders.layouts.latent import mla
from nearfree.decoders.layouts.layout import layered
from nearfree.decoders.layouts.pieces import Layer, Piece, in_every_layer, joined, linear, norms
from nearfree.errors import Refusals

_WIDTH, _TOP_K, _IDLE = "ffn_hidden_size", "moe_topk", "zero_expert_num"
_EXPERTS = moe_rule(
    all_layers, count=("n_routed_experts",), top_k=_TOP_K, width="expert_ffn_hidden_size",
    dense=_WIDTH,
)  # fmt: skip


def _halves(piece: Piece, module: str) -> Piece:
    """Return a piece twice, with the numbers that a checkpoint gives its two modules."""
    return joined(
        [
            piece._replace(
                parts=tuple(
                    structs.replace(part, name=part.name.replace(module, f"{module}.{half}", 1))
                    for part in piece.parts
                )
            )
            for half in range(2)
        ]
    )


_OTHERS = {
    **dict.fromkeys(("index_topk", "index_n_heads"), "selects what layers attend to"),
    **dict.fromkeys(
        ("ngram_vocab_size_ratio", "oe_vocab_size_ratio", "emb_neighbor_num", "oe_neighbor_num"),
        "adds tables and products of n-grams",
    ),
}
"""Keys of later models of the type. Source: sglang 0.5.23, sglang/srt/configs/longcat_flash.py and
model_config.py:191-215; vllm 0.33.0, vllm/model_executor/models/longcat_flash_ngram.py."""


def _attention(keys: Keys, layers: int) -> Layer:
    """Read both attentions of a layer; what other models of the type have is refused."""
    refusals, method = Refusals(), "attention_method"
    for key, reason in _OTHERS.items():
        with refusals.collect():
            if not keys.empty(key):
                raise keys.wrong(key, f"{reason}, which is not read of this model type")
    with refusals.collect():
        if keys.has(method) and keys.text(method) != "MLA":
            raise keys.wrong(method, "is not MLA, the only one that engines run")
    refusals.check()
    return in_every_layer(_halves(mla()(keys, layers)(0), "self_attn"))


def _experts(keys: Keys, layers: int) -> tuple[Experts, int]:
    """Return the experts that compute, and the outputs of the router, which has more.

    Positions are taken to choose idle experts as often as others, so that a position has fewer
    experts than it chooses: on average a whole number, as in all published models.
    """
    experts, idle = _EXPERTS(keys, layers).experts, keys.whole(_IDLE, least=0)
    if experts is None:
        raise keys.wrong("num_layers", "leaves no layer with experts")
    chosen, outputs = experts.top_k * experts.experts, experts.experts + idle
    if chosen % outputs:
        why = f"leaves a position {chosen / outputs:.3g} of {experts.top_k} experts on average"
        raise keys.wrong(_IDLE, f"{why}, which is no whole number")
    return structs.replace(experts, top_k=chosen // outputs, idle=idle), outputs


def longcat_moe(keys: Keys, layers: int) -> Ffn:
    """Return the FFNs of LongCat-Flash: two Dense FFNs in every layer, and experts.

    A router chooses among the experts and idle ones, which return their rows as they are.
    Source: LongcatFlashMoE of transformers 5.23; vllm 0.33.0,
    vllm/model_executor/models/longcat_flash.py (LongcatMoe, FlashDecoderLayer).
    """
    experts, _ = _experts(keys, layers)
    return Ffn(keys.whole(_WIDTH), range(layers), experts, dense=2 * layers)


def _ffns(keys: Keys, layers: int) -> Layer:
    """Read the FFNs, whose router has an output for each idle expert, too."""
    _, outputs = _experts(keys, layers)
    parts = moe(_EXPERTS)(keys, layers)(0).parts
    router = linear(
        "mlp.router.classifier", "router", keys.whole("hidden_size"), outputs,
        bias=keys.flag("router_bias"),
    )  # fmt: skip
    dense = ffn(module="mlps", width=_WIDTH)(keys, layers)(0)
    own = Piece((*(part for part in parts if part.kind != "router"), *router))
    return in_every_layer(joined([own, _halves(dense, "mlps")]))


LONGCAT = {
    "longcat_flash": layered(
        norms(
            "input_layernorm.0", "input_layernorm.1", "post_attention_layernorm.0",
            "post_attention_layernorm.1",
        ),
        _attention,
        Feed(_ffns, longcat_moe),
    ),
}  # fmt: skip
"""By model type. Source: modeling file of transformers 5.23."""
