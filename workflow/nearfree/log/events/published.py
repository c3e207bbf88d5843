"""Events of others' publications: curves, boundaries, rules; source code and rules read from it."""

from typing import Literal

from msgspec import Struct, structs

from nearfree.core.setting import Setting
from nearfree.log.events.payload import Payload


class LatencyImported(Payload, frozen=True, kw_only=True):
    """A curve T(N) that somebody else measured, and the file that it was read from.

    `n` rises strictly; `latency_us` has one value per N. If the source varies the context instead,
    `n` repeats one value, `contexts` holds L per point, and the setting's context is the first L.
    """

    type_name = "nearfree.latency.imported.v1"
    source: str
    """The release or file that the curve is from."""
    member: str
    """The file inside an archive, or the file itself."""
    member_sha256: str
    platform: str
    setting: Setting
    backend_version: str
    kernel: str | None = None
    """The source's own name of the kernel."""
    distribution: str | None = None
    """The source's own name of the token distribution, if `routing` does not fully describe it."""
    n: tuple[int, ...]
    latency_us: tuple[float, ...]
    contexts: tuple[int, ...] | None = None


class KernelReferencedV1(Payload, frozen=True, kw_only=True):
    """Version 1: codes are packed unchanged; without the field `stepped`."""

    type_name = "nearfree.kernel.referenced.v1"
    source: str
    platform: str
    family: str
    backend: str
    kernel: str | None = None
    dtype: str
    weights: str | None = None
    kv_dtype: str | None = None
    constants: dict[str, dict[str, float]]
    epsilon: float
    curves: int
    points: int
    members: dict[str, str]
    ratio: tuple[float, float]
    residual: tuple[float, float]
    packed: str

    def upcast(self) -> "KernelReferenced":
        """Return version 2 with codes packed unchanged."""
        return KernelReferenced(**structs.asdict(self), stepped=False)


class KernelReferenced(Payload, frozen=True, kw_only=True):
    """A kernel on a platform in one format: its own constants, and its imported curves.

    `packed` holds the curves up to 4 N_max, as Base85 of an LZMA stream: their settings, grids,
    T(baseline), log(T(N) / T(baseline)) and log(T / T_form). The last two are 8-bit codes: 0 to 255
    span the interval `ratio` and the interval `residual`.
    """

    type_name = "nearfree.kernel.referenced.v2"
    before = KernelReferencedV1
    source: str
    """The release that holds the curves, its licence and its copyright."""
    platform: str
    family: str
    backend: str
    kernel: str | None = None
    dtype: str
    weights: str | None = None
    kv_dtype: str | None = None
    constants: dict[str, dict[str, float]]
    """Values by hypothesis and name."""
    epsilon: float
    curves: int
    points: int
    members: dict[str, str]
    """The files inside the release that hold the curves, by path and SHA-256."""
    ratio: tuple[float, float]
    residual: tuple[float, float]
    packed: str
    stepped: bool
    """Whether codes are packed as differences along N and T(baseline) byte by byte."""


class BoundaryPublished(Payload, frozen=True, kw_only=True):
    """A boundary that a publication prints: its place there, and its setting."""

    type_name = "nearfree.boundary.published.v1"
    source: str
    table: str
    row: str
    column: str
    quantity: Literal["n_max", "idle_compute", "principle"]
    setting: Setting
    n_max: float
    platform: str
    epsilon: float | None = None
    noisy: bool = False
    baseline: int = 1
    grid: tuple[int, ...] = ()
    grid_inferred: bool = True
    m_attn: int | None = None


class RulePublished(Payload, frozen=True, kw_only=True):
    """One branch of a block or tile rule as a publication prints it."""

    type_name = "nearfree.rule.published.v1"
    source: str
    table: str
    row: int
    package: str
    versions: str
    path: str
    condition: str
    value: int


class SourceMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One file of a package's artefact, by its path inside the artefact."""

    path: str
    sha256: str
    size: int
    """Bytes."""


class SourceFetched(Payload, frozen=True, kw_only=True):
    """The files of a release from which rules are read, and how their hashes were verified.

    `verified` is one of:
    `member`: each file against the wheel's RECORD; the wheel as a whole was not read;
    `artefact`: the whole artefact against the package index;
    `commit`: each file against the repository commit that the release's sdist pins; the artefact is
    that commit, and `artefact_sha256` is the sdist's;
    `stand_in`: as `commit`, but against an earlier commit, since the pinned one was unavailable;
    the evidence is that the release's binary names the kernels that this commit builds.
    """

    type_name = "nearfree.source.fetched.v1"
    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: Literal["member", "artefact", "commit", "stand_in"]
    members: tuple[SourceMember, ...]


