"""Kinds of mixers of a decoder's layers that keep a state per request instead of a cache."""

from msgspec import Struct

from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive


class OfLayers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The `layers` of a kind, counted from 0 in rising order."""

    layers: tuple[int, ...] = ()


class DeltaNet(OfLayers, frozen=True, kw_only=True, tag="delta_net"):
    """Gated delta nets: a state instead of a KV cache.

    For each request, each of the `heads` value heads keeps a matrix of `key_dim` by `value_dim`,
    which each position updates; `key_heads` heads of queries and keys serve them. A convolution
    spans `conv` positions of queries, keys and values; its last `conv` - 1 inputs are kept, too.
    `state` is the dtype of the matrices, None where the engine decides. With a `rank` each channel
    of a key has its own decay, made by two products of that inner width. The output gate is made by
    two such products as well (Kimi's delta attention), or by one with `full_gate` (Kimi K3). With
    `channel_gates` the product of queries, keys and values makes both, for each channel (Ling 3).
    Widths are in elements.
    Source: Qwen3NextGatedDeltaNet, KimiLinearDeltaAttention and BailingHybridDeltaAttention of
    transformers 5.23.
    """

    heads: Positive
    key_heads: Positive
    key_dim: Positive
    value_dim: Positive
    conv: Positive
    state: Dtype | None = None
    rank: Positive | None = None
    full_gate: bool = False
    channel_gates: bool = False

    @property
    def mixed(self) -> int:
        """Elements per position that enter the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.inputs

    @property
    def inputs(self) -> int:
        """Elements per position that enter the output projection."""
        return self.heads * self.value_dim

    @property
    def matrices(self) -> int:
        """Elements of all state matrices of a request."""
        return self.inputs * self.key_dim

    @property
    def kept(self) -> int:
        """Elements of a request's state, whatever its length."""
        return self.matrices + self.mixed * (self.conv - 1)

    @property
    def reported(self) -> tuple[int, int]:
        """The numbers that a `Decoder` reports as its key heads, and as the width of one."""
        return self.key_heads, self.key_dim

    @property
    def shared(self) -> tuple[int, str]:
        """What ranks divide among them without a rest: how many, and their name."""
        return self.key_heads, "heads of keys of a gated delta net"

    @property
    def words(self) -> str:
        """The name of the kind for people."""
        return "delta attention" if self.rank or self.channel_gates else "gated delta net"


class Mamba2(OfLayers, frozen=True, kw_only=True, tag="mamba2"):
    """Mamba-2 mixers: a state instead of a KV cache.

    For each request, each of `heads` heads keeps a matrix of `head_dim` by `state_dim`; each
    position decays it and adds an outer product. `groups` pairs of vectors of `state_dim`, B and C,
    serve the heads. A convolution spans `conv` positions of these and of the heads' inputs; its
    last `conv` - 1 inputs are kept, too. `state` is the dtype of the matrices, None where the
    engine decides. Widths are in elements.
    Source: NemotronHMamba2Mixer and FalconH1Mixer of transformers 5.23.
    """

    heads: Positive
    groups: Positive
    head_dim: Positive
    state_dim: Positive
    conv: Positive
    state: Dtype | None = None

    @property
    def mixed(self) -> int:
        """Elements per position that enter the convolution: the heads' inputs, B and C."""
        return self.inputs + 2 * self.groups * self.state_dim

    @property
    def inputs(self) -> int:
        """Elements per position that enter the output projection."""
        return self.heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Elements of all state matrices of a request."""
        return self.inputs * self.state_dim

    @property
    def kept(self) -> int:
        """Elements of a request's state, whatever its length."""
        return self.matrices + self.mixed * (self.conv - 1)

    @property
    def reported(self) -> tuple[int, int]:
        """The numbers that a `Decoder` reports as its key heads, and as the width of one."""
        return self.groups, self.head_dim

    @property
    def words(self) -> str:
        """The name of the kind for people."""
        return "Mamba-2 mixer"


class ShortConv(OfLayers, frozen=True, kw_only=True, tag="short_conv"):
    """Short convolutions: a small state instead of a KV cache.

    One product makes two gates and a row of `channels` elements per position. The row, times the
    first gate, is convolved per channel over `conv` positions, of which `conv` - 1 are kept. The
    result, times the second gate, enters the output projection. Widths are in elements.
    Source: Lfm2ShortConv of transformers 5.23.
    """

    channels: Positive
    conv: Positive

    @property
    def heads(self) -> int:
        """What ranks divide among them: channels, which are independent of each other."""
        return self.channels

    @property
    def inputs(self) -> int:
        """Elements per position that enter the output projection."""
        return self.channels

    @property
    def kept(self) -> int:
        """Elements of a request's state, whatever its length."""
        return self.channels * (self.conv - 1)

    @property
    def reported(self) -> tuple[int, int]:
        """The numbers that a `Decoder` reports as its key heads, and as the width of one."""
        return self.channels, 1

    @property
    def shared(self) -> tuple[int, str]:
        """What ranks divide among them without a rest: how many, and their name."""
        return self.channels, "channels of a short convolution"

    @property
    def words(self) -> str:
        """The name of the kind for people."""
        return "short convolution"


Matrices = DeltaNet | Mamba2
"""The kinds that keep a matrix per head of a request."""
State = Matrices | ShortConv
"""The kinds that keep a state per request and cache nothing per position."""
