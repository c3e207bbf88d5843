"""Events of measurements on this machine: hardware, latencies, executed work, kernel profiles."""

from typing import Literal

from msgspec import Struct

from nearfree.core.bounds import AboveZero, AtLeastZero, Share, Text
from nearfree.core.names import Name
from nearfree.core.protocols import Natural, Positive, Timing
from nearfree.core.setting import Setting
from nearfree.core.weights import Digest
from nearfree.core.work import ExecutedWork
from nearfree.log.events.payload import Payload


class Fingerprint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identity of a platform's machine: facts that do not change with load or updates."""

    kind: Literal["cpu", "cuda", "simulated"]
    model: Text
    features: tuple[Text, ...]
    cores: Positive
    caches: dict[Text, Natural]
    """Bytes of each cache level, by name."""


class ComputePeak(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """phi of one dtype: the best of several square matrix products, one thread, in GFLOP/s."""

    dtype: Text
    gflop_s: AboveZero
    size: Natural
    samples: tuple[AboveZero, ...]
    guarded: bool
    """True when the time guard stopped the dtype before its full size."""


class BandwidthPeak(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """beta by one method, one thread, in GB/s."""

    method: Literal["stream", "gemm"]
    gb_s: AboveZero
    bytes_read: Natural
    samples: tuple[AboveZero, ...]


class HardwareProbed(Payload, frozen=True, kw_only=True):
    """A machine's facts as probed on it."""

    type_name = "nearfree.hardware.probed.v1"
    fingerprint: Fingerprint
    compute: tuple[ComputePeak, ...]
    bandwidth: tuple[BandwidthPeak, ...]
    threads: Positive
    load_1m: AtLeastZero | None = None


class LaunchFloor(Payload, frozen=True, kw_only=True):
    """The launch latency of an empty forward, in microseconds: T(N) is never below it."""

    type_name = "nearfree.launch.floor.v1"
    eager_us: AboveZero
    graph_us: AboveZero | None = None
    samples: tuple[AboveZero, ...]


class DeviceState(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A GPU's state right after a visit: clocks, power, temperature, throttling."""

    sm_mhz: Natural
    memory_mhz: Natural
    power_w: AtLeastZero
    temperature_c: int
    throttle: tuple[Text, ...] = ()
    """Names of the reasons why its clocks were throttled."""


class LatencyMeasured(Payload, frozen=True, kw_only=True):
    """The raw samples of one visit: one setting, one N, one round, in microseconds per forward.

    A sample is dirty if other processes used more than 1 % of it (in older logs, any of it), if
    the GPU was throttled, or if a forward's CPUs were apart (`hardware.handover`).
    """

    type_name = "nearfree.latency.measured.v1"
    setting: Setting
    n: Positive
    baseline: Positive
    round: Natural
    order: Natural
    wall_us: tuple[AboveZero, ...]
    process_us: tuple[AtLeastZero, ...]
    dirty: tuple[bool, ...]
    cache: Literal["cold", "warm"]
    protocol: Timing
    load_1m: AtLeastZero | None = None
    round_points: Positive | None = None
    """Number of visits in a whole round; None in older logs, whose plan holds it."""
    paired: bool = False
    """Whether the round is a palindrome around its baseline, not a sweep over all points."""
    key_length: Natural | None = None
    """Number of keys that attention reads: L cached and N new ones."""
    timer: Literal["cpu", "cuda_events", "simulated"] = "cpu"
    launch: Literal["eager", "graph"] = "eager"
    forwards_a_sample: Positive = 1
    state: DeviceState | None = None
    handover_ns: tuple[AtLeastZero | None, ...] | None = None
    """Of each sample, the longest round trip of a value between the forward's CPUs, before or after
    it; None where they were not watched."""
    changed_us: AboveZero | None = None
    """Time of an engine's first warm-up forward, right after one of the setting over another N."""

    def __post_init__(self) -> None:
        samples = len(self.wall_us), len(self.process_us), len(self.dirty)
        if len(set(samples)) > 1 or not self.wall_us:
            raise ValueError(
                "a visit has a wall time, a process time and a flag for each sample; this one has "
                f"{samples[0]}, {samples[1]} and {samples[2]}"
            )


class EngineMatrix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Matrices of one shape and type that a forward multiplies: `count` of them over all layers.

    `part` is the tensor's name without its layer, `type` ggml's name of its storage format, `rows`
    the outputs and `columns` the inputs of one matrix. A token uses only some of `routed` ones.
    """

    part: Text
    type: Text
    rows: Positive
    columns: Positive
    count: Positive
    routed: bool = False


class EngineShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The shape of attention and the experts per token, as given in the weights' file."""

    layers: Positive
    heads: Natural
    kv_heads: Natural
    head_dim: Natural
    taken_experts: Positive = 1


class EngineLoaded(Payload, frozen=True, kw_only=True):
    """A real engine as it was loaded: its libraries, its system report and its weights.

    The weights themselves are files outside the log, identified by hash.
    """

    type_name = "nearfree.engine.loaded.v1"
    engine: Name
    release: Text
    package: Text
    library_sha256: dict[Text, Digest]
    """SHA-256 of the library files that the process had loaded, by name."""
    header_sha256: dict[Text, Digest]
    """SHA-256 of the headers that declare the called functions, by name."""
    system_info: str
    """CPU features and options as the library reports them: they select its rules."""
    model: Name
    weights_sha256: Digest
    weights_bytes: Positive
    file_type: Name
    repack: bool
    matrices: tuple[EngineMatrix, ...]
    shape: EngineShape


class WorkCounted(Payload, frozen=True, kw_only=True):
    """The work of one forward as the adapter counts it, and the kernels that ran."""

    type_name = "nearfree.work.counted.v1"
    setting: Setting
    n: Positive
    work: ExecutedWork
    kernels: tuple[Text, ...]


class SharesMeasured(Payload, frozen=True, kw_only=True):
    """One forward of a model, timed module by module in a separate pass, in microseconds.

    `part_us` is each module's time over all layers; the time between modules is a part of its own.
    Timing the parts has overhead, so their sum is not T(N).
    """

    type_name = "nearfree.shares.measured.v1"
    setting: Setting
    n: Positive
    round: Natural
    part_us: dict[Text, AtLeastZero]
    dirty: bool
    timer: Literal["cpu", "cuda_events"]


class KernelProfiled(Payload, frozen=True, kw_only=True):
    """A hardware profiler's counters for the forwards of one point, summed over their kernels.

    Utilisations are means weighted by kernel time (paper, app. C.1), as fractions of the peak.
    """

    type_name = "nearfree.kernel.profiled.v1"
    setting: Setting
    n: Positive
    profiler: Text
    forwards: Positive
    kernels: tuple[Text, ...]
    kernel_us: AboveZero
    """Time inside kernels per forward, in microseconds."""
    flop: AtLeastZero | None = None
    dram_bytes: AtLeastZero | None = None
    tensor_utilization: Share | None = None
    dram_utilization: Share | None = None
