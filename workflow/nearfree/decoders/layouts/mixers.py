"""Plans of attention: weights and cache by kind."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct, structs

from nearfree.decoders.attention_kinds import Compressed, Grouped
from nearfree.decoders.decoder import head_width
from nearfree.decoders.keys import Keys
from nearfree.decoders.layouts.cache import caches_of
from nearfree.decoders.layouts.pieces import (
    OF_ATTENTION,
    Layer,
    Matrix,
    Piece,
    Plan,
    dotted,
    flag,
    in_every_layer,
    projection,
    vector,
)
from nearfree.errors import Refusals, RefusedError

Window = Callable[[Keys, int], int | None]


class Heads(NamedTuple):
    """Numbers of query and key heads; elements of a head's query or key, and of its value."""

    queries: int
    kv_heads: int
    head_dim: int
    value_dim: int


def heads(keys: Keys) -> Heads:
    """Return the heads as most models give them; without head_dim they divide the hidden size."""
    queries, kv_heads = keys.wholes("num_attention_heads", "num_key_value_heads")
    width = head_width(keys)
    return Heads(queries, kv_heads, width, width)


def named_heads(queries: str, kv_heads: str, width: str, values: str) -> Callable[[Keys], Heads]:
    """Return the reader of heads whose sizes stand under the given keys."""
    return lambda keys: Heads(
        keys.whole(queries), keys.whole(kv_heads), keys.whole(width), keys.whole(values)
    )


def all_positions(keys: Keys, layers: int) -> int | None:  # noqa: ARG001 (one signature for all)
    """Return None, for layers that attend to all positions."""
    return None


def window_of(key: str) -> Window:
    """Return the reader of a window whose size stands under a key."""
    return lambda keys, layers: keys.whole(key)  # noqa: ARG005


class Attention(Struct, frozen=True):
    """A plan of attention, and the rule of its window; None where layers may differ in it."""

    plan: Plan
    window: Window | None

    def __call__(self, keys: Keys, layers: int) -> Layer:
        """Read the keys of a file by the plan."""
        return self.plan(keys, layers)


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
    alibi: bool = False,
) -> Attention:
    """Return the plan of grouped-query attention.

    Parameters
    ----------
    module, fused, output, norm_names
        Names in the checkpoint; `fused` is the name of the one matrix of query, key and value.
    shape, window
        Readers of the heads and of the window.
    qkv_bias, output_bias, norm
        Whether there are biases, and norms of queries and keys; or the key that says so.
    whole_norm
        Whether a norm's weight is as wide as all heads together, not as one head.
    gate
        "query" if the query projection is twice as wide and its other half is a gate; otherwise the
        name of a matrix with one gate per head, if any.
    wide_gate
        Whether that matrix has one gate per element of the heads' output.
    sinks
        Whether each head has an attention sink, a logit of no position; or the key that says so.
    values
        Whether values have a matrix of their own; they are cached either way.
    chunked
        Whether the window is a chunk of positions: attention restarts at its edge.
    soft_cap
        The key of the soft cap of attention logits, if any.
    shares
        Whether the layer attends to keys and values that an earlier layer has cached.
    alibi
        Whether logits are biased by distance.
    """

    def plan(keys: Keys, layers: int) -> Layer:
        d_model = keys.whole("hidden_size")
        sizes, window_size = _sized(keys, layers, shape, window)
        queries, kv_heads, head_dim, value_dim = sizes
        widths = {"q_proj": queries * head_dim * (1 + (gate == "query"))}
        if not shares:
            widths["k_proj"] = kv_heads * head_dim
        if values and not shares:
            widths["v_proj"] = kv_heads * value_dim
        if fused:
            widths = {fused: sum(widths.values())}
        parts: list[Matrix] = []
        for name, width in widths.items():
            bias = flag(keys, qkv_bias)
            parts += projection(dotted(module, name), d_model, width, bias=bias)
        output_inputs, bias = queries * value_dim, flag(keys, output_bias)
        parts += projection(dotted(module, output), output_inputs, d_model, bias=bias)
        if flag(keys, norm):
            norm_heads = list(zip(norm_names, (queries, kv_heads), strict=True))
            for name, count in norm_heads[:1] if shares else norm_heads:
                parts += vector(dotted(module, name), head_dim * (count if whole_norm else 1))
        if gate and gate != "query":
            width = output_inputs if wide_gate else queries
            parts += projection(dotted(module, gate), d_model, width)
        if flag(keys, sinks):
            parts += vector(dotted(module, "sinks"), queries, OF_ATTENTION)
        kind = Grouped(
            heads=queries,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=None if chunked else window_size,
            chunk=window_size if chunked else None,
            sinks=flag(keys, sinks),
            soft_cap=keys.number(soft_cap) if keys.has(soft_cap) else None,
            keys_are_values=not values,
            shares=shares,
            alibi=alibi,
            gate=gate == "query",
            head_gates=gate not in ("", "query") and not wide_gate,
            wide_gates=wide_gate,
            value_dim=None if head_dim == value_dim else value_dim,
        )
        if (head_dim + value_dim) % 2:
            raise keys.wrong("head_dim", f"has no mean with the {value_dim} of values")
        return in_every_layer(Piece(tuple(parts), caches_of(kind), (kind,)))

    return Attention(plan, None if window is all_positions else window)