class Quote(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A place in a source file: first and last line, and their text, shortened."""

    file: str
    lines: tuple[int, int]
    text: str


class Branch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One branch of a rule: its conditions and its value, each quoted from the source."""

    when: tuple[str, ...]
    value: str
    quotes: tuple[Quote, ...]


class RuleExtracted(Payload, frozen=True, kw_only=True):
    """A rule read from a release's source: its branches over named inputs.

    Conditions and values are Python expressions over `inputs`, from a closed set of operations;
    `functions` are helpers with loops, in the same form. `meaning` is a digest of the values,
    not of its text: releases with equal digests have the same rule.
    """

    type_name = "nearfree.rule.extracted.v1"
    package: str
    version: str
    rule: str
    symbol: str
    inputs: tuple[str, ...]
    branches: tuple[Branch, ...]
    functions: tuple[str, ...] = ()
    meaning: str
    points: int
    """Number of points at which path enumeration and interpretation were compared; all agreed."""


class TunedIndexed(Payload, frozen=True, kw_only=True):
    """One tuned configuration file: its key, and in the file's order BLOCK_SIZE_M by M.

    The other block sizes, warps and stages have one item per item of `tokens`, or are empty if an
    entry lacks them; they are empty in events of earlier versions, too. `odd` says why the file's
    name or content is not in the known form; such a file selects nothing.
    """

    type_name = "nearfree.tuned.indexed.v1"
    package: str
    version: str
    file: str
    sha256: str
    experts: int | None = None
    d_ff: int | None = None
    device: str | None = None
    dtype: str | None = None
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    down: bool = False
    triton: str | None = None
    tokens: tuple[int, ...] = ()
    block_size_m: tuple[int, ...] = ()
    block_size_n: tuple[int, ...] = ()
    block_size_k: tuple[int, ...] = ()
    group_size_m: tuple[int, ...] = ()
    num_warps: tuple[int, ...] = ()
    num_stages: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    """The line number of each entry, if every entry starts a line."""
    odd: str | None = None


class HeldKernel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A group of attention kernels in a binary that agree in all these fields.

    A log stores it as a list of the fields' values, in order.
    """

    code: int
    """The compute capability it was compiled for, 90 for 9.0; other devices may run it, too."""
    kernel: Literal["standard", "split_kv", "fa3_sm80", "fa3_sm90"]
    """The first two are FlashAttention 2 kernels, the others FlashAttention 3 by instructions."""
    head_dim: int
    """Elements of a key's head: the largest that the kernel accepts."""
    value_dim: int
    dtype: Literal["float16", "bfloat16", "float8"]
    mask: Literal["none", "causal", "window"]
    paged: bool | None
    """Whether pages are gathered key by key; None if one kernel does both."""
    split: bool
    pack: bool | None
    """Whether the heads of a group share a tile; None if the caller packs them."""
    rows: int
    """Rows of a tile of queries."""
    columns: int
    """Keys of a tile."""
    kernels: int = 0
    """Number of functions in the group."""
    registers: tuple[int, int] = (0, 0)
    """Registers per thread, minimum and maximum over the group."""
    shared_bytes: tuple[int, int] = (0, 0)
    """Static shared memory per block, minimum and maximum over the group."""


class BinaryListed(Payload, frozen=True, kw_only=True):
    """The attention kernels that a binary of a release holds, as a disassembler lists them.

    The binary was read, never run. `verified` is as for `SourceFetched`: each member against the
    wheel's RECORD.
    """

    type_name = "nearfree.binary.listed.v1"
    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: Literal["member"]
    member: SourceMember
    licence: str
    carries: str | None = None
    """The FlashAttention release that the package says it was built from, if it names one."""
    dumper: str
    """The disassembler, and the release that it is from."""
    dumper_sha256: str
    functions: int
    """Device functions of all kinds."""
    held: tuple[HeldKernel, ...]


class CompiledBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One kernel compiled for one block shape and one compute capability.

    A log stores it as a list of the fields' values, in order.
    """

    sm: int
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    registers: int
    """Registers per thread."""
    shared_bytes: int
    """Shared memory per block of threads."""
    blocks_an_sm: int
    """Resident blocks per SM; 0 if the block does not fit."""
    instruction: str | None
    """PTX name of the instruction that multiplies matrices."""


class KernelCompiled(Payload, frozen=True, kw_only=True):
    """A release's Triton kernel compiled ahead of time, without a device, for blocks in use.

    For 16-bit layers without bias whose widths are multiples of the block; nothing ran on a GPU.
    """

    type_name = "nearfree.kernel.compiled.v1"
    package: str
    version: str
    file: str
    file_sha256: str
    kernel: str
    dtype: str
    compiler: str
    lock_sha256: str
    """SHA-256 of the lock file that the compiler was installed from."""
    dumper: str
    dumper_sha256: str
    blocks: tuple[CompiledBlock, ...]
