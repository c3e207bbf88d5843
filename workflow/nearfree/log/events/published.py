"""Events of others' publications: curves, boundaries, rules; source code and rules read from it."""

from typing import Literal

from msgspec import Struct, structs

from nearfree.core.bounds import AboveZero, Text, Tolerance
from nearfree.core.protocols import Natural, Positive
from nearfree.core.setting import Setting
from nearfree.core.weights import Digest
from nearfree.log.events.payload import Payload


class LatencyImported(Payload, frozen=True, kw_only=True):
    """A curve T(N) that somebody else measured, and the file that it was read from.

    `n` rises strictly; `latency_us` has one value per N. If the source varies the context instead,
    `n` repeats one value, `contexts` holds L per point, and the setting's context is the first L.
    """

    type_name = "nearfree.latency.imported.v1"
    source: Text
    """The release or file that the curve is from."""
    member: Text
    """The file inside an archive, or the file itself."""
    member_sha256: Digest
    platform: Text
    setting: Setting
    backend_version: Text
    kernel: Text | None = None
    """The source's own name of the kernel."""
    distribution: Text | None = None
    """The source's own name of the token distribution, if `routing` does not fully describe it."""
    n: tuple[Positive, ...]
    latency_us: tuple[AboveZero, ...]
    contexts: tuple[Natural, ...] | None = None

    def __post_init__(self) -> None:
        varied = self.n if self.contexts is None else self.contexts
        if not len(self.n) == len(self.latency_us) == len(varied) > 0:
            raise ValueError(
                f"a curve has a latency for each point; this one has {len(self.n)} N, "
                f"{len(self.latency_us)} latencies and {len(varied)} contexts"
            )


class KernelReferencedV1(Payload, frozen=True, kw_only=True):
    """Version 1: codes are packed unchanged; without the field `stepped`."""

    type_name = "nearfree.kernel.referenced.v1"
    source: Text
    platform: Text
    family: Text
    backend: Text
    kernel: Text | None = None
    dtype: Text
    weights: Text | None = None
    kv_dtype: Text | None = None
    constants: dict[Text, dict[Text, float]]
    epsilon: Tolerance
    curves: Natural
    points: Natural
    members: dict[Text, Digest]
    ratio: tuple[float, float]
    residual: tuple[float, float]
    packed: Text

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
    source: Text
    """The release that holds the curves, its licence and its copyright."""
    platform: Text
    family: Text
    backend: Text
    kernel: Text | None = None
    dtype: Text
    weights: Text | None = None
    kv_dtype: Text | None = None
    constants: dict[Text, dict[Text, float]]
    """Values by hypothesis and name."""
    epsilon: Tolerance
    curves: Natural
    points: Natural
    members: dict[Text, Digest]
    """The files inside the release that hold the curves, by path and SHA-256."""
    ratio: tuple[float, float]
    residual: tuple[float, float]
    packed: Text
    stepped: bool
    """Whether codes are packed as differences along N and T(baseline) byte by byte."""


class BoundaryPublished(Payload, frozen=True, kw_only=True):
    """A boundary that a publication prints: its place there, and its setting."""

    type_name = "nearfree.boundary.published.v1"
    source: Text
    table: Text
    row: Text
    column: Text
    quantity: Literal["n_max", "idle_compute", "principle"]
    setting: Setting
    n_max: AboveZero
    platform: Text
    epsilon: Tolerance | None = None
    noisy: bool = False
    baseline: Positive = 1
    grid: tuple[Positive, ...] = ()
    grid_inferred: bool = True
    m_attn: Positive | None = None


class RulePublished(Payload, frozen=True, kw_only=True):
    """One branch of a block or tile rule as a publication prints it."""

    type_name = "nearfree.rule.published.v1"
    source: Text
    table: Text
    row: Positive
    package: Text
    versions: str
    path: Text
    condition: Text
    value: Positive


class SourceMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One file of a package's artefact, by its path inside the artefact."""

    path: Text
    sha256: Digest
    size: Natural
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
    package: Text
    version: Text
    artefact: Text
    artefact_sha256: Digest
    verified: Literal["member", "artefact", "commit", "stand_in"]
    members: tuple[SourceMember, ...]


