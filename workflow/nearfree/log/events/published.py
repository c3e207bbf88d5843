"""Events of what others published: curves, boundaries and rules; source code and what it says."""

from typing import Literal

from msgspec import Struct, structs

from nearfree.core.setting import Setting
from nearfree.log.events.payload import Payload


class LatencyImported(Payload, frozen=True, kw_only=True):
    """A curve T(N) that somebody else measured, and the file and rows that it was read from.

    `n` rises strictly, with `latency_us` beside it. Where the source varies the context instead,
    `contexts` lists L beside each N (all the same), and the setting's own context is the first.
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
    """The source's own name for what ran."""
    distribution: str | None = None
    """The source's own name for how tokens were spread, where `routing` does not say it all."""
    n: tuple[int, ...]
    latency_us: tuple[float, ...]
    contexts: tuple[int, ...] | None = None


class KernelReferencedV1(Payload, frozen=True, kw_only=True):
    """Version 1: codes are packed as they are."""

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
        """Say that codes are packed as they are."""
        return KernelReferenced(**structs.asdict(self), stepped=False)


class KernelReferenced(Payload, frozen=True, kw_only=True):
    """A kernel on a platform in one format: constants of its own, and its imported curves.

    `packed` holds the curves up to four times N_max, in 8 bits a point: what they are of, their
    grids, T(baseline), log(T(N) / T(baseline)) and log(T / T_form), the last two in codes of 0 to
    255 between the ends of `ratio` and `residual`; as Base85 of an LZMA stream.
    """

    type_name = "nearfree.kernel.referenced.v2"
    before = KernelReferencedV1
    source: str
    """The release that the curves are from, its licence and copyright."""
    platform: str
    family: str
    backend: str
    kernel: str | None = None
    dtype: str
    weights: str | None = None
    kv_dtype: str | None = None
    constants: dict[str, dict[str, float]]
    """By hypothesis and name."""
    epsilon: float
    curves: int
    points: int
    members: dict[str, str]
    """The files inside the release that hold them, by path and SHA-256."""
    ratio: tuple[float, float]
    residual: tuple[float, float]
    packed: str
    stepped: bool
    """Whether codes are packed as steps along N, and T(baseline) byte by byte; else as they are."""


class BoundaryPublished(Payload, frozen=True, kw_only=True):
    """A boundary that somebody printed: where it stands, and what it speaks of."""

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
    """One branch of a block or tile rule as somebody printed it."""

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
    """The files of a release that rules are read from, and what their hashes were checked against.

    `member`: each file against the wheel's own RECORD, the wheel as a whole was not read;
    `artefact`: the whole artefact against the package index;
    `commit`: each file against the commit of a repository that the release's sdist pins; the
    artefact is that commit, and `artefact_sha256` is the sdist's;
    `stand_in`: the same of an earlier commit, for one that was not to be had: that the release's
    binary names the kernels that it builds is the evidence.
    """

    type_name = "nearfree.source.fetched.v1"
    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: Literal["member", "artefact", "commit", "stand_in"]
    members: tuple[SourceMember, ...]


class Quote(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A place in a source file: first and last line, and what stands there, shortened."""

    file: str
    lines: tuple[int, int]
    text: str


class Branch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One way through a rule: under these conditions, this value; each quoted from the source."""

    when: tuple[str, ...]
    value: str
    quotes: tuple[Quote, ...]


class RuleExtracted(Payload, frozen=True, kw_only=True):
    """A rule read from a release's source: its branches, in terms of named inputs.

    Conditions and values are expressions in Python's syntax over `inputs`, of a closed set of
    operations; `functions` are helpers with loops, in the same form. `meaning` is a digest of
    what the rule answers, not of its text: two releases with the same digest have the same rule.
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
    """Points at which path enumeration and interpretation were compared; all agreed."""


class TunedIndexed(Payload, frozen=True, kw_only=True):
    """One tuned configuration file: what it is for and, in the file's order, BLOCK_SIZE_M by M.

    The other sizes, and warps and stages of a block, have an item for each of `tokens`, or none
    where an entry does not say it; events of earlier versions have none. `odd` says why a file's
    name or content has not the known form; such a file chooses nothing.
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
    """The line of each entry, where each stands at the start of a line of its own."""
    odd: str | None = None


class HeldKernel(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An attention kernel in a binary, with those that differ in nothing named here.

    In a log it is a list of these fields, in their order.
    """

    code: int
    """The architecture that it was compiled for, 90 for 9.0; other devices may run it, too."""
    kernel: Literal["standard", "split_kv", "fa3_sm80", "fa3_sm90"]
    """The first two are FlashAttention 2's, the others FlashAttention 3's by their instructions."""
    head_dim: int
    """Elements of a key's head; the widest that the kernel takes."""
    value_dim: int
    dtype: Literal["float16", "bfloat16", "float8"]
    mask: Literal["none", "causal", "window"]
    paged: bool | None
    """Whether pages are gathered key by key; None where one kernel does both."""
    split: bool
    pack: bool | None
    """Whether the heads of a group share a tile; None where the caller lays them out so."""
    rows: int
    """Rows of a tile of queries."""
    columns: int
    """Keys of a tile."""
    kernels: int = 0
    """How many of the binary's functions these are."""
    registers: tuple[int, int] = (0, 0)
    """Of a thread, least and most."""
    shared_bytes: tuple[int, int] = (0, 0)
    """Static shared memory of a block, least and most."""


class BinaryListed(Payload, frozen=True, kw_only=True):
    """The attention kernels that a binary of a release holds, as a disassembler lists them.

    The binary was read, never run. `verified` as of files that are read for rules: each member
    against the wheel's own RECORD.
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
    """The release of FlashAttention that the package says it was built from, where it says one."""
    dumper: str
    """The program that listed it, and the release that it is from."""
    dumper_sha256: str
    functions: int
    """Device functions of all kinds."""
    held: tuple[HeldKernel, ...]


class CompiledBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What a compiler made of a kernel for one block on one compute capability.

    In a log it is a list of these fields, in their order.
    """

    sm: int
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    registers: int
    """Of a thread."""
    shared_bytes: int
    """Of a block of threads."""
    blocks_an_sm: int
    """How many an SM holds at once; 0 where the block does not fit."""
    instruction: str | None
    """What multiplies matrices, as PTX calls it."""


class KernelCompiled(Payload, frozen=True, kw_only=True):
    """A release's kernel in Triton compiled ahead of time, without a device, for blocks in use.

    Of layers in 16 bits, widths that divide by the block, and no bias; nothing was run on a GPU.
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
    """The lock that the compiler was installed from."""
    dumper: str
    dumper_sha256: str
    blocks: tuple[CompiledBlock, ...]
