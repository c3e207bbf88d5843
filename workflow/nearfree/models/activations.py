"""The bytes of a forward's temporary tensors, stage by stage."""

from typing import NamedTuple

from nearfree.backends.adapters.torch_moe import PADDED, core_of
from nearfree.decoders.attention_kinds import Grouped, Latent, runnable_kinds
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.details import Details

FLOAT32_BYTES, INT64_BYTES = 4, 8


def moe_of(decoder: Decoder, details: Details) -> tuple[Experts | None, int]:
    """Return the experts of a MoE layer, and the number of MoE layers."""
    return decoder.experts, len(details.moe_at) if decoder.experts and details.router else 0


def expert_rows(experts: Experts, tokens: int, moe: str) -> int:
    """Return an upper bound on the rows that experts compute: padding fills each last block."""
    pairs = tokens * experts.top_k
    core = core_of(moe)
    block = core.block_rows(tokens, experts.experts) if core else None
    return pairs + min(pairs, experts.experts) * ((block or 1) - 1)


class Activations(NamedTuple):
    """The temporary tensors of a forward of b requests and N positions, in bytes.

    They are those that torch's CPU kernels hold at the same time; a GPU's fused norms hold fewer.
    `positions` is N, `element_bytes` the size of an element.
    """

    decoder: Decoder
    details: Details
    batch: int
    context: int
    positions: int
    element_bytes: int
    moe: str

    @property
    def tokens(self) -> int:
        """Number of rows of the hidden states."""
        return self.batch * self.positions

    def peak_bytes(self, workspaces: list[int], *, own_router: bool) -> int:
        """Return the largest number of bytes that are alive at the same time.

        `workspaces` holds, by kind of attention, the bytes that its kernel needs internally. During
        each stage the hidden states and the output of the preceding norm are alive, too.
        """
        decoder, details = self.decoder, self.details
        experts, moe_layers = moe_of(decoder, details)
        stages = [self._norm(decoder.d_model)]
        for kind, workspace in zip(runnable_kinds(decoder.attention), workspaces, strict=True):
            if isinstance(kind, Grouped):
                stages.append(self._grouped(kind, workspace))
            else:
                stages.append(self._latent(kind, workspace))
        stages.append(self.tokens * decoder.vocabulary * self.element_bytes)
        inputs = self.tokens * decoder.layers * (decoder.layer_inputs or 0) * self.element_bytes
        if inputs:  # rows of the table, the product, its norm in float32, and their sum
            stages.append(2 * inputs + self._norm(decoder.layers * (decoder.layer_inputs or 0)))
        if decoder.dense_layers:
            stages.append(self._dense(decoder.d_ff or 0))
        if experts and moe_layers:
            stages += [self._router(experts), self._experts(experts, own_router=own_router)]
            routed_output = self.tokens * decoder.d_model * self.element_bytes
            stages.append(routed_output + self._dense(experts.shared_d_ff))
        return 2 * self.tokens * decoder.d_model * self.element_bytes + inputs + max(stages)

    def _norm(self, width: int) -> int:
        """Return the bytes of a norm: input, quotient and product with the weight, in float32."""
        copies = 2 if self.element_bytes == FLOAT32_BYTES else 3
        return copies * self.tokens * width * FLOAT32_BYTES

    def _grouped(self, kind: Grouped, workspace: int) -> int:
        normed = self.details.qk_norm
        queries, keys = (count * kind.head_dim for count in (kind.heads, kind.kv_heads))
        projected = self.tokens * kind.made * self.element_bytes
        norm_bytes = self._norm(queries) if normed else 0
        normed_keys = keys * normed
        rotation_bytes = (
            self.tokens * (normed_keys + queries * normed + 3 * queries) * self.element_bytes
        )
        sums = self.tokens * kind.heads * FLOAT32_BYTES
        attention_bytes = self.tokens * (normed_keys + 2 * queries) * self.element_bytes + sums
        output = self.tokens * (queries + self.decoder.d_model) * self.element_bytes
        return projected + max(norm_bytes, rotation_bytes, attention_bytes + max(workspace, output))

    def _latent(self, kind: Latent, workspace: int) -> int:
        """Return the bytes of latents and queries, with those of attention or of the indexer."""
        heads, rank = kind.heads, kind.query_rank or 0
        latents = self.tokens * (2 * rank + kind.cached) * self.element_bytes
        query = self.tokens * heads * (kind.nope_dim + kind.rope_dim) * self.element_bytes
        absorbed_queries = self.tokens * heads * kind.latent * self.element_bytes
        full_queries = self.tokens * heads * kind.cached * self.element_bytes
        # absorbed queries, these with their rotated part, and the output
        attention = absorbed_queries + 2 * full_queries + self.tokens * heads * FLOAT32_BYTES
        visible, selected_keys = self.context + self.positions, 0
        if kind.selected and kind.selected < visible:
            selected_keys = (
                self.tokens * kind.selected * (kind.cached * self.element_bytes + INT64_BYTES)
            )
        index_bytes = 0
        if kind.index_heads and kind.index_dim:
            scores = 2 * self.tokens * kind.index_heads * visible * FLOAT32_BYTES
            index_bytes = scores + self.batch * visible * kind.index_dim * FLOAT32_BYTES
        return latents + query + max(attention + max(workspace, selected_keys), index_bytes)

    def _dense(self, d_ff: int) -> int:
        """Return the bytes of an FFN: gate and up, SiLU, their product; then the output."""
        return self.tokens * max(4 * d_ff, 3 * d_ff + self.decoder.d_model) * self.element_bytes

    def _router(self, experts: Experts) -> int:
        rows = self.decoder.d_model if self.element_bytes < FLOAT32_BYTES else 0
        return self.tokens * (rows + 3 * experts.experts) * FLOAT32_BYTES

    def _experts(self, experts: Experts, *, own_router: bool) -> int:
        d_model, pairs = self.decoder.d_model, self.tokens * experts.top_k
        rows = expert_rows(experts, self.tokens, self.moe)
        width = 0 if core_of(self.moe) is PADDED else experts.d_ff
        product_bytes = rows * (d_model + max(4 * width, 3 * width + d_model)) * self.element_bytes
        # one row per pair, and the same times its weight, or in float32 for the mean
        output_bytes = (
            pairs
            * d_model
            * (2 * self.element_bytes if own_router else self.element_bytes + FLOAT32_BYTES)
        )
        gather_bytes = rows * d_model * self.element_bytes + pairs * d_model * self.element_bytes
        layout = INT64_BYTES * (rows + 3 * pairs)
        return layout + max(
            product_bytes, gather_bytes, output_bytes + self.tokens * d_model * FLOAT32_BYTES
        )
