"""Kinds of attention that layers of a decoder have: grouped queries, latents, entries, states."""

from collections.abc import Sequence

from msgspec import Struct

from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.errors import EvidenceError


class Grouped(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="grouped"
):
    """Grouped-query attention of some layers, which count from 0 and rise.

    A position sees the last `window` positions up to its own, or those of its own `chunk` of
    positions (Llama 4), or all; a layer has at most one of both. With `sinks` each head has a logit
    that is no position's (gpt-oss); `soft_cap` is c of c tanh(logit / c) (Gemma 2).
    `keys_are_values` says that one matrix makes both (Gemma 4); they are cached apart. A layer
    that `shares` makes and caches neither: it attends to what the last layer before it of the same
    form that does not share has cached (Gemma 4). With a `gate` the product of queries makes
    another row as wide, which what heads give is multiplied by (Qwen3-Next); with `head_gates` a
    product of its own makes one number for each head (Step 3.5), with `wide_gates` as many numbers
    as heads give (Trinity). A value is `value_dim` wide where it is not as wide as a key (MiMo-V2).
    With `selected` a position attends to so many at most, in blocks that `index_heads` heads of
    `index_dim` elements choose (MiniMax M3); they compare it with one key of each position, which
    is cached, too. Widths are in elements.
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
    gate: bool = False
    head_gates: bool = False
    wide_gates: bool = False
    value_dim: Positive | None = None
    selected: Positive | None = None
    index_heads: Positive | None = None
    index_dim: Positive | None = None

    @property
    def values(self) -> int:
        """Elements of a head's value."""
        return self.value_dim or self.head_dim

    @property
    def called_dim(self) -> int:
        """Elements of a key and of a value in the mean: a head so wide has the work of theirs."""
        return (self.head_dim + self.values) // 2

    @property
    def queries(self) -> int:
        """Elements of a position's queries and their gates."""
        return self.heads * (1 + self.gate) * self.head_dim

    @property
    def made(self) -> int:
        """Elements of queries, their gates, keys and values that products make of a position."""
        value = 0 if self.keys_are_values else self.values
        return self.queries + (0 if self.shares else self.kv_heads * (self.head_dim + value))

    @property
    def most(self) -> int | None:
        """Cached positions that a new one sees at most, None for all."""
        return self.window or self.chunk

    @property
    def inputs(self) -> int:
        """Elements that the output projection takes of a position."""
        return self.heads * self.values

    def projected(self, d_model: int) -> int:
        """Return the weights of all of a layer's products, in elements."""
        index = (self.index_heads or 0) + (self.index_heads is not None)
        return d_model * (self.made + self.inputs + index * (self.index_dim or 0))

    @property
    def words(self) -> str:
        """What people call it."""
        if self.selected:
            return f"{self.selected} selected in blocks"
        sight = f"window {self.window}" if self.window else f"chunks of {self.chunk}"
        seen = sight if self.most else "all positions"
        return f"{seen}, shared cache" if self.shares else seen


