"""Multi-head latent attention: its weights, what it keeps, and how it attends."""

from typing import Any

from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.kept import kept_of
from nearfree.decoders.keys import Keys
from nearfree.decoders.pieces import Layer, Part, Piece, Plan, linear, same, vector
from nearfree.errors import Refusals


def mla(*, selects: bool = False, index: bool = False) -> Plan:
    """Return the plan of multi-head latent attention.

    With `selects` a query attends to some positions alone; `index` with an indexer that chooses
    them, else as an earlier layer chose.

    What is cached of a position is the latent of keys and values, the rotated part of the key and,
    with an indexer, its key, apart.
    Source: DeepseekV3Attention and DeepseekV32Indexer of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, of = keys.whole("hidden_size"), _latent(keys, selects=selects, index=index)
        bias, heads = keys.flag("attention_bias"), of.heads
        query = heads * (of.nope_dim + of.rope_dim)
        parts = list[Part]()

        def add(name: str, inputs: int, outputs: int, *, bias: bool = False) -> None:
            parts.extend(linear(f"self_attn.{name}", "attention", inputs, outputs, bias=bias))

        if of.query_rank:
            add("q_a_proj", d_model, of.query_rank, bias=bias)
            parts += vector("self_attn.q_a_layernorm", of.query_rank)
            add("q_b_proj", of.query_rank, query)
        else:
            add("q_proj", d_model, query)
        add("kv_a_proj_with_mqa", d_model, of.cached, bias=bias)
        parts += vector("self_attn.kv_a_layernorm", of.latent)
        add("kv_b_proj", of.latent, heads * (of.nope_dim + of.value_dim))
        add("o_proj", heads * of.value_dim, d_model, bias=bias)
        if of.index_heads and of.index_dim:
            width = of.index_dim
            add("indexer.wq_b", of.query_rank or d_model, of.index_heads * width)
            add("indexer.wk", d_model, width)
            parts += vector("self_attn.indexer.k_norm", width)
            parts += vector("self_attn.indexer.k_norm.bias", width)
            add("indexer.weights_proj", d_model, of.index_heads)
        return same(Piece(tuple(parts), kept_of(of), (of,)))

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
    """Return the sizes of latent attention; all keys that are missing or wrong are refused at once.

    A file must write null to have no latent of queries. An indexer reads that latent.
    """
    names = _LATENT | (_SELECTED if selects else {}) | (_INDEXER if index else {})
    sizes, found = dict[str, Any](), Refusals()
    for name, key in names.items():
        with found.collect():
            sizes[name] = keys.whole(key)
    rank = None
    with found.collect():
        rank = keys.whole("q_lora_rank") if index else keys.whole_or_null("q_lora_rank")
    found.check()
    return Latent(query_rank=rank, **sizes)
