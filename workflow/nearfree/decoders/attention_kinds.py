"""Kinds of attention of a decoder's layers that have a cache: grouped-query, latent, compressed."""

from collections.abc import Sequence

from msgspec import Struct

from nearfree.core.protocols import Positive
from nearfree.decoders.state_kinds import OfLayers, State
from nearfree.errors import EvidenceError


class Expansion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How heads get keys and values from a latent that is not cached.

    Each head's key has `rope_dim` elements that all share, its value `value_dim` before it is
    padded to the width of a key. Widths are in elements.
    """

    latent: Positive
    rope_dim: Positive
    value_dim: Positive


class Grouped(OfLayers, frozen=True, kw_only=True, tag="grouped"):
    """Grouped-query attention.

    A position sees the last `window` positions including its own, or the positions of its own
    `chunk` (Llama 4), or all; a layer has at most one of the two. With `sinks` each head has a
    logit that belongs to no position (gpt-oss). `soft_cap` is the c of c tanh(logit / c) (Gemma 2).
    With `keys_are_values` one matrix makes both (Gemma 4); they are cached separately. With
    `shares` a layer neither computes nor caches keys and values: it attends to the cache of the
    last earlier layer of the same form that does not share (Gemma 4). A `gate` is an equally wide
    second output of the query projection, which multiplies the heads' output (Qwen3-Next).
    `head_gates` are a projection to one gate per head (Step 3.5), `wide_gates` a projection to one
    gate per element of the heads' output (Trinity). `value_dim` is the width of a value where it
    differs from that of a key (MiMo-V2). With `selected` a position attends to at most that many
    positions, in blocks that `index_heads` heads of `index_dim` elements select (MiniMax M3); these
    compare it with one index key per position, which is cached, too. With a `query_rank` queries
    are projected from a latent of that width, which is made beside keys and values (Step 3). With
    `alibi` logits are biased by distance (BLOOM). With an `expansion` keys and values are made from
    a latent beside that of queries, and cached whole (MiniCPM3). Widths are in elements.
    """

    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    window: Positive | None = None
    chunk: Positive | None = None
    sinks: bool = False
    soft_cap: float | None = None
    keys_are_values: bool = False
    shares: bool = False
    gate: bool = False
    head_gates: bool = False
    wide_gates: bool = False
    value_dim: Positive | None = None
    selected: Positive | None = None
    index_heads: Positive | None = None
    index_dim: Positive | None = None
    query_rank: Positive | None = None
    alibi: bool = False
    expansion: Expansion | None = None

    @property
    def values(self) -> int:
        """Width of a head's value."""
        return self.value_dim or self.head_dim

    @property
    def called_dim(self) -> int:
        """Mean width of a key and a value: a head of this width does the same work."""
        return (self.head_dim + self.values) // 2

    @property
    def queries(self) -> int:
        """Elements of a position's queries and of their gates."""
        return self.heads * (1 + self.gate) * self.head_dim

    @property
    def made(self) -> int:
        """Elements per position that the projection to query, gate, key and value makes.

        Of queries with a latent it makes the latent, and so it does of keys and values.
        """
        if self.expansion:
            latents = self.expansion.latent + self.expansion.rope_dim
            return (self.query_rank or self.queries) + latents
        value, queries = 0 if self.keys_are_values else self.values, self.query_rank or self.queries
        return queries + (0 if self.shares else self.kv_heads * (self.head_dim + value))

    @property
    def most(self) -> int | None:
        """Number of cached positions that a new position sees at most, None for all."""
        return self.window or self.chunk

    @property
    def inputs(self) -> int:
        """Elements per position that enter the output projection."""
        return self.heads * (self.expansion.value_dim if self.expansion else self.values)

    def projected(self, d_model: int) -> int:
        """Return the number of weights of all of a layer's products."""
        index = (self.index_heads or 0) + (self.index_heads is not None)
        return d_model * (self.made + self.inputs + index * (self.index_dim or 0))

    @property
    def words(self) -> str:
        """The name of the kind for people."""
        if self.selected:
            return f"{self.selected} selected in blocks"
        limit = f"window {self.window}" if self.window else f"chunks of {self.chunk}"
        view = limit if self.most else "all positions"
        return f"{view}, shared cache" if self.shares else view


