"""Kinds of attention: their weights, and what they keep of each position."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import structs

from nearfree.decoders.attention_kinds import Compressed, Grouped
from nearfree.decoders.decoder import head_width
from nearfree.decoders.kept import kept_of
from nearfree.decoders.keys import Keys
from nearfree.decoders.pieces import (
    Layer,
    Part,
    Piece,
    Plan,
    flag,
    linear,
    same,
    under,
    vector,
)
from nearfree.errors import Refusals, RefusedError

Window = Callable[[Keys, int], int | None]


class Heads(NamedTuple):
    """Heads of queries and of keys, and the elements of one of each and of a value's."""

    queries: int
    keys: int
    width: int
    values: int


def heads(keys: Keys) -> Heads:
    """Return the heads of most models: where no head_dim is given, they part the width."""
    queries, kv_heads = keys.wholes("num_attention_heads", "num_key_value_heads")
    width = head_width(keys)
    return Heads(queries, kv_heads, width, width)


def named_heads(queries: str, kv_heads: str, width: str, values: str) -> Callable[[Keys], Heads]:
    """Return what reads the heads under other names."""
    return lambda keys: Heads(
        keys.whole(queries), keys.whole(kv_heads), keys.whole(width), keys.whole(values)
    )


def all_positions(keys: Keys, layers: int) -> int | None:  # noqa: ARG001 (one signature for all)
    """Return None: a layer that looks at all positions."""
    return None


def window_of(key: str) -> Window:
    """Return what reads the window of a layer that has one."""
    return lambda keys, layers: keys.whole(key)  # noqa: ARG005


def gqa(
    *,
    module: str = "self_attn",
    shape: Callable[[Keys], Heads] = heads,
    window: Window = all_positions,
    qkv_bias: str | bool = False,
    output_bias: str | bool = False,
    fused: str = "",
    output: str = "o_proj",
    norm: str | bool = False,
    norm_names: tuple[str, str] = ("q_norm", "k_norm"),
    whole_norm: bool = False,
    gate: str = "",
    wide_gate: bool = False,
    sinks: str | bool = False,
    values: bool = True,
    chunked: bool = False,
    soft_cap: str = "",
    shares: bool = False,
) -> Plan:
    """Return the plan of attention with grouped queries.

    Parameters
    ----------
    module, fused, output, norm_names
        Names in the checkpoint; `fused` is that of query, key and value where they are one matrix.
    shape, window
        How the file says them.
    qkv_bias, output_bias, norm
        Whether there are biases, and norms of queries and keys, or the key that says so.
    whole_norm
        A norm's weight is as wide as all heads, not as one.
    gate
        "query" where the query is twice as wide, its other half a gate; else the name of a matrix
        with a gate for each head, if any.
    wide_gate
        Whether that matrix has a gate for each element that heads give.
    sinks
        Whether each head has a logit that is no position's, or the key that says so.
    values
        Whether values have a matrix of their own; they are cached either way.
    chunked
        Whether the window is a chunk of positions, at whose edge it begins anew.
    soft_cap
        The key of what caps the logits of attention, if any.
    shares
        Whether keys and values are those that a layer before has cached.
    """

    def plan(keys: Keys, layers: int) -> Layer:
        d_model, of, sight = keys.whole("hidden_size"), *_sized(keys, layers, shape, window)
        query = of.queries * of.width * (1 + (gate == "query"))
        widths = {"q_proj": query}
        if not shares:
            widths["k_proj"] = of.keys * of.width
        if values and not shares:
            widths["v_proj"] = of.keys * of.values
        if fused:
            widths = {fused: sum(widths.values())}
        parts: list[Part] = []
        for name, width in widths.items():
            bias = flag(keys, qkv_bias)
            parts += linear(under(module, name), "attention", d_model, width, bias=bias)
        inner, bias = of.queries * of.values, flag(keys, output_bias)
        parts += linear(under(module, output), "attention", inner, d_model, bias=bias)
        if flag(keys, norm):
            normed = list(zip(norm_names, (of.queries, of.keys), strict=True))
            for name, count in normed[:1] if shares else normed:
                parts += vector(under(module, name), of.width * (count if whole_norm else 1))
        if gate and gate != "query":
            width = inner if wide_gate else of.queries
            parts += linear(under(module, gate), "attention", d_model, width)
        if flag(keys, sinks):
            parts += vector(under(module, "sinks"), of.queries, "attention")
        attends = Grouped(
            heads=of.queries,
            kv_heads=of.keys,
            head_dim=of.width,
            window=None if chunked else sight,
            chunk=sight if chunked else None,
            sinks=flag(keys, sinks),
            soft_cap=keys.number(soft_cap) if keys.has(soft_cap) else None,
            keys_are_values=not values,
            shares=shares,
            gate=gate == "query",
            head_gates=gate not in ("", "query") and not wide_gate,
            wide_gates=wide_gate,
            value_dim=None if of.width == of.values else of.values,
        )
        if (of.width + of.values) % 2:
            raise keys.wrong("head_dim", f"has no mean with the {of.values} of values")
        return same(Piece(tuple(parts), kept_of(attends), (attends,)))

    return plan


def _sized(
    keys: Keys, layers: int, shape: Callable[[Keys], Heads], window: Window
) -> tuple[Heads, int | None]:
    """Return heads and window; RefusedError gives what is wrong of either."""
    found, of, sight = Refusals(), None, None
    with found.collect():
        of = shape(keys)
        if of.queries % of.keys:
            why = f"does not divide num_attention_heads {of.queries}"
            raise keys.wrong("num_key_value_heads", why)
    with found.collect():
        sight = window(keys, layers)
    if of is None or found.found:
        raise RefusedError(found.found)
    return of, sight


