"""What can be recorded: one typed, versioned struct an event type.

A change of meaning is a new version with a new struct; old ones stay readable.
"""

from typing import Any, ClassVar, Literal

from msgspec import Struct, defstruct

from nearfree.core.plan import Plan
from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork


class Payload(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """The data of an event; `type_name` is its CloudEvents type, with the version at its end."""

    type_name: ClassVar[str]


class Fingerprint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes two machines the same platform: nothing that changes with load or updates."""

    kind: Literal["cpu", "cuda", "simulated"]
    model: str
    features: tuple[str, ...]
    cores: int
    caches: dict[str, int]
    """Bytes of each cache level, by name."""


class Scheduler(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The job a run belonged to, as the batch system named it."""

    system: str
    job_id: str | None = None
    restart: str | None = None
    node: str | None = None
    partition: str | None = None
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES: as the job counts its own GPUs."""
    gpus: str | None = None
    """The GPUs of the node that the job was given, as the batch system counts them."""


class RunStarted(Payload, frozen=True, kw_only=True):
    """Who ran what, on what: everything an auditor asks for."""

    type_name = "nearfree.run.started.v1"
    command: str
    plan: Plan
    plan_digest: str
    attempt: int
    commit: str | None
    dirty: bool | None
    code_digest: str
    python: str
    versions: dict[str, str]
    lock_sha256: str | None
    environment_sha256: str | None = None
    """SHA-256 over every installed distribution and its version: what really ran."""
    host_label: str
    device: str | None = None
    driver: str | None = None
    clocks_mhz: dict[str, float] | None = None
    power_cap_w: float | None = None
    scheduler: Scheduler | None = None


class RunFinished(Payload, frozen=True, kw_only=True):
    """The take is over; `partial` when someone closed it before its plan was done."""

    type_name = "nearfree.run.finished.v1"
    outcome: Literal["complete", "partial"]
    wall_s: float
    timed_s: float | None = None


class RunFailed(Payload, frozen=True, kw_only=True):
    """The attempt ended in an error."""

    type_name = "nearfree.run.failed.v1"
    error: str
    remedy: str


class ComputePeak(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """phi of one dtype: the best of several square matrix products, one thread, in GFLOP/s."""

    dtype: str
    gflop_s: float
    size: int
    samples: tuple[float, ...]
    guarded: bool
    """True when the time guard stopped the dtype before its full size."""


class BandwidthPeak(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """beta by one method, one thread, in GB/s."""

    method: Literal["stream", "gemm"]
    gb_s: float
    bytes_read: int
    samples: tuple[float, ...]


class HardwareProbed(Payload, frozen=True, kw_only=True):
    """A machine's facts as it showed them itself."""

    type_name = "nearfree.hardware.probed.v1"
    fingerprint: Fingerprint
    compute: tuple[ComputePeak, ...]
    bandwidth: tuple[BandwidthPeak, ...]
    threads: int
    load_1m: float | None = None


class DeviceState(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a GPU said of itself right after a visit: clocks, power, temperature, throttling."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    throttle: tuple[str, ...] = ()
    """Names of the reasons for which its clocks were held back."""


class LatencyMeasured(Payload, frozen=True, kw_only=True):
    """The raw samples of one visit: one setting, one N, one round, in microseconds a forward.

    A sample is dirty if a CPU was taken away meanwhile, or a GPU was throttled.
    """

    type_name = "nearfree.latency.measured.v1"
    setting: Setting
    n: int
    baseline: int
    round: int
    order: int
    wall_us: tuple[float, ...]
    process_us: tuple[float, ...]
    dirty: tuple[bool, ...]
    cache: Literal["cold", "warm"]
    protocol: Timing
    load_1m: float | None = None
    round_points: int | None = None
    """Events that make this round whole; None in older logs, where the plan says it."""
    paired: bool = False
    """Whether the round is a palindrome around its baseline, not a sweep over all points."""
    key_length: int | None = None
    """Keys that attention reads: the L cached ones and the N new ones."""
    timer: Literal["cpu", "cuda_events", "simulated"] = "cpu"
    launch: Literal["eager", "graph"] = "eager"
    forwards_a_sample: int = 1
    state: DeviceState | None = None


class WorkCounted(Payload, frozen=True, kw_only=True):
    """The work of one forward as its adapter counts it, and the kernels that ran."""

    type_name = "nearfree.work.counted.v1"
    setting: Setting
    n: int
    work: ExecutedWork
    kernels: tuple[str, ...]


class SharesMeasured(Payload, frozen=True, kw_only=True):
    """One forward of a model, timed module by module in a pass of its own, in microseconds.

    `part_us` is each module's time, all its layers together; what lies between modules is a part
    of its own. Watching costs something: their sum is not T(N).
    """

    type_name = "nearfree.shares.measured.v1"
    setting: Setting
    n: int
    round: int
    part_us: dict[str, float]
    dirty: bool
    timer: Literal["cpu", "cuda_events"]


class PredictionRecorded(Payload, frozen=True, kw_only=True):
    """What a predictor says of a model's setting at a tolerance, on record before it is measured.

    `n_max` None is a refusal; `low` and `high` bound it. `made_from` names the takes that the
    prediction rests on. `n` and `latency_us` are T(N) where the predictor has one.
    """

    type_name = "nearfree.prediction.recorded.v1"
    setting: Setting
    baseline: int
    predictor: str
    basis: str | None = None
    epsilon: float
    n_max: float | None = None
    low: float | None = None
    high: float | None = None
    limiting_module: str | None = None
    limiting_term: str | None = None
    evidence: str | None = None
    margin: float | None = None
    balance_flop_per_byte: float | None = None
    refusal: str | None = None
    made_from: tuple[str, ...] = ()
    n: tuple[int, ...] = ()
    latency_us: tuple[float, ...] = ()


class KernelProfiled(Payload, frozen=True, kw_only=True):
    """What a hardware profiler saw in the forwards of one point, summed over their kernels.

    Utilisations are means weighted by kernel time (paper, app. C.1), as shares of the peak.
    """

    type_name = "nearfree.kernel.profiled.v1"
    setting: Setting
    n: int
    profiler: str
    forwards: int
    kernels: tuple[str, ...]
    kernel_us: float
    """Time inside kernels, a forward."""
    flop: float | None = None
    dram_bytes: float | None = None
    tensor_utilization: float | None = None
    dram_utilization: float | None = None


class LaunchFloor(Payload, frozen=True, kw_only=True):
    """What launching costs where nothing is computed, in microseconds: T(N) is never below it."""

    type_name = "nearfree.launch.floor.v1"
    eager_us: float
    graph_us: float | None = None
    samples: tuple[float, ...]


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
    `artefact`: the whole artefact against the package index.
    """

    type_name = "nearfree.source.fetched.v1"
    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: Literal["member", "artefact"]
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

    `block_size_n`, `block_size_k` and `group_size_m` have an item for each of `tokens`, or none
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
    lines: tuple[int, ...] = ()
    """The line of each entry, where each stands at the start of a line of its own."""
    odd: str | None = None


class CalibratedConstant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One constant of a form of T(N), under one hypothesis about what the source does not say."""

    hypothesis: str
    name: str
    unit: str
    meaning: str
    value: float


class ConstantsCalibrated(Payload, frozen=True, kw_only=True):
    """The constants of one family of kernels, and the curves that they were fitted to.

    `band` is how far the logarithm of T(N) / T(baseline) may be off, as seen on curves left out of
    the fit. `rows_sha256` is a digest of the curves that were used: their
    settings and points, in their order; `selection` says in words which those are.
    """

    type_name = "nearfree.constants.calibrated.v1"
    family: str
    constants: tuple[CalibratedConstant, ...]
    band: float
    epsilon: float
    platforms: tuple[str, ...]
    selection: str
    curves: int
    rows_sha256: str
    files: dict[str, str]
    """What the curves were imported from, by name and SHA-256."""
    members: dict[str, str]
    """The files inside it that hold them, by path and SHA-256."""
    tried: tuple[str, ...]
    """Every form of T(N) that was tried on these curves, and how well it did."""


class ObservationRetracted(Payload, frozen=True, kw_only=True):
    """An event, or a whole take, that must not be used any more, and why."""

    type_name = "nearfree.observation.retracted.v1"
    target: str
    reason: str


class SegmentRecovered(Payload, frozen=True, kw_only=True):
    """What a new attempt kept of an interrupted one: a prefix of its lines."""

    type_name = "nearfree.segment.recovered.v1"
    segment: str
    kept_events: int
    kept_bytes: int
    ignored_bytes: int
    head: str
    torn: bool


class Event(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag_field="type"
):
    """The CloudEvents 1.0 envelope of a payload, with the chain's own extensions."""

    specversion: Literal["1.0"]
    id: str
    source: str
    time: str
    datacontenttype: Literal["application/json"]
    data: Any
    sequence: str
    prevhash: str
    hash: str

    @property
    def event_id(self) -> str:
        """The segment and the place in it, unique in a log."""
        return f"{self.source}#{self.id}"


PAYLOADS: tuple[type[Payload], ...] = (
    RunStarted,
    RunFinished,
    RunFailed,
    HardwareProbed,
    LatencyMeasured,
    SharesMeasured,
    PredictionRecorded,
    WorkCounted,
    KernelProfiled,
    LaunchFloor,
    LatencyImported,
    BoundaryPublished,
    RulePublished,
    SourceFetched,
    RuleExtracted,
    TunedIndexed,
    ConstantsCalibrated,
    ObservationRetracted,
    SegmentRecovered,
)
ENVELOPES: tuple[type[Event], ...] = tuple(
    defstruct(  # type: ignore[misc]  # its bases say that it is an Event
        f"{payload.__name__}Event",
        [("data", payload)],
        bases=(Event,),
        tag=payload.type_name,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
    )
    for payload in PAYLOADS
)
