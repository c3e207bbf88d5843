"""Events of what was measured here: hardware, latencies, executed work, kernel profiles."""

from typing import Literal

from msgspec import Struct

from nearfree.core.protocols import Timing
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.log.events.payload import Payload


class Fingerprint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes two machines the same platform: nothing that changes with load or updates."""

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
    """A machine's facts as it showed them itself."""

    type_name = "nearfree.hardware.probed.v1"
    fingerprint: Fingerprint
    compute: tuple[ComputePeak, ...]
    bandwidth: tuple[BandwidthPeak, ...]
    threads: int
    load_1m: float | None = None


class LaunchFloor(Payload, frozen=True, kw_only=True):
    """What launching costs where nothing is computed, in microseconds: T(N) is never below it."""

    type_name = "nearfree.launch.floor.v1"
    eager_us: float
    graph_us: float | None = None
    samples: tuple[float, ...]


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

    A sample is dirty if another process took over a hundredth of it (in older logs, any of it), or
    a GPU was throttled.
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


class EngineMatrix(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Equal matrices that a forward multiplies by: `count` of them, of all layers together.

    `part` is a tensor's name without its layer, `type` ggml's name of how it is stored, `rows` the
    outputs and `columns` the inputs of one. Of `routed` ones a token takes some.
    """

    part: str
    type: str
    rows: int
    columns: int
    count: int
    routed: bool = False


class EngineShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The shape of attention, and the experts that a token takes, as the weights' file says it."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    taken_experts: int = 1


class EngineLoaded(Payload, frozen=True, kw_only=True):
    """What a real engine ran: its libraries, what they say of the machine, and its weights.

    Weights lie outside of the log, as files of these bytes.
    """

    type_name = "nearfree.engine.loaded.v1"
    engine: str
    release: str
    package: str
    library_sha256: dict[str, str]
    """The files that the process had loaded, by name."""
    header_sha256: dict[str, str]
    """The headers that say what crosses a call."""
    system_info: str
    """CPU features and options, as the library tells them: they choose its rules."""
    model: str
    weights_sha256: str
    weights_bytes: int
    file_type: str
    repack: bool
    matrices: tuple[EngineMatrix, ...]
    shape: EngineShape


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