class Latent(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="latent"
):
    """Multi-head latent attention (MLA) of some layers, which count from 0 and rise.

    Of a position a `latent` of keys and values is cached and `rope_dim` rotated elements of a key,
    which all heads share; a head's query and key have `nope_dim` elements more, its value
    `value_dim`. `query_rank` is the latent of queries, None where one product makes them. With a
    `gate` what heads give is multiplied by as many elements more of a position (Kimi K3). A query
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
    gate: bool = False

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


class Compressed(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="compressed",
):
    """Attention of DeepSeek V4's layers, which count from 0 and rise, to a window and to entries.

    All heads share one key of `width` elements, which is the value, too. A position sees the last
    `window` positions and, without `span` nothing else, with it one entry for each `span` positions
    before: all of them, or the `selected` ones that `index_heads` heads of `index_dim` elements
    choose. Queries are products of a latent of `query_rank` elements. What heads give leaves in two
    steps: each of `groups` groups of heads makes `output_rank` elements, and all of these the
    hidden state. Widths are in elements.
    Source: DeepseekV4Attention, its compressors and indexer of transformers 5.23.
    """

    layers: tuple[int, ...] = ()
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
        """Elements that the last product of the output takes of a position."""
        return self.groups * self.output_rank

    def projected(self, d_model: int) -> int:
        """Return the weights of all of a layer's products, in elements.

        Entries that are chosen among overlap, so that what makes them is twice as wide.
        """
        queries = self.query_rank * (d_model + self.heads * self.width)
        outputs = self.output_rank * (self.heads * self.width + self.groups * d_model)
        found = queries + outputs + d_model * self.width
        if self.span is None:
            return found
        chosen = self.index_heads is not None
        found += 2 * d_model * self.width * (1 + chosen)
        heads, width = self.index_heads or 0, self.index_dim or 0
        return found + self.query_rank * heads * width + d_model * (heads + 4 * width)

    @property
    def words(self) -> str:
        """What people call it."""
        if self.span is None:
            return f"window {self.window} alone"
        chosen = f", {self.selected} selected" if self.selected else ""
        return f"entries of {self.span} positions{chosen}, window {self.window}"


class DeltaNet(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="delta_net",
):
    """Gated delta nets of some layers, which count from 0 and rise: a state in place of attention.

    Of a request each of `heads` heads of values keeps a matrix of `key_dim` by `value_dim`, which
    each position changes; `key_heads` heads of queries and keys serve them. A convolution spans
    `conv` positions of queries, keys and values, of which the last but one are kept, too. The
    matrices are in `state`, None in what an engine takes. With a `rank` each channel of a key
    decays by a factor of its own, which two products make by way of so many elements, as two more
    make the gate of what leaves (Kimi's delta attention), or one does where it is a `full_gate`
    (Kimi K3). Widths are in elements.
    Source: Qwen3NextGatedDeltaNet and KimiLinearDeltaAttention of transformers 5.23.
    """

    layers: tuple[int, ...] = ()
    heads: Positive
    key_heads: Positive
    key_dim: Positive
    value_dim: Positive
    conv: Positive
    state: Dtype | None = None
    rank: Positive | None = None
    full_gate: bool = False

    @property
    def mixed(self) -> int:
        """Elements of a position's queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.inputs

    @property
    def inputs(self) -> int:
        """Elements that the output projection takes of a position."""
        return self.heads * self.value_dim

    @property
    def matrices(self) -> int:
        """Elements of all matrices of a request."""
        return self.inputs * self.key_dim

    @property
    def kept(self) -> int:
        """Elements that are kept of a request, however long it is."""
        return self.matrices + self.mixed * (self.conv - 1)

    @property
    def words(self) -> str:
        """What people call it."""
        return "delta attention" if self.rank else "gated delta net"


class Mamba2(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="mamba2"
):
    """Mixers of Mamba's second version of some layers, which count from 0 and rise: a state.

    Of a request each of `heads` heads keeps a matrix of `head_dim` by `state_dim`, which each
    position decays and adds an outer product to; `groups` pairs of vectors of `state_dim`, B and C,
    serve them. A convolution spans `conv` positions of these and of what the heads add, of which
    the last but one are kept, too. The matrices are in `state`, None in what an engine takes.
    Widths are in elements.
    Source: NemotronHMamba2Mixer and FalconH1Mixer of transformers 5.23.
    """

    layers: tuple[int, ...] = ()
    heads: Positive
    groups: Positive
    head_dim: Positive
    state_dim: Positive
    conv: Positive
    state: Dtype | None = None

    @property
    def mixed(self) -> int:
        """Elements of a position that the convolution takes: what heads add, B and C."""
        return self.inputs + 2 * self.groups * self.state_dim

    @property
    def inputs(self) -> int:
        """Elements that the output projection takes of a position."""
        return self.heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Elements of all matrices of a request."""
        return self.inputs * self.state_dim

    @property
    def kept(self) -> int:
        """Elements that are kept of a request, however long it is."""
        return self.matrices + self.mixed * (self.conv - 1)

    @property
    def words(self) -> str:
        """What people call it."""
        return "Mamba-2 mixer"


class ShortConv(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="short_conv",
):
    """Short convolutions of some layers, which count from 0 and rise: no attention, hardly a state.

    One product makes two gates and a row of `channels` of a position; the row times the first gate
    is summed over `conv` positions, each channel for itself, of which the last but one are kept of
    a request; times the second gate it leaves by another product. Widths are in elements.
    Source: Lfm2ShortConv of transformers 5.23.
    """

    layers: tuple[int, ...] = ()
    channels: Positive
    conv: Positive

    @property
    def heads(self) -> int:
        """What ranks part: channels, each of which is alone."""
        return self.channels

    @property
    def inputs(self) -> int:
        """Elements that the output projection takes of a position."""
        return self.channels

    @property
    def kept(self) -> int:
        """Elements that are kept of a request, however long it is."""
        return self.channels * (self.conv - 1)

    @property
    def words(self) -> str:
        """What people call it."""
        return "short convolution"


Run = Grouped | Latent
"""The kinds whose forward is run here."""
Matrices = DeltaNet | Mamba2
"""The kinds that keep a matrix of each head of a request."""
State = Matrices | ShortConv
"""The kinds that keep a state of a request, and cache nothing of its positions."""
Cached = Run | Compressed
Kind = Cached | State


def in_blocks(kind: Kind) -> bool:
    """Return whether it attends to blocks that an indexer selects, by an engine's own kernel."""
    return isinstance(kind, Grouped) and kind.selected is not None


def runs(kinds: Sequence[Kind]) -> tuple[Run, ...]:
    """Return kinds as those whose forward is run here; EvidenceError if one is not."""
    found = tuple(
        kind for kind in kinds if not isinstance(kind, Compressed | State) and not in_blocks(kind)
    )
    if len(found) < len(kinds):
        state = next((kind for kind in kinds if isinstance(kind, State)), None)
        what = f"a {state.words}" if state else "attention to entries of several positions"
        if any(in_blocks(kind) for kind in kinds):
            what = "attention to selected blocks"
        raise EvidenceError(
            f"{what} is predicted, not run",
            remedy="Ask `nearfree predict`, or measure another model",
        )
    return found
