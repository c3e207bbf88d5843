"""A forward over processes: each runs a rank's shard of one decoder, gloo carries what they send.

Only sends between two processes are used, and each is counted: a collective is its ring.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from nearfree.backends.adapters.torch_moe import PLAIN, Activation
from nearfree.core.parallel import Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import Details, read_details
from nearfree.decoders.ranks.collectives import (
    ATTENTION_SUM,
    COMBINE,
    DISPATCH,
    EMBEDDING_SUM,
    FFN_SUM,
    LOGITS,
    MOE_SUM,
    STAGE,
    STAGE_GATHER,
)
from nearfree.decoders.ranks.engines import Engine
from nearfree.decoders.ranks.modules import NO_LAPS
from nearfree.decoders.ranks.shards import held_heads, shard
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import NAMES, Names
from nearfree.models.moe import MoeFfn
from torch import Tensor
from torch.nn import functional

BATCH, CONTEXT, POSITIONS = 4, 16, 5
BESIDE = "experts and their shares"
"""What is gathered beside rows."""


class Wire:
    """Collectives of a group of processes, made of sends; `sent` counts their bytes by name."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}

    def all_reduce(self, name: str, rows: Tensor, group: Sequence[int]) -> Tensor:
        """Return the sum of all ranks' rows: pieces go around to be added, then to be known."""
        if len(group) == 1:
            return rows
        flat = rows.flatten()
        short = -len(flat) % len(group)
        pieces = [piece.clone() for piece in functional.pad(flat, (0, short)).chunk(len(group))]
        at, ranks = group.index(dist.get_rank()), len(group)
        for step in range(ranks - 1):
            came = self._pass(name, pieces[(at - step) % ranks], group)
            pieces[(at - step - 1) % ranks] += came
        for step in range(ranks - 1):
            pieces[(at - step) % ranks] = self._pass(name, pieces[(at - step + 1) % ranks], group)
        return torch.cat(pieces)[: len(flat)].view_as(rows)

    def all_gather(self, name: str, rows: Tensor, group: Sequence[int]) -> list[Tensor]:
        """Return the rows of all ranks, in their order."""
        at, ranks = group.index(dist.get_rank()), len(group)
        gathered = {at: rows}
        for step in range(ranks - 1):
            gathered[(at - step - 1) % ranks] = self._pass(
                name, gathered[(at - step) % ranks], group
            )
        return [gathered[place] for place in range(ranks)]

    def reduce_scatter(self, name: str, rows: Tensor, group: Sequence[int]) -> Tensor:
        """Return this rank's part of the sum of all ranks' rows."""
        pieces = [piece.clone() for piece in rows.chunk(len(group))]
        at, ranks = group.index(dist.get_rank()), len(group)
        for step in range(ranks - 1):
            came = self._pass(name, pieces[(at - step - 1) % ranks], group)
            pieces[(at - step - 2) % ranks] += came
        return pieces[at]

    def send(self, name: str, rows: Tensor, to: int) -> None:
        """Send rows to a rank."""
        self.sent[name] = self.sent.get(name, 0) + rows.nbytes
        dist.send(rows.contiguous(), to)

    def _pass(self, name: str, piece: Tensor, group: Sequence[int]) -> Tensor:
        """Send a piece to the next rank of a ring, and return the one that comes."""
        at, ranks = group.index(dist.get_rank()), len(group)
        self.sent[name] = self.sent.get(name, 0) + piece.nbytes
        out = piece.contiguous()
        came = torch.empty_like(out)
        sending = dist.isend(out, group[(at + 1) % ranks])
        dist.recv(came, group[(at - 1) % ranks])
        if sending is not None:
            sending.wait()
        return came