def _sized(
    keys: Keys, layers: int, shape: Callable[[Keys], Heads], window: Window
) -> tuple[Heads, int | None]:
    """Return heads and window; RefusedError names what is wrong with either."""
    refusals, sizes = Refusals(), None
    with refusals.collect():
        sizes = shape(keys)
        if sizes.queries % sizes.kv_heads:
            reason = f"does not divide num_attention_heads {sizes.queries}"
            raise keys.wrong("num_key_value_heads", reason)
    window_size = refusals.read(lambda: window(keys, layers), None)
    if sizes is None or refusals.found:
        raise RefusedError(refusals.found)
    return sizes, window_size


_SPARSE, _BLOCK = "sparse_attention_config", 128


def in_selected_blocks(keys: Keys, layers: int) -> Layer:
    """Read MiniMax M3's attention, which in some layers is to blocks that an indexer selects.

    What engines assume of `sparse_attention_config` is checked.
    Source: MiniMaxM3VLAttention and MiniMaxM3VLIndexer of transformers 5.23; vllm 0.33.0,
    vllm/models/minimax_m3/nvidia/model.py:392-448 and 506-509.
    """
    attention = gqa(norm=True)(keys, layers)
    if keys.flag("attention_output_gate"):
        raise keys.wrong("attention_output_gate", "is not read", "Give a model without it")
    inner, d_model = keys.inner(keys.one_of(_SPARSE)), keys.whole("hidden_size")
    if inner.has("use_sparse_attention") and not inner.flag("use_sparse_attention"):
        return attention
    refusals = Refusals()
    sizes = ("sparse_index_dim", "sparse_num_index_heads")
    width, count = refusals.read(lambda: inner.wholes(*sizes), [1, 1])
    blocks = refusals.read(lambda: inner.whole("sparse_topk_blocks"), 1)
    selects_by_layer = refusals.read(lambda: _selecting_layers(inner, layers), [])
    with refusals.collect():
        if inner.whole("sparse_block_size", default=_BLOCK) != _BLOCK:
            raise inner.wrong("sparse_block_size", f"is not {_BLOCK}, the block of all kernels")
    with refusals.collect():
        if inner.has("sparse_score_type") and inner.text("sparse_score_type") != "max":
            raise inner.wrong("sparse_score_type", "is not max, and no other is read")
    with refusals.collect():
        if count != heads(keys).kv_heads:
            why = f"is not num_key_value_heads {heads(keys).kv_heads}, as engines take for granted"
            raise inner.wrong("sparse_num_index_heads", why)
    refusals.check()
    parts = (
        *projection("self_attn.index_q_proj", d_model, count * width),
        *projection("self_attn.index_k_proj", d_model, width),
        *vector("self_attn.index_q_norm", width),
        *vector("self_attn.index_k_norm", width),
    )
    dense = attention(0)
    kind = structs.replace(
        dense.attention[0], selected=blocks * _BLOCK, index_heads=count, index_dim=width
    )
    sparse = Piece((*dense.parts, *parts), caches_of(kind), (kind,))
    return lambda layer: sparse if selects_by_layer[layer] else dense


