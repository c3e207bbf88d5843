"""The shard of a decoder that one rank of a deployment runs: a decoder of smaller sizes.

Query, key, value, gate and up are sharded by their outputs, the output projection and down by their
inputs, so that an all-reduce ends both halves of a layer. Embedding and LM head are sharded by rows
of a padded vocabulary. If there are more ranks than key heads, several ranks hold the same head;
norms and the router are on all ranks. Weights that share a scale stay on one rank: only vLLM splits
them, for block-wise FP8 experts, by finer blocks whose tiles are not read
(layers/fused_moe/oracle/fp8.py:292-321).
Source: vllm 0.33.0, vllm/model_executor/models/llama.py (LlamaAttention, LlamaMLP),
layers/linear.py:1065-1071 (heads), 497 and 1708 (cuts), layers/quantization/auto_awq.py:819-824,
layers/quantization/utils/fp8_utils.py:1319-1327 and 1361-1373 (scales); sglang 0.5.23,
sglang/srt/layers/linear.py:1139-1145.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import lcm

from msgspec import UNSET, Struct, structs

from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind, Latent
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.layouts.pieces import OF_ATTENTION
from nearfree.decoders.ranks.engines import SGLANG, VLLM, Engine
from nearfree.decoders.state_kinds import DeltaNet, Mamba2, ShortConv, State
from nearfree.errors import Refusal

Groups = Mapping[str, tuple[int, int]]
"""By kind of matrices, the numbers of outputs and of inputs that share a scale. Both are 1 where no
shard splits a scale's weights, as with one scale per row."""


class Shard(Struct, frozen=True, kw_only=True):
    """The part of a decoder that a rank runs.

    `decoder` has the rank's sizes, but all layers: a forward passes every pipeline stage, one after
    the other, so that its T(N) is the sum over stages, whose ranks all have these sizes. It has all
    experts, each as wide as its shard; the rank holds 1 / `ep` of them. Requests are divided among
    `attention` groups of ranks in attention, among `ffn` groups in the FFN and the LM head, and
    among `ready` groups in the modules before the experts: the router, a latent and the shared
    experts. The experts see all requests.
    """

    decoder: Decoder
    ep: int = 1
    attention: int = 1
    ffn: int = 1
    ready: int = 1


