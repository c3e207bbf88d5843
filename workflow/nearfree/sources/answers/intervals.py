"""The answer for one setting: kernel paths and granularities by range, with their evidence."""

from msgspec import Struct


def place_of(file: str, lines: tuple[int, int] | None) -> str:
    """Return a file with its first and last line, if they are known."""
    return file if lines is None else f"{file}:{lines[0]}-{lines[1]}"


class Evidence(Struct, frozen=True, kw_only=True):
    """A quoted source: file inside the artefact, its SHA-256, lines, text, and the condition."""

    file: str
    lines: tuple[int, int] | None
    sha256: str | None
    quote: str
    condition: str | None = None


class PathInterval(Struct, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """A kernel path and the range where it is taken, both ends included."""

    first: int
    last: int
    path: str
    evidence: tuple[Evidence, ...] = ()


class Interval(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"first": "from", "last": "to"}
):
    """A granularity and the range where it holds, both ends included.

    `value` is BLOCK_SIZE_M of a MoE layer, in tokens; of attention, the positions that fit one
    tile; of a dense product, the rows of a tile. Attention also has the tile's rows, the rows per
    position, and the tiles per request and (key-value) head; a dense product the number of passes
    over the weights.
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
    """The SM resources of a compiled block of [rows, columns, depth].

    `registers` are per thread, `shared_bytes` per block; `blocks_an_sm` is the number of resident
    blocks per SM, 0 if the block does not fit; `instruction` is the matrix-multiply instruction.
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
    """The kernels that serving tries, in order; it takes the first that supports the layer.

    The block sizes of the answer are those of the Triton kernel.
    """

    kernels: tuple[str, ...]
    evidence: tuple[Evidence, ...]


class ReleaseRead(Struct, frozen=True, kw_only=True):
    """The release whose rules answer, the artefact that was read, and how that was verified."""

    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: str


class Granularity(ReleaseRead, frozen=True, kw_only=True):
    """The answer for one setting: paths and granularities over the range of the query."""

    kernel_path: tuple[PathInterval, ...]
    intervals: tuple[Interval, ...]
    backend_order: BackendOrder | None = None
    compiled: tuple[CompiledInterval, ...] = ()
    notes: tuple[str, ...] = ()