_SPARSE, _BLOCK = "sparse_attention_config", 128


def in_selected_blocks(keys: Keys, layers: int) -> Layer:
    """Read MiniMax M3's attention, which in some layers is to blocks that an indexer selects.

    What engines take for granted of `sparse_attention_config` is asked of it.
    Source: MiniMaxM3VLAttention and MiniMaxM3VLIndexer of transformers 5.23; vllm 0.33.0,
    vllm/models/minimax_m3/nvidia/model.py:392-448 and 506-509.
    """
    attention = gqa(norm=True)(keys, layers)
    if keys.flag("attention_output_gate"):
        raise keys.wrong("attention_output_gate", "is not read", "Give a model without it")
    inner, d_model = keys.inner(keys.one_of(_SPARSE)), keys.whole("hidden_size")
    if inner.has("use_sparse_attention") and not inner.flag("use_sparse_attention"):
        return attention
    found = Refusals()
    width = count = blocks = 1
    marks = list[Any]()
    with found.collect():
        width, count = inner.wholes("sparse_index_dim", "sparse_num_index_heads")
    with found.collect():
        blocks = inner.whole("sparse_topk_blocks")
    with found.collect():
        marks = _marks(inner, layers)
    with found.collect():
        if inner.whole("sparse_block_size", default=_BLOCK) != _BLOCK:
            raise inner.wrong("sparse_block_size", f"is not {_BLOCK}, the block of all kernels")
    with found.collect():
        if inner.has("sparse_score_type") and inner.text("sparse_score_type") != "max":
            raise inner.wrong("sparse_score_type", "is not max, and no other is read")
    with found.collect():
        if count != heads(keys).keys:
            why = f"is not num_key_value_heads {heads(keys).keys}, as engines take for granted"
            raise inner.wrong("sparse_num_index_heads", why)
    found.check()
    parts = (
        *linear("self_attn.index_q_proj", "attention", d_model, count * width),
        *linear("self_attn.index_k_proj", "attention", d_model, width),
        *vector("self_attn.index_q_norm", width),
        *vector("self_attn.index_k_norm", width),
    )
    dense = attention(0)
    of = structs.replace(
        dense.attention[0], selected=blocks * _BLOCK, index_heads=count, index_dim=width
    )
    sparse = Piece((*dense.parts, *parts), kept_of(of), (of,))
    return lambda layer: sparse if marks[layer] else dense


def _marks(inner: Keys, layers: int) -> list[Any]:
    """Return which layers select blocks; an indexer of theirs has no values."""
    marks, without = "sparse_attention_freq", "sparse_disable_index_value"
    selects = list(inner.each(marks))
    off = list(inner.each(without)) if inner.has(without) else [1] * layers
    for key, said in ((marks, selects), (without, off)):
        if len(said) < layers:
            raise inner.wrong(key, f"has {len(said)} entries for {layers} layers")
    if any(selects[layer] and not off[layer] for layer in range(layers)):
        raise inner.wrong(without, "leaves a layer whose indexer has values, which are not read")
    return selects


def compressed(ratio: int, *, index: bool = False) -> Plan:
    """Return the plan of DeepSeek V4's attention: a window, and one entry for `ratio` positions.

    With ratio 0 there is the window alone; `index` adds an indexer of entries, which then overlap.
    Source: DeepseekV4Attention, its compressors and indexer of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, width, rank, queries, groups, low = keys.wholes(
            "hidden_size", "head_dim", "q_lora_rank",
            "num_attention_heads", "o_groups", "o_lora_rank",
        )  # fmt: skip
        if queries * width % groups:
            raise keys.wrong("o_groups", f"does not divide the width of {queries} heads")
        if keys.whole("num_key_value_heads", default=1) != 1:
            raise keys.wrong("num_key_value_heads", "is not 1, the key that all heads share")
        parts: list[Part] = []

        def add(name: str, inputs: int, outputs: int) -> None:
            parts.extend(linear(f"attn.{name}", "attention", inputs, outputs))

        def compressor(where: str, size: int) -> None:
            wide = size * (1 + index)
            parts.append(Part(f"{where}.ape", "attention", 1, ratio * wide))
            parts.extend(linear(f"{where}.wkv", "attention", d_model, wide))
            parts.extend(linear(f"{where}.wgate", "attention", d_model, wide))
            parts.extend(vector(f"{where}.norm", size))

        add("wq_a", d_model, rank)
        parts += vector("attn.q_norm", rank)
        add("wq_b", rank, queries * width)
        add("wkv", d_model, width)
        parts += vector("attn.kv_norm", width)
        add("wo_a", queries * width // groups, groups * low)
        add("wo_b", groups * low, d_model)
        parts += vector("attn.attn_sink", queries, "attention")
        attends = Compressed(
            heads=queries, width=width, query_rank=rank, groups=groups, output_rank=low,
            window=keys.whole("sliding_window"), span=ratio or None,
        )  # fmt: skip
        if ratio:
            compressor("attn.compressor", width)
            if width % ratio:
                raise keys.wrong("head_dim", f"is no multiple of {ratio}")
            if index:
                indexers, size, selected = keys.wholes(
                    "index_n_heads", "index_head_dim", "index_topk"
                )
                attends = structs.replace(
                    attends, selected=selected, index_heads=indexers, index_dim=size
                )
                compressor("attn.indexer.compressor", size)
                add("indexer.wq_b", rank, indexers * size)
                add("indexer.weights_proj", d_model, indexers)
                if size % ratio:
                    raise keys.wrong("index_head_dim", f"is no multiple of {ratio}")
        return same(Piece(tuple(parts), kept_of(attends), (attends,)))

    return plan
