"""Multi-head latent attention (MLA): its weights, its cache and its kind."""

from typing import Any

from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.layouts.pieces import (
    Layer,
    Matrix,
    Piece,
    Plan,
    in_every_layer,
    projection,
    vector,
)
from nearfree.errors import Refusals


def mla(*, selects: bool = False, index: bool = False) -> Plan:
    """Return the plan of multi-head latent attention.

    With `selects` a query attends to selected positions only. With `index` the layer has an indexer
    that selects them; otherwise it takes the selection of an earlier layer.

    The cache holds for each position the latent of keys and values, the rotated part of the key
    and, with an indexer, the index key as an entry of its own.
    Source: DeepseekV3Attention and DeepseekV32Indexer of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, kind = keys.whole("hidden_size"), _latent(keys, selects=selects, index=index)
        bias, heads = keys.flag("attention_bias"), kind.heads
        query_width = heads * (kind.nope_dim + kind.rope_dim)
        parts = list[Matrix]()

        def add(name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
            parts.extend(projection(f"self_attn.{name}", inputs, outputs, bias=bias))

        if kind.query_rank:
            add("q_a_proj", d_model, kind.query_rank, bias=bias)
            parts += vector("self_attn.q_a_layernorm", kind.query_rank)
            add("q_b_proj", kind.query_rank, query_width)
        else:
            add("q_proj", d_model, query_width)
        add("kv_a_proj_with_mqa", d_model, kind.cached, bias=bias)
        parts += vector("self_attn.kv_a_layernorm", kind.latent)
        add("kv_b_proj", kind.latent, heads * (kind.nope_dim + kind.value_dim))
        add("o_proj", heads * kind.value_dim, d_model, bias=bias)
        if kind.index_heads and kind.index_dim:
            width = kind.index_dim
            add("indexer.wq_b", kind.query_rank or d_model, kind.index_heads * width)
            add("indexer.wk", d_model, width)
            parts += vector("self_attn.indexer.k_norm", width)
            parts += vector("self_attn.indexer.k_norm.bias", width)
            add("indexer.weights_proj", d_model, kind.index_heads)
        return in_every_layer(Piece(tuple(parts), caches_of(kind), (kind,)))

    return plan


_LATENT = {
    "heads": "num_attention_heads",
    "latent": "kv_lora_rank",
    "rope_dim": "qk_rope_head_dim",
    "nope_dim": "qk_nope_head_dim",
    "value_dim": "v_head_dim",
}
_SELECTED = {"selected": "index_topk"}
_INDEXER = {"index_heads": "index_n_heads", "index_dim": "index_head_dim"}


def _latent(keys: Keys, *, selects: bool, index: bool) -> Latent:
    """Return the sizes of latent attention; one error names all keys that are missing or wrong.

    A file must say null to have no latent of queries. With an indexer, which reads that latent,
    null is refused.
    """
    if keys.has("use_mla") and not keys.flag("use_mla"):
        reason = "contradicts the sizes of latents, and engines disagree on it"
        raise keys.wrong("use_mla", reason, "Write qk_nope_head_dim and qk_rope_head_dim as 0")
    names = _LATENT | (_SELECTED if selects else {}) | (_INDEXER if index else {})
    sizes, refusals = dict[str, Any](), Refusals()
    for name, key in names.items():
        with refusals.collect():
            sizes[name] = keys.whole(key)
    read = keys.whole if index else keys.whole_or_null
    rank = refusals.read(lambda: read("q_lora_rank"), None)
    refusals.check()
    return Latent(query_rank=rank, **sizes)
