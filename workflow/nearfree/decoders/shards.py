"""What one rank of a deployment runs of a decoder: its shard, a decoder of smaller sizes.

Query, key, value, gate and up are cut by their outputs, the output projection and down by their
inputs, so that a sum over ranks ends both halves of a layer; embedding and LM head by rows of a
padded vocabulary. Heads of keys and values beyond their count lie on several ranks, norms and the
router on all. Weights that share a scale are not cut apart: vLLM does it for block-wise FP8 experts
alone, by finer blocks whose tiles are not read (layers/fused_moe/oracle/fp8.py:292-321).
Source: vllm 0.33.0, vllm/model_executor/models/llama.py (LlamaAttention, LlamaMLP),
layers/linear.py:1065-1071 (heads), 497 and 1708 (cuts), layers/quantization/auto_awq.py:819-824,
layers/quantization/utils/fp8_utils.py:1319-1327 and 1361-1373 (scales); sglang 0.5.23,
sglang/srt/layers/linear.py:1139-1145.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import lcm

from msgspec import UNSET, Struct, structs

from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.decoders.attention_kinds import (
    Compressed,
    DeltaNet,
    Grouped,
    Kind,
    Latent,
    Mamba2,
    ShortConv,
    State,
)
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.engines import VLLM, Engine
from nearfree.errors import Refusal

Groups = Mapping[str, tuple[int, int]]
"""By kind of matrices, how many outputs and how many inputs share a scale: 1 and 1 where a cut
parts none, as with one scale a row."""


class Shard(Struct, frozen=True, kw_only=True):
    """The part of a decoder that a rank runs.

    `decoder` has the rank's sizes, but all layers: a forward passes every pipeline stage, one after
    the other, so that its T(N) is the sum over stages, whose ranks all have these sizes. Experts
    are as many as in the model, each as wide as its cut, of which the rank has 1 / `ep`.
    Requests are parted among `attention` groups of ranks where they attend, among `ffn` groups in
    the FFN and the LM head, and among `ready` ones where rows are made ready for experts: in the
    router, a latent and the shared experts. The experts see all of them.
    """

    decoder: Decoder
    ep: int = 1
    attention: int = 1
    ffn: int = 1
    ready: int = 1


def shard(decoder: Decoder, parallel: Parallel = ONE_GPU, engine: Engine = VLLM) -> Shard:
    """Return what a rank runs; all ranks of a deployment that `refusals` lets pass have one size.

    Where ep does not divide the experts it is the rank with most.
    """
    ranks, kind = engine.ranks(parallel), decoder.model_type
    groups, parted = engine.groups(parallel), engine.parts_rows(parallel, kind)
    cut = structs.replace(
        decoder,
        heads=decoder.heads // parallel.tp,
        kv_heads=held_heads(decoder.kv_heads, parallel.tp),
        d_ff=decoder.d_ff and decoder.d_ff // ranks,
        vocabulary=cut_vocabulary(decoder.vocabulary, engine, ranks),
        experts=decoder.experts
        and _cut(
            decoder.experts, parallel.moe_tp, 1 if parted else ranks, UNEVEN_EXPERTS.get(kind, 1)
        ),
    )
    if decoder.ffn_widths is not UNSET:
        widths = tuple((width // ranks, layers) for width, layers in decoder.ffn_widths)
        cut = structs.replace(cut, ffn_widths=widths)
    if decoder.kinds is not UNSET:
        kinds = tuple(_cut_kind(kind, parallel.tp) for kind in decoder.kinds)
        cut = structs.replace(cut, kinds=kinds)
    ready = parallel.ranks if parted else groups
    return Shard(decoder=cut, ep=parallel.ep, attention=parallel.dp, ffn=groups, ready=ready)


def _cut_kind(kind: Kind, tp: int) -> Kind:
    """Return what a rank has of a kind of attention: latents, entries and their indexer whole.

    Of attention to entries whole groups of heads are cut: vllm 0.32.0,
    vllm/models/deepseek_v4/attention.py (wq_b and wo_a by outputs, wo_b by inputs, the rest whole).
    """
    heads = kind.heads // tp
    if isinstance(kind, DeltaNet):
        return structs.replace(kind, heads=heads, key_heads=max(1, kind.key_heads // tp))
    if isinstance(kind, Mamba2):
        return structs.replace(kind, heads=heads, groups=max(1, kind.groups // tp))
    if isinstance(kind, ShortConv):
        return structs.replace(kind, channels=heads)
    if isinstance(kind, Compressed):
        return structs.replace(kind, heads=heads, groups=max(1, kind.groups // tp))
    if isinstance(kind, Grouped):
        index = kind.index_heads and held_heads(kind.index_heads, tp)
        kv_heads = held_heads(kind.kv_heads, tp)
        return structs.replace(kind, heads=heads, kv_heads=kv_heads, index_heads=index)
    return structs.replace(kind, heads=heads)


def held_heads(kv_heads: int, tp: int) -> int:
    """Return how many heads of keys and values a rank has: one at least."""
    return max(1, kv_heads // tp)


def cut_vocabulary(vocabulary: int, engine: Engine, ranks: int) -> int:
    """Return the rows of the embedding or the LM head that a rank has."""
    return vocabulary if ranks == 1 else -(-engine.padded(vocabulary, ranks) // ranks)


UNEVEN_EXPERTS = {"gpt_oss": 32}
"""Kinds of models whose experts are cut into parts of whole blocks of so many columns, the last of
them filled up: vllm 0.20.2, vllm/model_executor/models/gpt_oss.py:373-380; sglang 0.5.9,
sglang/srt/models/gpt_oss.py:783-809."""

_UNCHECKED = ("mimo_v2_flash",)
"""Kinds of models of whose query, key and value SGLang cuts blocks of quantisation: sglang 0.5.23,
sglang/srt/models/mimo_v2.py:724 (skip_block_quant_check); mimo_v2_flash.py:461 of 0.5.9."""


def _cut(experts: Experts, moe_tp: int, ranks: int, step: int) -> Experts:
    whole = -(-experts.d_ff // (moe_tp * step)) * step if moe_tp > 1 else experts.d_ff
    return structs.replace(experts, d_ff=whole, shared_d_ff=experts.shared_d_ff // ranks)


def refusals(
    decoder: Decoder, parallel: Parallel, engine: Engine, groups: Groups
) -> tuple[Refusal, ...]:
    """Return every reason why an engine does not spread a decoder so, with the sizes that it takes.

    Parameters
    ----------
    groups
        Of kinds of matrices whose weights share scales.
    """
    found = [
        *_heads(decoder, parallel),
        *_cuts(decoder, parallel, engine, groups),
        *_experts(decoder, parallel, engine),
    ]
    if parallel.pp > decoder.layers:
        reason = f"{parallel.pp} is more than the {decoder.layers} layers"
        found.append(_refused("pp", reason, f"Give {decoder.layers} stages at most"))
    return tuple(dict.fromkeys(found))


def _heads(decoder: Decoder, parallel: Parallel) -> Iterator[Refusal]:
    tp = parallel.tp
    for kind in decoder.attention:
        if isinstance(kind, DeltaNet):
            if kind.key_heads % tp:
                what = f"{kind.key_heads} heads of keys of a gated delta net"
                yield _uneven("tp", tp, what, _divisors(kind.key_heads))
            continue
        if isinstance(kind, Mamba2):
            if not _parts(kind, tp):
                what = f"{kind.heads} heads of a Mamba-2 mixer in {kind.groups} groups"
                yield _uneven("tp", tp, what, [n for n in _divisors(kind.heads) if _parts(kind, n)])
            continue
        if isinstance(kind, ShortConv):
            if kind.channels % tp:
                what = f"{kind.channels} channels of a short convolution"
                yield _uneven("tp", tp, what, _divisors(kind.channels))
            continue
        heads, kv_heads = kind.heads, kind.kv_heads if isinstance(kind, Grouped) else 1
        if not _fits(heads, kv_heads, tp):
            what = f"{heads} heads over {kv_heads} of keys and values"
            if isinstance(kind, Latent):
                what = f"{heads} heads over a latent"
            elif isinstance(kind, Compressed):
                what = f"{heads} heads over one key"
            sizes = [n for n in _divisors(heads) if _fits(heads, kv_heads, n)]
            yield _uneven("tp", tp, what, sizes)


def _parts(kind: Mamba2, tp: int) -> bool:
    """Return whether ranks part a mixer: heads and groups evenly, and a single group is on each.

    Source: vllm 0.33.0, vllm/model_executor/layers/mamba/mamba_mixer2.py:316-323 and 333-341;
    sglang 0.5.23, sglang/srt/layers/attention/mamba/mamba.py:245-252 and 269-278.
    """
    return not kind.heads % tp and (kind.groups == 1 or not kind.groups % tp)


def _fits(heads: int, kv_heads: int, tp: int) -> bool:
    return not (heads % tp or (kv_heads % tp and tp % kv_heads))


def _cuts(
    decoder: Decoder, parallel: Parallel, engine: Engine, groups: Groups
) -> Iterator[Refusal]:
    """Yield what of the matrices' cuts is no whole number, or parts what shares a scale."""
    tp, ranks, moe_tp = parallel.tp, engine.ranks(parallel), parallel.moe_tp
    over = "tp x dp" if engine.over_all else "tp"
    vocabulary = engine.padded(decoder.vocabulary, ranks)
    if vocabulary % ranks:
        what = f"a vocabulary of {vocabulary} rows with its padding"
        yield _uneven(over, ranks, what, _divisors(vocabulary))
    merged = engine.whole_blocks
    checked = merged and decoder.model_type not in _UNCHECKED
    for each in decoder.attention:
        if each.heads % tp == 0:
            matrices = "state" if isinstance(each, State) else "attention"
            yield from _cut_products(each, tp, groups.get(matrices, (1, 1)), merged=checked)
    experts = decoder.experts
    for kind, name, size, key, parts in (
        *(("ffn", "width of the Dense FFN", width, over, ranks)
          for width, _ in decoder.dense_ffns),
        ("experts", "width of an expert", experts and experts.d_ff, "tp x dp / ep", moe_tp),
        ("shared_experts", "width of the shared experts", experts and experts.shared_d_ff, over,
         1 if engine.parts_rows(parallel, decoder.model_type) else ranks),
    ):  # fmt: skip
        rows, columns = groups.get(kind, (1, 1))
        step = columns if kind != "experts" and not merged else lcm(rows, columns)
        if kind == "experts" and decoder.model_type in UNEVEN_EXPERTS:
            continue
        for refusal in _sized(key, parts, name, size or 0, step):
            whole = kind == "experts" and experts and parallel.ranks <= experts.experts
            uncut = f"{refusal.remedy}; or --ep {parallel.ranks}, which cuts no expert"
            yield refusal._replace(remedy=uncut) if whole else refusal