class Latent(OfLayers, frozen=True, kw_only=True, tag="latent"):
    """Multi-head latent attention (MLA).

    The cache holds for each position a `latent` of keys and values and `rope_dim` rotated elements
    of a key, which all heads share. A head's query and key have `nope_dim` elements more, its value
    has `value_dim`. `query_rank` is the width of the latent of queries, None where one product
    makes them. With a `gate` the heads' output is multiplied by gates, one per element (Kimi K3);
    with `head_gates` by one gate per head, which a product of its own makes (Ling 3).
    A query attends to `selected` positions, None for all. Layers with an indexer select them by
    `index_heads` heads of `index_dim` elements; the others take the selection of an earlier layer.
    Widths are in elements.
    """

    heads: Positive
    latent: Positive
    rope_dim: Positive
    nope_dim: Positive
    value_dim: Positive
    query_rank: Positive | None = None
    selected: Positive | None = None
    index_heads: Positive | None = None
    index_dim: Positive | None = None
    gate: bool = False
    head_gates: bool = False

    @property
    def cached(self) -> int:
        """Cached elements per position, without an indexer's key."""
        return self.latent + self.rope_dim

    @property
    def inputs(self) -> int:
        """Elements per position that enter the output projection."""
        return self.heads * self.value_dim

    @property
    def words(self) -> str:
        """The name of the kind for people."""
        if self.selected is None:
            return "latent"
        source = "own indexer" if self.index_heads else "shared selection"
        return f"latent, {self.selected} selected, {source}"


class Compressed(OfLayers, frozen=True, kw_only=True, tag="compressed"):
    """DeepSeek V4's attention to a window and to entries.

    All heads share one key of `width` elements, which is the value, too. A position sees the last
    `window` positions. With `span` it also sees one entry per `span` earlier positions: all
    entries, or the `selected` ones that `index_heads` heads of `index_dim` elements select. Queries
    are projected from a latent of `query_rank` elements. The output projection has two steps: each
    of `groups` groups of heads makes `output_rank` elements, and these together make the hidden
    state. Widths are in elements.
    Source: DeepseekV4Attention, its compressors and indexer of transformers 5.23.
    """

    heads: Positive
    width: Positive
    query_rank: Positive
    groups: Positive
    output_rank: Positive
    window: Positive
    span: Positive | None = None
    selected: Positive | None = None
    index_heads: Positive | None = None
    index_dim: Positive | None = None

    @property
    def inputs(self) -> int:
        """Elements per position that enter the last product of the output projection."""
        return self.groups * self.output_rank

    def projected(self, d_model: int) -> int:
        """Return the weights of all of a layer's products, in elements.

        Entries that an indexer selects overlap, so the products that make them are twice as wide.
        """
        queries = self.query_rank * (d_model + self.heads * self.width)
        outputs = self.output_rank * (self.heads * self.width + self.groups * d_model)
        weights = queries + outputs + d_model * self.width
        if self.span is None:
            return weights
        is_indexed = self.index_heads is not None
        weights += 2 * d_model * self.width * (1 + is_indexed)
        heads, width = self.index_heads or 0, self.index_dim or 0
        return weights + self.query_rank * heads * width + d_model * (heads + 4 * width)

    @property
    def words(self) -> str:
        """The name of the kind for people."""
        if self.span is None:
            return f"window {self.window} alone"
        selection = f", {self.selected} selected" if self.selected else ""
        return f"entries of {self.span} positions{selection}, window {self.window}"


Runnable = Grouped | Latent
"""The kinds for which there is a forward here."""
Cached = Runnable | Compressed
Kind = Cached | State


def in_blocks(kind: Kind) -> bool:
    """Return whether a kind attends to blocks that an indexer selects, in an engine's kernel."""
    return isinstance(kind, Grouped) and kind.selected is not None


def runnable_kinds(kinds: Sequence[Kind]) -> tuple[Runnable, ...]:
    """Return the kinds, narrowed to those with a forward here; EvidenceError if one has none."""
    runnable = tuple(
        kind for kind in kinds if not isinstance(kind, Compressed | State) and not in_blocks(kind)
    )
    if len(runnable) < len(kinds):
        state = next((kind for kind in kinds if isinstance(kind, State)), None)
        what = f"a {state.words}" if state else "attention to entries of several positions"
        if any(in_blocks(kind) for kind in kinds):
            what = "attention to selected blocks"
        raise EvidenceError(
            f"{what} is predicted, not run",
            remedy="Use `nearfree predict`, or measure another model",
        )
    return runnable