def _selecting_layers(inner: Keys, layers: int) -> list[Any]:
    """Return for each layer whether it selects blocks; its indexer must have no values."""
    select_key, no_value_key = "sparse_attention_freq", "sparse_disable_index_value"
    selects = list(inner.each(select_key))
    without_values = list(inner.each(no_value_key)) if inner.has(no_value_key) else [1] * layers
    for key, entries in ((select_key, selects), (no_value_key, without_values)):
        if len(entries) < layers:
            raise inner.wrong(key, f"has {len(entries)} entries for {layers} layers")
    if any(selects[layer] and not without_values[layer] for layer in range(layers)):
        raise inner.wrong(
            no_value_key, "leaves a layer whose indexer has values, which are not read"
        )
    return selects


def compressed(ratio: int, *, index: bool = False) -> Plan:
    """Return the plan of DeepSeek V4's attention: a window, and one entry per `ratio` positions.

    With ratio 0 there is only the window. `index` adds an indexer of entries; these then overlap.
    Source: DeepseekV4Attention, its compressors and indexer of transformers 5.23.
    """

    def plan(keys: Keys, layers: int) -> Layer:  # noqa: ARG001
        d_model, width, rank, queries, groups, output_rank = keys.wholes(
            "hidden_size", "head_dim", "q_lora_rank",
            "num_attention_heads", "o_groups", "o_lora_rank",
        )  # fmt: skip
        if queries * width % groups:
            raise keys.wrong("o_groups", f"does not divide the width of {queries} heads")
        if keys.whole("num_key_value_heads", default=1) != 1:
            raise keys.wrong("num_key_value_heads", "is not 1, the key that all heads share")
        parts: list[Matrix] = []

        def add(name: str, inputs: int, outputs: int) -> None:
            parts.extend(projection(f"attn.{name}", inputs, outputs))

        def compressor(module: str, head_dim: int) -> None:
            entry_width = head_dim * (1 + index)
            parts.append(Matrix(f"{module}.ape", OF_ATTENTION, 1, ratio * entry_width))
            parts.extend(projection(f"{module}.wkv", d_model, entry_width))
            parts.extend(projection(f"{module}.wgate", d_model, entry_width))
            parts.extend(vector(f"{module}.norm", head_dim))

        add("wq_a", d_model, rank)
        parts += vector("attn.q_norm", rank)
        add("wq_b", rank, queries * width)
        add("wkv", d_model, width)
        parts += vector("attn.kv_norm", width)
        add("wo_a", queries * width // groups, groups * output_rank)
        add("wo_b", groups * output_rank, d_model)
        parts += vector("attn.attn_sink", queries, OF_ATTENTION)
        kind = Compressed(
            heads=queries, width=width, query_rank=rank, groups=groups, output_rank=output_rank,
            window=keys.whole("sliding_window"), span=ratio or None,
        )  # fmt: skip
        if ratio:
            compressor("attn.compressor", width)
            if width % ratio:
                raise keys.wrong("head_dim", f"is no multiple of {ratio}")
            if index:
                index_heads, index_dim, selected = keys.wholes(
                    "index_n_heads", "index_head_dim", "index_topk"
                )
                kind = structs.replace(
                    kind, selected=selected, index_heads=index_heads, index_dim=index_dim
                )
                compressor("attn.indexer.compressor", index_dim)
                add("indexer.wq_b", rank, index_heads * index_dim)
                add("indexer.weights_proj", d_model, index_heads)
                if index_dim % ratio:
                    raise keys.wrong("index_head_dim", f"is no multiple of {ratio}")
        return in_every_layer(Piece(tuple(parts), caches_of(kind), (kind,)))

    return plan
