"""Events of measurements on this machine: hardware, latencies, executed work, kernel profiles."""

from typing import Literal

from msgspec import Struct

from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.log.events.payload import Payload


class Fingerprint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identity of a platform's machine: facts that do not change with load or updates."""

    kind: Literal["cpu", "cuda", "simulated"]
    model: str
    features: tuple[str, ...]
    cores: int
    caches: dict[str, int]
    """Bytes of each cache level, by name."""


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
    """A machine's facts as probed on it."""

    type_name = "nearfree.hardware.probed.v1"
    fingerprint: Fingerprint
    compute: tuple[ComputePeak, ...]
    bandwidth: tuple[BandwidthPeak, ...]
    threads: int
    load_1m: float | None = None


class LaunchFloor(Payload, frozen=True, kw_only=True):
    """The launch latency of an empty forward, in microseconds: T(N) is never below it."""

    type_name = "nearfree.launch.floor.v1"
    eager_us: float
    graph_us: float | None = None
    samples: tuple[float, ...]


class DeviceState(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A GPU's state right after a visit: clocks, power, temperature, throttling."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    throttle: tuple[str, ...] = ()
    """Names of the reasons why its clocks were throttled."""


class LatencyMeasured(Payload, frozen=True, kw_only=True):
    """The raw samples of one visit: one setting, one N, one round, in microseconds per forward.

    A sample is dirty if other processes used more than 1 % of it (in older logs, any of it), or if
    the GPU was throttled.
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
    """Number of visits in a whole round; None in older logs, whose plan holds it."""
    paired: bool = False
    """Whether the round is a palindrome around its baseline, not a sweep over all points."""
    key_length: int | None = None
    """Number of keys that attention reads: L cached and N new ones."""
    timer: Literal["cpu", "cuda_events", "simulated"] = "cpu"
    launch: Literal["eager", "graph"] = "eager"
    forwards_a_sample: int = 1
    state: DeviceState | None = None


class EngineMatrix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Matrices of one shape and type that a forward multiplies: `count` of them over all layers.

    `part` is the tensor's name without its layer, `type` ggml's name of its storage format, `rows`
    the outputs and `columns` the inputs of one matrix. A token uses only some of `routed` ones.
    """

    part: str
    type: str
    rows: int
    columns: int
    count: int
    routed: bool = False


class EngineShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The shape of attention and the experts per token, as given in the weights' file."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    taken_experts: int = 1


class EngineLoaded(Payload, frozen=True, kw_only=True):
    """A real engine as it was loaded: its libraries, its system report and its weights.

    The weights themselves are files outside the log, identified by hash.
    """

    type_name = "nearfree.engine.loaded.v1"
    engine: str
    release: str
    package: str
    library_sha256: dict[str, str]
    """SHA-256 of the library files that the process had loaded, by name."""
    header_sha256: dict[str, str]
    """SHA-256 of the headers that declare the called functions, by name."""
    system_info: str
    """CPU features and options as the library reports them: they select its rules."""
    model: str
    weights_sha256: str
    weights_bytes: int
    file_type: str
    repack: bool
    matrices: tuple[EngineMatrix, ...]
    shape: EngineShape


class WorkCounted(Payload, frozen=True, kw_only=True):
    """The work of one forward as the adapter counts it, and the kernels that ran."""

    type_name = "nearfree.work.counted.v1"
    setting: Setting
    n: int
    work: ExecutedWork
    kernels: tuple[str, ...]


class SharesMeasured(Payload, frozen=True, kw_only=True):
    """One forward of a model, timed module by module in a separate pass, in microseconds.

    `part_us` is each module's time over all layers; the time between modules is a part of its own.
    Timing the parts has overhead, so their sum is not T(N).
    """

    type_name = "nearfree.shares.measured.v1"
    setting: Setting
    n: int
    round: int
    part_us: dict[str, float]
    dirty: bool
    timer: Literal["cpu", "cuda_events"]


class KernelProfiled(Payload, frozen=True, kw_only=True):
    """A hardware profiler's counters for the forwards of one point, summed over their kernels.

    Utilisations are means weighted by kernel time (paper, app. C.1), as fractions of the peak.
    """

    type_name = "nearfree.kernel.profiled.v1"
    setting: Setting
    n: int
    profiler: str
    forwards: int
    kernels: tuple[str, ...]
    kernel_us: float
    """Time inside kernels per forward, in microseconds."""
    flop: float | None = None
    dram_bytes: float | None = None
    tensor_utilization: float | None = None
    dram_utilization: float | None = None