class WholeWeights:
    """Random weights by name, the same in every process."""

    def __init__(self) -> None:
        self.made: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(7)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight, made when it is first asked for."""
        if name not in self.made:
            scale = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
            self.made[name] = scale * torch.randn(shape, generator=self._generator)
        return self.made[name]

    def joined(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> Tensor:
        """Return weights of one input as one tensor."""
        return torch.cat([self(*part) for part in parts])


class Rank(NamedTuple):
    """A process of a deployment: stages hold dp groups, and these tp ranks."""

    parallel: Parallel
    stage: int
    group: int
    place: int

    @classmethod
    def of(cls, parallel: Parallel, number: int) -> "Rank":
        """Return the rank of a process."""
        stage, rest = divmod(number, parallel.ranks)
        return cls(parallel, stage, *divmod(rest, parallel.tp))

    def number(self, **moved: int) -> int:
        """Return a process's number, that of this rank's place but for what is given."""
        stage, group, place = self._replace(**moved)[1:]
        return (stage * self.parallel.dp + group) * self.parallel.tp + place

    @property
    def beside(self) -> list[int]:
        """The processes of its tp group."""
        return [self.number(place=place) for place in range(self.parallel.tp)]

    @property
    def across(self) -> list[int]:
        """The processes of the same place in all dp groups."""
        return [self.number(group=group) for group in range(self.parallel.dp)]

    @property
    def among(self) -> int:
        """Its number among the ranks that share the experts."""
        return self.group * self.parallel.tp + self.place


class RankWeights:
    """What a rank holds of whole weights, by the same names."""

    def __init__(self, weights: dict[str, Tensor], decoder: Decoder, rank: Rank, rows: int) -> None:
        """Take the rows that the rank holds of a padded vocabulary."""
        self._whole, self._decoder, self._rank, self._rows = weights, decoder, rank, rows
        self._names = NAMES.get(decoder.model_type, Names())

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the part of a weight; its shape must be the one that a shard asks for."""
        weight = self._part(name)
        whole_experts = ".experts." in name
        assert weight.shape[whole_experts:] == shape[whole_experts:], (name, weight.shape, shape)
        return weight.contiguous()

    def joined(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> Tensor:
        """Return weights of one input as one tensor."""
        return torch.cat([self(*part) for part in parts])

    def _part(self, name: str) -> Tensor:
        weight, leaf = self._whole[name], name.split(".")[-2]
        tp, place = self._rank.parallel.tp, self._rank.place
        if leaf in self._names.qkv:
            return self._heads(weight, leaf)
        if ".experts." in name:
            return self._experts(weight, name)
        if name == f"{self._names.embedding}.weight" or leaf == "lm_head":
            weight = functional.pad(weight, (0, 0, 0, tp * self._rows - len(weight)))
        if leaf == self._names.output and name.endswith(".bias"):
            return weight * (place == 0)
        cut = self._cut(name, leaf)
        return weight if cut is None else weight.chunk(tp, cut)[place]

    def _cut(self, name: str, leaf: str) -> int | None:
        """Return the dimension that a matrix is cut in, None if it is whole on each rank."""
        if leaf in (self._names.output, "down_proj"):
            return 1
        rows = leaf in ("gate_proj", "up_proj", "lm_head")
        return 0 if rows or name == f"{self._names.embedding}.weight" else None

    def _heads(self, weights: Tensor, leaf: str) -> Tensor:
        decoder = self._decoder
        counts = {"q": decoder.heads, "k": decoder.kv_heads, "v": decoder.kv_heads}
        if len(self._names.qkv) == 1:
            parts = weights.split([count * decoder.head_dim for count in counts.values()])
            return torch.cat([self._of(*part) for part in zip(parts, counts.values(), strict=True)])
        return self._of(weights, counts[leaf[0]])

    def _of(self, rows: Tensor, heads: int) -> Tensor:
        return rows.unflatten(0, (heads, -1))[self.held(heads)].flatten(0, 1)

    def held(self, heads: int) -> slice:
        """Return which of some heads lie on the rank."""
        tp, count = self._rank.parallel.tp, held_heads(heads, self._rank.parallel.tp)
        first = self._rank.place * heads // tp
        return slice(first, first + count)

    def _experts(self, weights: Tensor, name: str) -> Tensor:
        parallel = self._rank.parallel
        part, cut = divmod(self._rank.among, parallel.moe_tp)
        mine = weights[experts_of(len(weights), parallel.ep, part)]
        if name.endswith("down_proj"):
            return mine.chunk(parallel.moe_tp, 2)[cut]
        gate, up = mine.chunk(2, 1)
        return torch.cat([weight.chunk(parallel.moe_tp, 1)[cut] for weight in (gate, up)], 1)


def experts_of(experts: int, ep: int, part: int) -> slice:
    """Return the whole experts of one of ep parts: the first ones have one more."""
    experts_a_rank, rest = divmod(experts, ep)
    first = part * experts_a_rank + min(part, rest)
    return slice(first, first + experts_a_rank + (part < rest))


class RankExperts:
    """The experts of a rank: it sees the rows of all dp groups and gives back those of its own."""

    def __init__(self, wire: Wire, rank: Rank, experts: int) -> None:
        self._wire, self._rank, self._count = wire, rank, experts

    def run(
        self,
        rows: Tensor,
        weights: tuple[Tensor, Tensor],
        ids: Tensor,
        shares: Tensor,
        inner: Activation = PLAIN,
    ) -> Tensor:
        """Return what the rank adds to each row of its group, [tokens, d_model]."""
        assert inner.gate_up_bias is None
        rank, parallel = self._rank, self._rank.parallel
        every = [
            torch.cat(self._wire.all_gather(name, tensor, rank.across))
            for name, tensor in ((DISPATCH, rows), (BESIDE, ids), (BESIDE, shares))
        ]
        mine = experts_of(self._count, parallel.ep, rank.among // parallel.moe_tp)
        out = torch.zeros_like(every[0])
        for place, expert in enumerate(range(mine.start, mine.stop)):
            token, choice = (every[1] == expert).nonzero(as_tuple=True)
            hidden = inner.gate(functional.linear(every[0][token], weights[0][place]))
            made = functional.linear(hidden, weights[1][place])
            out.index_add_(0, token, made * every[2][token, choice, None])
        return self._wire.reduce_scatter(COMBINE, out, rank.across)


class Case(NamedTuple):
    """A config file, how it is spread, and by whose rules."""

    path: Path
    parallel: Parallel
    engine: Engine


class Run(NamedTuple):
    """How far a rank's logits are from those of one process, and the bytes that it sent."""

    error: float
    sent: dict[str, int]


def run(case: Case, number: int) -> Run:
    """Return what one process of a deployment finds; the last stage alone has logits."""
    decoder, details = read_decoder(case.path), read_details(case.path)
    rank, given = Rank.of(case.parallel, number), torch.Generator().manual_seed(3)
    weights = WholeWeights()
    forward = _forward(decoder, details, weights, BATCH)
    tokens = torch.randint(decoder.vocabulary, (BATCH, POSITIONS), generator=given)
    for cache in (*forward.keys, *forward.values):
        cache.copy_(torch.randn(cache.shape, generator=given))
    part = shard(decoder, case.parallel, case.engine).decoder
    held = RankWeights(weights.made, decoder, rank, part.vocabulary)
    batch = BATCH // case.parallel.dp
    requests = slice(rank.group * batch, (rank.group + 1) * batch)
    mine = _Sharded(case, rank, _forward(part, details, held, batch))
    caches = (*forward.keys, *forward.values), (*mine.forward.keys, *mine.forward.values)
    for theirs, own in zip(*caches, strict=True):
        own.copy_(theirs[requests, held.held(decoder.kv_heads)])
    logits = mine.run(tokens[requests], decoder)
    if logits is None:
        return Run(0.0, mine.wire.sent)
    expected = forward.forward(tokens)[requests]
    return Run((logits - expected).abs().max().item(), mine.wire.sent)


def _forward(decoder: Decoder, details: Details, weights: Any, batch: int) -> DecoderForward:
    return DecoderForward(
        decoder, details, weights, batch=batch, context=CONTEXT, max_positions=POSITIONS,
        dtype=torch.float32,
    )  # fmt: skip


class _Sharded:
    """A rank's forward, with what it sends between."""

    def __init__(self, case: Case, rank: Rank, forward: DecoderForward) -> None:
        self.case, self.rank, self.forward, self.wire = case, rank, forward, Wire()

    def run(self, tokens: Tensor, decoder: Decoder) -> Tensor | None:
        """Return the logits of its group's tokens [b, N], None from all stages but the last."""
        rank, wire, forward = self.rank, self.wire, self.forward
        first, last = rank.stage == 0, rank.stage == self.case.parallel.pp - 1
        came = [self._embedded(tokens)] if first else self._received(tokens, decoder.d_model)
        hidden = torch.stack([*came]).sum(0)
        added = torch.zeros_like(hidden)
        for index in self._layers(decoder.layers):
            hidden, added = self._layer(index, hidden + added, decoder)
        if not last:
            both = torch.cat((hidden, added), -1).chunk(rank.parallel.tp, -1)[rank.place]
            wire.send(STAGE, both, rank.number(stage=rank.stage + 1))
            return None
        hidden = hidden + added
        logits = functional.linear(forward._norm.forward(hidden), forward._head)
        gathered = wire.all_gather(LOGITS, logits, rank.beside)
        return torch.cat(gathered, -1)[..., : decoder.vocabulary]

    def _received(self, tokens: Tensor, d_model: int) -> Sequence[Tensor]:
        """Return what the stage before has summed up, and what its last layer adds to it."""
        part = torch.empty(*tokens.shape, 2 * d_model // self.rank.parallel.tp)
        dist.recv(part, self.rank.number(stage=self.rank.stage - 1))
        both = self.wire.all_gather(STAGE_GATHER, part, self.rank.beside)
        return torch.cat(both, -1).chunk(2, -1)

    def _layers(self, layers: int) -> range:
        counts = self.case.engine.layers(layers, self.case.parallel.pp)
        first = sum(counts[: self.rank.stage])
        return range(first, first + counts[self.rank.stage])

    def _embedded(self, tokens: Tensor) -> Tensor:
        embedding, place = self.forward._embedding, self.rank.place
        own = tokens - place * len(embedding)
        here = (own >= 0) & (own < len(embedding))
        rows = functional.embedding(own.clamp(0, len(embedding) - 1), embedding)
        return self.wire.all_reduce(EMBEDDING_SUM, rows * here[..., None], self.rank.beside)

    def _layer(self, index: int, hidden: Tensor, decoder: Decoder) -> tuple[Tensor, Tensor]:
        """Return the sum before the FFN, and what the FFN adds."""
        forward, layer, n = self.forward, self.forward.layers[index], hidden.shape[1]
        places = forward._kind_inputs[forward._kind_by_layer[index]].truncated(n)
        states = layer.attention_norm.forward(hidden)
        out = layer.attention.forward(states, places, forward.caches[index], NO_LAPS)
        hidden = hidden + self.wire.all_reduce(ATTENTION_SUM, out, self.rank.beside)
        name = MOE_SUM if isinstance(layer.ffn, MoeFfn) else FFN_SUM
        if isinstance(layer.ffn, MoeFfn) and decoder.experts:
            layer.ffn._runner = RankExperts(self.wire, self.rank, decoder.experts.experts)
        out = layer.ffn.forward(layer.ffn_norm.forward(hidden), NO_LAPS)
        return hidden, self.wire.all_reduce(name, out, self.rank.beside)