def _cut_products(
    kind: Kind, tp: int, scaled: tuple[int, int], *, merged: bool
) -> Iterator[Refusal]:
    rows, columns = scaled
    if isinstance(kind, Compressed):
        yield from _sized("tp", tp, "groups of heads of the output projection", kind.groups, 1)
        yield from _sized("tp", tp, "outputs of the query", kind.heads * kind.width, rows)
    yield from _sized("tp", tp, "inputs of the output projection", kind.inputs, columns)
    if isinstance(kind, DeltaNet) and kind.key_heads % tp == 0:
        keys = kind.key_heads * kind.key_dim
        yield from _sized("tp", tp, "keys of a gated delta net", keys, rows)
        yield from _sized("tp", tp, "values of a gated delta net", kind.inputs, rows)
    if isinstance(kind, Mamba2) and _parts(kind, tp):
        pairs = max(kind.groups, tp) * kind.state_dim
        yield from _sized("tp", tp, "heads of a Mamba-2 mixer", kind.inputs, rows)
        yield from _sized("tp", tp, "groups of a Mamba-2 mixer", pairs, rows)
        yield from _sized("tp", tp, "steps of a Mamba-2 mixer", kind.heads, rows)
    if isinstance(kind, ShortConv):
        yield from _sized("tp", tp, "channels of a short convolution", kind.channels, rows)
    if merged and isinstance(kind, Grouped):
        yield from _sized("tp", tp, "outputs of the query", kind.heads * kind.head_dim, rows)
        held = max(kind.kv_heads, tp)
        widths = {"keys": kind.head_dim, "values": kind.values}
        if kind.value_dim is None:
            widths = {"keys and values": kind.head_dim}
        for what, width in widths.items():
            yield from _sized("tp", tp, f"outputs of {what}", width * held, rows)
    elif merged and isinstance(kind, Latent):
        query = kind.heads * (kind.nope_dim + kind.rope_dim)
        yield from _sized("tp", tp, "outputs of the query", query, rows)