def shard(decoder: Decoder, parallel: Parallel = ONE_GPU, engine: Engine = VLLM) -> Shard:
    """Return the shard of a rank; in a deployment without `refusals` all ranks have equal sizes.

    If ep does not divide the experts, it is the shard of the rank with most of them.
    """
    ranks, groups, model_type = engine.ranks(parallel), engine.groups(parallel), decoder.model_type
    sequence_parallel = engine.uses_sequence_parallel(parallel, model_type)
    padded = engine.padded(decoder.vocabulary, ranks)
    sharded = structs.replace(
        decoder,
        heads=decoder.heads // parallel.tp,
        kv_heads=held_heads(decoder.kv_heads, parallel.tp),
        d_ff=decoder.d_ff and decoder.d_ff // ranks,
        vocabulary=decoder.vocabulary if ranks == 1 else -(-padded // ranks),
        experts=decoder.experts
        and _shard_experts(
            decoder.experts,
            parallel.moe_tp,
            1 if sequence_parallel else ranks,
            UNEVEN_EXPERTS.get(model_type, 1),
        ),
    )
    if decoder.altup:
        rank = -(-decoder.altup.rank // parallel.tp)
        sharded = structs.replace(sharded, altup=structs.replace(decoder.altup, rank=rank))
    if decoder.ffn_widths is not UNSET:
        widths = tuple((width // ranks, layers) for width, layers in decoder.ffn_widths)
        sharded = structs.replace(sharded, ffn_widths=widths)
    if decoder.kinds is not UNSET:
        kinds = tuple(_shard_kind(model_type, parallel.tp) for model_type in decoder.kinds)
        sharded = structs.replace(sharded, kinds=kinds)
    ready_groups = parallel.ranks if sequence_parallel else groups
    return Shard(
        decoder=sharded, ep=parallel.ep, attention=parallel.dp, ffn=groups, ready=ready_groups
    )


def _shard_kind(kind: Kind, tp: int) -> Kind:
    """Return the shard of a kind of attention; latents, entries and their indexer are replicated.

    Attention to entries is sharded by whole groups of heads: vllm 0.32.0,
    vllm/models/deepseek_v4/attention.py (wq_b and wo_a by outputs, wo_b by inputs, the rest
    replicated).
    """
    heads = kind.heads // tp
    if isinstance(kind, DeltaNet):
        return structs.replace(kind, heads=heads, key_heads=max(1, kind.key_heads // tp))
    if isinstance(kind, ShortConv):
        return structs.replace(kind, channels=heads)
    if isinstance(kind, Mamba2 | Compressed):
        return structs.replace(kind, heads=heads, groups=max(1, kind.groups // tp))
    if isinstance(kind, Grouped):
        index_heads = kind.index_heads and held_heads(kind.index_heads, tp)
        kv_heads = held_heads(kind.kv_heads, tp)
        return structs.replace(kind, heads=heads, kv_heads=kv_heads, index_heads=index_heads)
    return structs.replace(kind, heads=heads)


def held_heads(kv_heads: int, tp: int) -> int:
    """Return the number of key heads on a rank, at least one."""
    return max(1, kv_heads // tp)


UNEVEN_EXPERTS = {"gpt_oss": 32}
"""Model types whose experts are sharded into whole blocks of this many columns, with the last shard
padded: vllm 0.20.2, vllm/model_executor/models/gpt_oss.py:373-380; sglang 0.5.9,
sglang/srt/models/gpt_oss.py:783-809."""

_UNCHECKED = ("mimo_v2_flash",)
"""Model types whose blocks of quantisation of query, key and value SGLang splits: sglang 0.5.23,
sglang/srt/models/mimo_v2.py:724 (skip_block_quant_check); mimo_v2_flash.py:461 of 0.5.9."""


def _shard_experts(experts: Experts, moe_tp: int, ranks: int, step: int) -> Experts:
    """Return experts with the widths of a rank's shards, in multiples of `step` columns."""
    d_ff = -(-experts.d_ff // (moe_tp * step)) * step if moe_tp > 1 else experts.d_ff
    return structs.replace(experts, d_ff=d_ff, shared_d_ff=experts.shared_d_ff // ranks)


_SHARDS_OF_EXPERTS = "tp x dp / ep"
"""What refusals call the shards of an expert."""


def refusals(
    decoder: Decoder, parallel: Parallel, engine: Engine, groups: Groups
) -> tuple[Refusal, ...]:
    """Return every reason why an engine cannot run a decoder so, with sizes that it accepts.

    Parameters
    ----------
    groups
        The kinds of matrices of which several weights share a scale, with the groups' sizes.
    """
    found_refusals = [
        *_heads(decoder, parallel),
        *_cuts(decoder, parallel, engine, groups),
        *_experts(decoder, parallel, engine, groups),
    ]
    if parallel.pp > decoder.layers:
        reason = f"{parallel.pp} is more than the {decoder.layers} layers"
        found_refusals.append(_refused("pp", reason, f"Give {decoder.layers} stages at most"))
    return tuple(dict.fromkeys(found_refusals))


def _heads(decoder: Decoder, parallel: Parallel) -> Iterator[Refusal]:
    """Yield a refusal for each kind of attention whose heads tp does not divide."""
    for kind in decoder.attention:
        what, heads, divides = _divided(kind)
        if not divides(parallel.tp):
            yield _uneven("tp", parallel.tp, what, [n for n in _divisors(heads) if divides(n)])


def _divided(kind: Kind) -> tuple[str, int, Callable[[int], bool]]:
    """Return what tp must divide of a kind of attention, its number, and whether a tp does."""
    if isinstance(kind, State) and not isinstance(kind, Mamba2):
        number, name = kind.shared
        return f"{number} {name}", number, lambda tp: not number % tp
    heads = kind.heads
    if isinstance(kind, Mamba2):
        what = f"{heads} heads of a Mamba-2 mixer in {kind.groups} groups"
        return what, heads, lambda tp: _divides_mixer(kind, tp)
    kv_heads = kind.kv_heads if isinstance(kind, Grouped) else 1
    what = f"{heads} heads over {kv_heads} of keys and values"
    if isinstance(kind, Latent):
        what = f"{heads} heads over a latent"
    elif isinstance(kind, Compressed):
        what = f"{heads} heads over one key"
    return what, heads, lambda tp: _divides_heads(heads, kv_heads, tp)


def _divides_mixer(kind: Mamba2, tp: int) -> bool:
    """Return whether tp divides a mixer's heads and groups; a single group is replicated.

    Source: vllm 0.33.0, vllm/model_executor/layers/mamba/mamba_mixer2.py:316-323 and 333-341;
    sglang 0.5.23, sglang/srt/layers/attention/mamba/mamba.py:245-252 and 269-278.
    """
    return not kind.heads % tp and (kind.groups == 1 or not kind.groups % tp)


def _divides_heads(heads: int, kv_heads: int, tp: int) -> bool:
    """Return whether tp divides the heads, and divides the key heads or is a multiple of them."""
    return not (heads % tp or (kv_heads % tp and tp % kv_heads))


def _cuts(
    decoder: Decoder, parallel: Parallel, engine: Engine, groups: Groups
) -> Iterator[Refusal]:
    """Yield a refusal for each shard of matrices that is no whole number or splits a scale."""
    tp, ranks, moe_tp = parallel.tp, engine.ranks(parallel), parallel.moe_tp
    option = "tp x dp" if engine.over_all else "tp"
    vocabulary = engine.padded(decoder.vocabulary, ranks)
    if vocabulary % ranks:
        what = f"a vocabulary of {vocabulary} rows with its padding"
        yield _uneven(option, ranks, what, _divisors(vocabulary))
    merges = engine.whole_blocks
    checks_merged = merges and decoder.model_type not in _UNCHECKED
    for kind in decoder.attention:
        if kind.heads % tp == 0:
            matrices: str = "state" if isinstance(kind, State) else OF_ATTENTION
            group = groups.get(matrices, (1, 1))
            yield from _cut_products(kind, tp, group, merged=checks_merged)
    if decoder.layer_inputs:
        outputs = decoder.layers * decoder.layer_inputs
        yield from _sized("tp", tp, "outputs of the layer inputs' projection", outputs, 1)
    if decoder.altup:
        yield from _sized("tp", tp, "rank of the branch beside a layer", decoder.altup.rank, 1)
        yield from _sized("tp", tp, "outputs of AltUp's projections", decoder.d_model, 1)
    experts = decoder.experts
    for matrices, name, size, key, shards in (
        *(("ffn", "width of the Dense FFN", width, option, ranks)
          for width, _ in decoder.dense_ffns),
        ("experts", "width of an expert", experts and experts.d_ff, _SHARDS_OF_EXPERTS, moe_tp),
        ("shared_experts", "width of the shared experts", experts and experts.shared_d_ff, option,
         1 if engine.uses_sequence_parallel(parallel, decoder.model_type) else ranks),
    ):  # fmt: skip
        rows, columns = groups.get(matrices, (1, 1))
        step = columns if matrices != "experts" and not merges else lcm(rows, columns)
        if matrices == "experts" and decoder.model_type in UNEVEN_EXPERTS:
            continue
        for refusal in _sized(key, shards, name, size or 0, step):
            full_ep = matrices == "experts" and experts and parallel.ranks <= experts.experts
            remedy = f"{refusal.remedy}; or --ep {parallel.ranks}, which cuts no expert"
            yield refusal._replace(remedy=remedy) if full_ep else refusal


def _cut_products(
    kind: Kind, tp: int, group: tuple[int, int], *, merged: bool
) -> Iterator[Refusal]:
    """Yield a refusal for each product of attention that tp does not divide into whole groups.

    `group` are the outputs and inputs that share a scale. `merged` says that query, key and value
    are one matrix whose shards must be whole blocks.
    """
    rows, columns = group
    if isinstance(kind, Compressed):
        yield from _sized("tp", tp, "groups of heads of the output projection", kind.groups, 1)
        yield from _sized("tp", tp, "outputs of the query", kind.heads * kind.width, rows)
    yield from _sized("tp", tp, "inputs of the output projection", kind.inputs, columns)
    if isinstance(kind, DeltaNet) and kind.key_heads % tp == 0:
        keys = kind.key_heads * kind.key_dim
        yield from _sized("tp", tp, "keys of a gated delta net", keys, rows)
        yield from _sized("tp", tp, "values of a gated delta net", kind.inputs, rows)
    if isinstance(kind, Mamba2) and _divides_mixer(kind, tp):
        pairs = max(kind.groups, tp) * kind.state_dim
        yield from _sized("tp", tp, "heads of a Mamba-2 mixer", kind.inputs, rows)
        yield from _sized("tp", tp, "groups of a Mamba-2 mixer", pairs, rows)
        yield from _sized("tp", tp, "steps of a Mamba-2 mixer", kind.heads, rows)
    if isinstance(kind, ShortConv):
        yield from _sized("tp", tp, "channels of a short convolution", kind.channels, rows)
    if merged and isinstance(kind, Grouped):
        yield from _sized("tp", tp, "outputs of the query", kind.heads * kind.head_dim, rows)
        kv_heads = max(kind.kv_heads, tp)
        widths = {"keys": kind.head_dim, "values": kind.values}
        if kind.value_dim is None:
            widths = {"keys and values": kind.head_dim}
        for what, width in widths.items():
            yield from _sized("tp", tp, f"outputs of {what}", width * kv_heads, rows)
    elif merged and isinstance(kind, Latent):
        query_outputs = kind.heads * (kind.nope_dim + kind.rope_dim)
        yield from _sized("tp", tp, "outputs of the query", query_outputs, rows)


def _sized(key: str, parts: int, name: str, size: int, step: int) -> Iterator[Refusal]:
    """Yield a refusal if a size divided by `parts` is no whole number of steps."""
    if parts == 1 or size % (parts * step) == 0:
        return
    what = f"{size}, the {name}" + (f", in groups of {step} with one scale" if step > 1 else "")
    yield _uneven(key, parts, what, _divisors(size // step) if size % step == 0 else [1])


def _experts(
    decoder: Decoder, parallel: Parallel, engine: Engine, groups: Groups
) -> Iterator[Refusal]:
    """Yield a refusal for each reason why the engine cannot spread the experts so."""
    ep, experts = parallel.ep, decoder.experts
    if experts is None:
        if ep > 1:
            yield without_experts(ep)
        return
    if engine.lone_groups and min(parallel.tp, parallel.dp) > 1:
        reason = (
            f"{parallel.dp} needs tp 1, not {parallel.tp}: in {engine.name} each data-parallel "
            "group of a model with experts is one rank"
        )
        yield _refused("dp", reason, f"Give --tp 1 --dp {parallel.ranks}, or another engine")
    if ep > experts.experts:
        reason = f"{ep} is more than the {experts.experts} experts"
        yield _refused("ep", reason, f"Give {experts.experts} at most")
    elif experts.experts % ep and not engine.uneven_experts:
        yield _uneven("ep", ep, f"{experts.experts} experts", _divisors(experts.experts))
    if ep not in (1, parallel.ranks) and not engine.any_ep:
        degrees = " or ".join(
            str(degree)
            for degree in (1, parallel.ranks)
            if _spreads(decoder, structs.replace(parallel, ep=degree), engine, groups)
        )
        other = "--moe sglang" if _spreads(decoder, parallel, SGLANG, groups) else ""
        yield _refused(
            "ep",
            f"{ep} leaves each expert sharded over {parallel.moe_tp} ranks, which {engine.name} "
            "does not support",
            f"Give {', or '.join(filter(None, (degrees, other))) or 'another tp'}",
        )


def _spreads(decoder: Decoder, parallel: Parallel, engine: Engine, groups: Groups) -> bool:
    """Return whether an engine takes a degree of ep, whatever it says of other degrees."""
    reasons = refusals(decoder, parallel, engine, groups)
    return not any(reason.key in ("ep", _SHARDS_OF_EXPERTS) for reason in reasons)


def without_experts(ep: int) -> Refusal:
    """Return the refusal of an ep for a model without experts."""
    return _refused("ep", f"{ep} needs experts, and the model has none", "Leave it out")


def _uneven(key: str, parts: int, what: str, sizes: Sequence[int]) -> Refusal:
    return _refused(key, f"{parts} does not divide {what}", f"Sizes that do: {_listed(sizes)}")


def _refused(key: str, reason: str, remedy: str) -> Refusal:
    return Refusal("", key, reason, remedy)


_MOST_LISTED = 12


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:_MOST_LISTED]))
    return shown + (", and larger ones" if len(sizes) > _MOST_LISTED else "")


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
