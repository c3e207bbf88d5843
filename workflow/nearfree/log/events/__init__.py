"""The events of the log: one typed struct per event type and version.

A change of meaning makes a new version with its own struct. The old version stays beside it and
upcasts itself when the log is read, so that readers see the newest version alone.
"""

from msgspec import defstruct, structs

from nearfree.log.events.decoded import DecodeMeasured, DraftsTraced
from nearfree.log.events.measured import (
    BandwidthPeak,
    ComputePeak,
    DeviceState,
    EngineLoaded,
    EngineMatrix,
    EngineShape,
    Fingerprint,
    HardwareProbed,
    KernelProfiled,
    LatencyMeasured,
    LaunchFloor,
    SharesMeasured,
    WorkCounted,
)
from nearfree.log.events.payload import Event, Payload, versions_of
from nearfree.log.events.predicted import (
    BandsCalibrated,
    CalibratedConstant,
    ConstantsCalibrated,
    PredictionRecorded,
    RegimeBand,
)
from nearfree.log.events.published import (
    BinaryListed,
    BoundaryPublished,
    Branch,
    CompiledBlock,
    HeldKernel,
    KernelCompiled,
    KernelReferenced,
    LatencyImported,
    Quote,
    RuleExtracted,
    RulePublished,
    SourceFetched,
    SourceMember,
    TunedIndexed,
)
from nearfree.log.events.runs import (
    ObservationRetracted,
    RunFailed,
    RunFinished,
    RunStarted,
    Scheduler,
    SegmentRecovered,
)

__all__ = [
    "ENVELOPES", "PAYLOADS", "VERSIONS", "BandsCalibrated", "BandwidthPeak", "BinaryListed",
    "BoundaryPublished", "Branch",
    "CalibratedConstant", "CompiledBlock", "ComputePeak", "ConstantsCalibrated",
    "DecodeMeasured", "DeviceState", "DraftsTraced",
    "EngineLoaded", "EngineMatrix", "EngineShape", "Event", "Fingerprint",
    "HardwareProbed", "HeldKernel", "KernelCompiled", "KernelProfiled", "KernelReferenced",
    "LatencyImported", "LatencyMeasured", "LaunchFloor",
    "ObservationRetracted", "Payload",
    "PredictionRecorded", "Quote", "RegimeBand", "RuleExtracted", "RulePublished", "RunFailed",
    "RunFinished",
    "RunStarted", "Scheduler", "SegmentRecovered", "SharesMeasured", "SourceFetched",
    "SourceMember", "TunedIndexed", "WorkCounted", "upcast", "versions_of",
]  # fmt: skip

_KINDS = Payload.__subclasses__()
PAYLOADS = tuple(kind for kind in _KINDS if kind not in {newer.before for newer in _KINDS})
"""The newest version of each event type: writers write these, and readers see these alone."""
VERSIONS = tuple(version for kind in PAYLOADS for version in versions_of(kind))
"""Every version that a log may hold."""
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
    for payload in VERSIONS
)
_OLD = frozenset(VERSIONS) - frozenset(PAYLOADS)


def upcast(event: Event) -> Event:
    """Return an event with its data in the newest version of its type."""
    data = event.data
    while type(data) in _OLD:
        data = data.upcast()
    return event if data is event.data else structs.replace(event, data=data)
