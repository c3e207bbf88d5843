"""What is asked of an attention backend, and its answer at one number of positions."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from nearfree.log.events import Branch


class AttentionQuery(Struct, frozen=True, kw_only=True):
    """One attention call: `batch` requests, each with some positions over `context` tokens.

    `sm` is the compute capability (90 for 9.0), `sms` the number of SMs; facts that a backend's
    rule does not ask for may be None. `capture_positions` is the number of positions for which a
    CUDA graph was captured, where one is used; `page_size` the tokens of a page of a paged cache,
    where it is known.
    """

    heads: int
    kv_heads: int
    head_dim: int
    context: int = 4096
    batch: int = 1
    sm: int | None = None
    sms: int | None = None
    causal: bool = True
    paged: bool = False
    api: Literal["kvcache", "varlen", "dense"] = "kvcache"
    backend: Literal["auto", "fa2", "fa3"] = "auto"
    capture_positions: int | None = None
    page_size: int | None = None

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads


class Point(NamedTuple):
    """What differs between the points of a surface: whole numbers, or arrays of such."""

    positions: Any
    batch: Any
    context: Any


class Asked(NamedTuple):
    """A rule that is asked for a tile, by name, and the facts that it is given."""

    name: str
    facts: Mapping[str, Any]


class Tile(Struct, frozen=True, kw_only=True):
    """How a backend tiles the queries at one number of positions.

    A tile holds `tile` rows, of which a position takes `rows_per_position`; so the boundary in
    positions is `tile // rows_per_position`, and a request takes `tiles` tiles for each head (or
    key-value head, where heads are packed).
    """

    path: str
    tile: int
    rows_per_position: int
    tiles: int
    branches: tuple[Branch, ...]
    """The branches that decided, the one that holds the tile first."""