class Quote(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A place in a source file: first and last line, and their text, shortened."""

    file: Text
    lines: tuple[Positive, Positive]
    text: str


class Branch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One branch of a rule: its conditions and its value, each quoted from the source."""

    when: tuple[Text, ...]
    value: Text
    quotes: tuple[Quote, ...]


class RuleExtracted(Payload, frozen=True, kw_only=True):
    """A rule read from a release's source: its branches over named inputs.

    Conditions and values are Python expressions over `inputs`, from a closed set of operations;
    `functions` are helpers with loops, in the same form. `meaning` is a digest of the values,
    not of its text: releases with equal digests have the same rule.
    """

    type_name = "nearfree.rule.extracted.v1"
    package: Text
    version: Text
    rule: Text
    symbol: Text
    inputs: tuple[Text, ...]
    branches: tuple[Branch, ...]
    functions: tuple[Text, ...] = ()
    meaning: Text
    points: Natural
    """Number of points at which path enumeration and interpretation were compared; all agreed."""


class TunedIndexed(Payload, frozen=True, kw_only=True):
    """One tuned configuration file: its key, and in the file's order BLOCK_SIZE_M by M.

    The other block sizes, warps and stages have one item per item of `tokens`, or are empty if an
    entry lacks them; they are empty in events of earlier versions, too. `odd` says why the file's
    name or content is not in the known form; such a file selects nothing.
    """

    type_name = "nearfree.tuned.indexed.v1"
    package: Text
    version: Text
    file: Text
    sha256: Digest
    experts: Positive | None = None
    d_ff: Positive | None = None
    device: Text | None = None
    dtype: Text | None = None
    block_shape: tuple[Positive, Positive] | None = None
    per_channel_quant: bool = False
    down: bool = False
    triton: Text | None = None
    tokens: tuple[Positive, ...] = ()
    block_size_m: tuple[Positive, ...] = ()
    block_size_n: tuple[Positive, ...] = ()
    block_size_k: tuple[Positive, ...] = ()
    group_size_m: tuple[Positive, ...] = ()
    num_warps: tuple[Positive, ...] = ()
    num_stages: tuple[Natural, ...] = ()
    lines: tuple[Positive, ...] = ()
    """The line number of each entry, if every entry starts a line."""
    odd: Text | None = None


class HeldKernel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A group of attention kernels in a binary that agree in all these fields.

    A log stores it as a list of the fields' values, in order.
    """

    code: Positive
    """The compute capability it was compiled for, 90 for 9.0; other devices may run it, too."""
    kernel: Literal["standard", "split_kv", "fa3_sm80", "fa3_sm90"]
    """The first two are FlashAttention 2 kernels, the others FlashAttention 3 by instructions."""
    head_dim: Positive
    """Elements of a key's head: the largest that the kernel accepts."""
    value_dim: Positive
    dtype: Literal["float16", "bfloat16", "float8"]
    mask: Literal["none", "causal", "window"]
    paged: bool | None
    """Whether pages are gathered key by key; None if one kernel does both."""
    split: bool
    pack: bool | None
    """Whether the heads of a group share a tile; None if the caller packs them."""
    rows: Positive
    """Rows of a tile of queries."""
    columns: Positive
    """Keys of a tile."""
    kernels: Natural = 0
    """Number of functions in the group."""
    registers: tuple[Natural, Natural] = (0, 0)
    """Registers per thread, minimum and maximum over the group."""
    shared_bytes: tuple[Natural, Natural] = (0, 0)
    """Static shared memory per block, minimum and maximum over the group."""


class BinaryListed(Payload, frozen=True, kw_only=True):
    """The attention kernels that a binary of a release holds, as a disassembler lists them.

    The binary was read, never run. `verified` is as for `SourceFetched`: each member against the
    wheel's RECORD.
    """

    type_name = "nearfree.binary.listed.v1"
    package: Text
    version: Text
    artefact: Text
    artefact_sha256: Digest
    verified: Literal["member"]
    member: SourceMember
    licence: Text
    carries: Text | None = None
    """The FlashAttention release that the package says it was built from, if it names one."""
    dumper: Text
    """The disassembler, and the release that it is from."""
    dumper_sha256: Digest
    functions: Natural
    """Device functions of all kinds."""
    held: tuple[HeldKernel, ...]


class CompiledBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One kernel compiled for one block shape and one compute capability.

    A log stores it as a list of the fields' values, in order.
    """

    sm: Positive
    block_m: Positive
    block_n: Positive
    block_k: Positive
    warps: Positive
    stages: Positive
    registers: Natural
    """Registers per thread."""
    shared_bytes: Natural
    """Shared memory per block of threads."""
    blocks_an_sm: Natural
    """Resident blocks per SM; 0 if the block does not fit."""
    instruction: Text | None
    """PTX name of the instruction that multiplies matrices."""


class KernelCompiled(Payload, frozen=True, kw_only=True):
    """A release's Triton kernel compiled ahead of time, without a device, for blocks in use.

    For 16-bit layers without bias whose widths are multiples of the block; nothing ran on a GPU.
    """

    type_name = "nearfree.kernel.compiled.v1"
    package: Text
    version: Text
    file: Text
    file_sha256: Digest
    kernel: Text
    dtype: Text
    compiler: Text
    lock_sha256: Digest
    """SHA-256 of the lock file that the compiler was installed from."""
    dumper: Text
    dumper_sha256: Digest
    blocks: tuple[CompiledBlock, ...]
