"""Kinds of attention that layers of a decoder have: grouped queries, and one latent for all."""

from msgspec import Struct

from nearfree.core.protocols import Positive


class Grouped(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="grouped"
):
    """Grouped-query attention of some layers, which count from 0 and rise.

    A position sees the last `window` positions up to its own, or those of its own `chunk` of
    positions (Llama 4), or all; a layer has at most one of both. With `sinks` each head has a logit
    that is no position's (gpt-oss); `soft_cap` is c of c tanh(logit / c) (Gemma 2).
    `keys_are_values` says that one product makes both (Gemma 4); they are cached apart. A layer
    that `shares` makes and caches neither: it attends to what the last layer before it of the same
    form that does not share has cached (Gemma 4). Widths are in elements.
    """

    layers: tuple[int, ...] = ()
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    window: Positive | None = None
    chunk: Positive | None = None
    sinks: bool = False
    soft_cap: float | None = None
    keys_are_values: bool = False
    shares: bool = False

    @property
    def made(self) -> int:
        """Heads of queries, keys and values that products make of a position."""
        of_cache = 0 if self.shares else self.kv_heads * (1 if self.keys_are_values else 2)
        return self.heads + of_cache

    @property
    def most(self) -> int | None:
        """Cached positions that a new one sees at most, None for all."""
        return self.window or self.chunk

    @property
    def inputs(self) -> int:
        """Elements that the output projection takes of a position."""
        return self.heads * self.head_dim

    @property
    def words(self) -> str:
        """What people call it."""
        sight = f"window {self.window}" if self.window else f"chunks of {self.chunk}"
        seen = sight if self.most else "all positions"
        return f"{seen}, shared cache" if self.shares else seen


class Latent(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="latent"
):
    """Multi-head latent attention (MLA) of some layers, which count from 0 and rise.

    Of a position a `latent` of keys and values is cached and `rope_dim` rotated elements of a key,
    which all heads share; a head's query and key have `nope_dim` elements more, its value
    `value_dim`. `query_rank` is the latent of queries, None where one product makes them. A query
    attends to `selected` positions, None for all. Layers with an indexer choose them by
    `index_heads` heads of `index_dim` elements; those without take what a layer before them chose.
    Widths are in elements.
    """

    layers: tuple[int, ...] = ()
    heads: Positive
    latent: Positive
    rope_dim: Positive
    nope_dim: Positive
    value_dim: Positive
    query_rank: Positive | None = None
    selected: Positive | None = None
    index_heads: Positive | None = None
    index_dim: Positive | None = None

    @property
    def cached(self) -> int:
        """Elements that are cached of a position, but for an indexer's key."""
        return self.latent + self.rope_dim

    @property
    def inputs(self) -> int:
        """Elements that the output projection takes of a position."""
        return self.heads * self.value_dim

    @property
    def words(self) -> str:
        """What people call it."""
        if self.selected is None:
            return "latent"
        chosen = "own indexer" if self.index_heads else "shared selection"
        return f"latent, {self.selected} selected, {chosen}"


Kind = Grouped | Latent
