"""What a release says of one setting: paths and granularities, by range, with their places."""

from msgspec import Struct


class Evidence(Struct, frozen=True, kw_only=True):
    """A quoted place: file inside the artefact, its SHA-256, lines, text, and the condition."""

    file: str
    lines: tuple[int, int] | None
    sha256: str | None
    quote: str
    condition: str | None = None


class PathInterval(Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """A kernel path and where it is taken; both ends belong to it."""

    first: int
    last: int
    path: str
    evidence: tuple[Evidence, ...] = ()


class Interval(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"first": "from", "last": "to"}
):
    """A granularity and where it holds; both ends belong to it.

    `value` is BLOCK_SIZE_M of a MoE layer, in tokens; of attention, the positions that fit one
    tile; of a dense product, the rows of a tile. For attention also the tile's rows, the rows a
    position takes, and the tiles a request takes for each (key-value) head; for a dense product
    how often the weights are read.
    """

    first: int
    last: int
    value: int
    source: str
    file: str
    lines: tuple[int, int] | None
    sha256: str | None
    tile: int | None = None
    rows_per_position: int | None = None
    tiles: int | None = None
    passes: int | None = None
    evidence: tuple[Evidence, ...] = ()


class CompiledInterval(Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """What a block of rows, columns and depth takes of an SM where a compiler made it.

    Registers are a thread's, bytes a block's; `blocks_an_sm` is how many an SM holds at once, 0
    where the block does not fit; `instruction` what multiplies matrices.
    """

    first: int
    last: int
    block: tuple[int, int, int]
    warps: int
    stages: int
    registers: int
    shared_bytes: int
    blocks_an_sm: int
    instruction: str | None
    compiler: str


class BackendOrder(Struct, frozen=True, kw_only=True):
    """The kernels that serving tries, in order; the first that supports the layer is taken.

    The block sizes here are those of the Triton kernel.
    """

    kernels: tuple[str, ...]
    evidence: tuple[Evidence, ...]


class Granularity(Struct, frozen=True, kw_only=True):
    """The answer for one setting: paths and granularities over the asked range."""

    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: str
    kernel_path: tuple[PathInterval, ...]
    intervals: tuple[Interval, ...]
    backend_order: BackendOrder | None = None
    compiled: tuple[CompiledInterval, ...] = ()
    notes: tuple[str, ...] = ()
