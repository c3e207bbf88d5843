"""What a forward makes and drops again, in bytes, stage by stage."""

from typing import NamedTuple

from nearfree.backends.adapters.torch_moe import PADDED, core_of
from nearfree.decoders.attention_kinds import Grouped, Latent, runs
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.details import Details

FLOAT32_BYTES, INT64_BYTES = 4, 8


def moe_of(decoder: Decoder, details: Details) -> tuple[Experts | None, int]:
    """Return the experts of a layer that has some, and how many layers have."""
    return decoder.experts, len(details.moe_at) if decoder.experts and details.router else 0


def expert_rows(experts: Experts, tokens: int, moe: str) -> int:
    """Return the rows that experts compute at most: each one's last block may hold one row."""
    pairs = tokens * experts.top_k
    core = core_of(moe)
    block = core.block_rows(tokens, experts.experts) if core else None
    return pairs + min(pairs, experts.experts) * ((block or 1) - 1)


class Activations(NamedTuple):
    """What a forward of b requests and N positions makes and drops again, in bytes.

    Counted are the tensors that torch's CPU kernels hold at once; a GPU's fused norms hold fewer.
    """

    decoder: Decoder
    details: Details
    batch: int
    context: int
    most: int
    size: int
    moe: str

    @property
    def tokens(self) -> int:
        """Rows of the hidden states."""
        return self.batch * self.most

    def most_bytes(self, meanwhile: list[int], *, own_router: bool) -> int:
        """Return the bytes alive where they are most.

        The attention of each kind has its part of `meanwhile` for itself. Beside each stage are the
        hidden states and what the norm before it made of them.
        """
        decoder, details = self.decoder, self.details
        experts, moe_layers = moe_of(decoder, details)
        stages = [self._norm(decoder.d_model)]
        for kind, own in zip(runs(decoder.attention), meanwhile, strict=True):
            if isinstance(kind, Grouped):
                stages.append(self._grouped(kind, own))
            else:
                stages.append(self._latent(kind, own))
        stages.append(self.tokens * decoder.vocabulary * self.size)
        inputs = self.tokens * decoder.layers * (decoder.layer_inputs or 0) * self.size
        if inputs:  # of the table, of the product, in float32 by its norm, and their sum
            stages.append(2 * inputs + self._norm(decoder.layers * (decoder.layer_inputs or 0)))
        if decoder.dense_layers:
            stages.append(self._dense(decoder.d_ff or 0))
        if experts and moe_layers:
            stages += [self._router(experts), self._experts(experts, own_router=own_router)]
            kept = self.tokens * decoder.d_model * self.size  # of the routed ones
            stages.append(kept + self._dense(experts.shared_d_ff))
        return 2 * self.tokens * decoder.d_model * self.size + inputs + max(stages)

    def _norm(self, width: int) -> int:
        """Three times in float32: as it comes, divided, and multiplied by the weight."""
        copies = 2 if self.size == FLOAT32_BYTES else 3
        return copies * self.tokens * width * FLOAT32_BYTES

    def _grouped(self, kind: Grouped, meanwhile: int) -> int:
        normed = self.details.qk_norm
        queries, keys = (count * kind.head_dim for count in (kind.heads, kind.kv_heads))
        made = self.tokens * kind.made * self.size
        norm = self._norm(queries) if normed else 0
        kept = keys * normed
        turning = self.tokens * (kept + queries * normed + 3 * queries) * self.size
        sums = self.tokens * kind.heads * FLOAT32_BYTES
        attention_bytes = self.tokens * (kept + 2 * queries) * self.size + sums
        output = self.tokens * (queries + self.decoder.d_model) * self.size
        return made + max(norm, turning, attention_bytes + max(meanwhile, output))

    def _latent(self, kind: Latent, meanwhile: int) -> int:
        """Return what latents and queries take, and what the indexer takes before them."""
        heads, rank = kind.heads, kind.query_rank or 0
        made = self.tokens * (2 * rank + kind.cached) * self.size
        query = self.tokens * heads * (kind.nope_dim + kind.rope_dim) * self.size
        absorbed = self.tokens * heads * kind.latent * self.size
        wide = self.tokens * heads * kind.cached * self.size
        # absorbed queries, those with what is turned, and what comes out
        attention = absorbed + 2 * wide + self.tokens * heads * FLOAT32_BYTES
        seen, taken = self.context + self.most, 0
        if kind.selected and kind.selected < seen:
            taken = self.tokens * kind.selected * (kind.cached * self.size + INT64_BYTES)
        index = 0
        if kind.index_heads and kind.index_dim:
            products = 2 * self.tokens * kind.index_heads * seen * FLOAT32_BYTES
            index = products + self.batch * seen * kind.index_dim * FLOAT32_BYTES
        return made + query + max(attention + max(meanwhile, taken), index)

    def _dense(self, d_ff: int) -> int:
        """Gate and up, SiLU of the gate, and its product with up; then the output in its place."""
        return self.tokens * max(4 * d_ff, 3 * d_ff + self.decoder.d_model) * self.size

    def _router(self, experts: Experts) -> int:
        rows = self.decoder.d_model if self.size < FLOAT32_BYTES else 0
        return self.tokens * (rows + 3 * experts.experts) * FLOAT32_BYTES

    def _experts(self, experts: Experts, *, own_router: bool) -> int:
        d_model, pairs = self.decoder.d_model, self.tokens * experts.top_k
        rows = expert_rows(experts, self.tokens, self.moe)
        wide = 0 if core_of(self.moe) is PADDED else experts.d_ff
        inside = rows * (d_model + max(4 * wide, 3 * wide + d_model)) * self.size
        # one row a pair, and that weighted by its share, or in float32 for the mean
        sums = pairs * d_model * (2 * self.size if own_router else self.size + FLOAT32_BYTES)
        gathered = rows * d_model * self.size + pairs * d_model * self.size
        layout = INT64_BYTES * (rows + 3 * pairs)
        return layout + max(inside, gathered, sums + self.tokens * d_model * FLOAT32_BYTES)