def _sized(key: str, parts: int, name: str, size: int, step: int) -> Iterator[Refusal]:
    """Yield a refusal where a size over `parts` is no whole number of steps."""
    if parts == 1 or size % (parts * step) == 0:
        return
    what = f"{size}, the {name}" + (f", in groups of {step} with one scale" if step > 1 else "")
    yield _uneven(key, parts, what, _divisors(size // step) if size % step == 0 else [1])


def _experts(decoder: Decoder, parallel: Parallel, engine: Engine) -> Iterator[Refusal]:
    ep, experts = parallel.ep, decoder.experts
    if experts is None:
        if ep > 1:
            yield without_experts(ep)
        return
    if engine.lone_groups and min(parallel.tp, parallel.dp) > 1:
        reason = (
            f"{parallel.dp} is asked with tp {parallel.tp}, and a group of {engine.name}'s that "
            "attends to requests of its own is one rank"
        )
        yield _refused("dp", reason, f"Give --tp 1 --dp {parallel.ranks}, or another engine")
    if ep > experts.experts:
        reason = f"{ep} is more than the {experts.experts} experts"
        yield _refused("ep", reason, f"Give {experts.experts} at most")
    elif experts.experts % ep and not engine.uneven:
        yield _uneven("ep", ep, f"{experts.experts} experts", _divisors(experts.experts))
    if ep not in (1, parallel.ranks) and not engine.parts_experts:
        yield _refused(
            "ep",
            f"{ep} leaves each expert cut over {parallel.moe_tp} ranks, which {engine.name} does "
            "not do",
            f"Give 1 or {parallel.ranks}, or --moe sglang",
        )


def without_experts(ep: int) -> Refusal:
    """Return why a model without experts is not spread with an ep."""
    return _refused("ep", f"{ep} is asked of a model without experts", "Leave it out")


def _uneven(key: str, parts: int, what: str, sizes: Sequence[int]) -> Refusal:
    return _refused(key, f"{parts} does not divide {what}", f"Sizes that do: {_listed(sizes)}")


def _refused(key: str, reason: str, remedy: str) -> Refusal:
    return Refusal("", key, reason, remedy)


_MOST_LISTED = 12


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:_MOST_LISTED]))
    return shown + (", and larger ones" if len(sizes) > _MOST_LISTED else "")


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
