"""Bounds of events: numbers and texts that cannot be are refused, when written and when read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import make_latency, make_plan, make_setting, write_payloads
from msgspec import Struct, inspect, structs
from nearfree.core.protocols import MOST
from nearfree.errors import LogError
from nearfree.log.document import render, replace
from nearfree.log.events import VERSIONS, LatencyImported, Payload, PredictionRecorded
from nearfree.log.evidence import read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.seal import read_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name

from log.faults import damage, edit_line

PLAN = make_plan()
NAME = take_name("cpu", "dense", 1, PLAN)
SIGNED = {
    "CalibratedConstant.value", "DecodeMeasured.margin", "DecodeMeasuredV1.margin",
    "DeviceState.temperature_c", "KernelReferenced.constants", "KernelReferenced.ratio",
    "KernelReferenced.residual", "KernelReferencedV1.constants", "KernelReferencedV1.ratio",
    "KernelReferencedV1.residual", "PredictionRecorded.margin",
}  # fmt: skip
"""Numbers that may be negative."""
FREE = {
    "EngineLoaded.system_info", "ForetellPlan.models", "MeasurePlan.models", "Quote.text",
    "RandomWeights.config", "RegimeBand.routing", "RegimeBandV1.routing", "RulePublished.versions",
    "RunFailed.remedy",
    "Scheduler.devices", "Scheduler.gpus", "Scheduler.job_id", "Scheduler.node",
    "Scheduler.partition", "Scheduler.restart", "SegmentRecovered.head",
}  # fmt: skip
"""Texts that may be empty: others wrote them, or they say nothing where there is nothing."""


def unbounded(kind: type[Struct], seen: set[type]) -> Iterator[str]:
    """Yield the fields below a struct that hold any number, or a text that may be empty."""
    if kind not in seen:
        seen.add(kind)
        for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
            yield from _unbounded_parts(field.type, f"{kind.__name__}.{field.name}", seen)


def _unbounded_parts(part: Any, field: str, seen: set[type]) -> Iterator[str]:
    if isinstance(part, inspect.StructType):
        yield from unbounded(part.cls, seen)
    elif isinstance(part, inspect.IntType | inspect.FloatType):
        if part.ge is None and part.gt is None:
            yield field
    elif isinstance(part, inspect.StrType):
        if not part.min_length and not part.pattern:
            yield field
    elif isinstance(part, inspect.UnionType):
        for one in part.types:
            yield from _unbounded_parts(one, field, seen)
    elif isinstance(part, inspect.TupleType):
        for one in part.item_types:
            yield from _unbounded_parts(one, field, seen)
    elif isinstance(part, inspect.VarTupleType):
        yield from _unbounded_parts(part.item_type, field, seen)
    elif isinstance(part, inspect.DictType):
        yield from _unbounded_parts(part.key_type, field, seen)
        yield from _unbounded_parts(part.value_type, field, seen)


def test_every_field_of_an_event_is_bounded() -> None:
    """A number has a least value and a text a character, except the fields that are listed here."""
    seen: set[type] = set()
    fields = {field for kind in VERSIONS for field in unbounded(kind, seen)}
    assert fields == SIGNED | FREE


def imported(**changes: Any) -> LatencyImported:
    """Return an imported curve of three points with some fields changed."""
    fields: dict[str, Any] = {
        "source": "a release",
        "member": "gemm.csv",
        "member_sha256": "0" * 64,
        "platform": "h100",
        "setting": make_setting(),
        "backend_version": "1.0",
        "n": (1, 2, 4),
        "latency_us": (5.0, 6.0, 8.0),
    }
    return LatencyImported(**(fields | changes))


def predicted(**changes: Any) -> PredictionRecorded:
    """Return a recorded prediction with some fields changed."""
    fields: dict[str, Any] = {
        "setting": make_setting(),
        "baseline": 1,
        "predictor": "modules_sum",
        "epsilon": 0.2,
        "n_max": 8.0,
    }
    return PredictionRecorded(**(fields | changes))


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (make_latency(wall_us=(-5.0, 12.0)), "wall_us"),
        (make_latency(wall_us=(0.0, 12.0)), "wall_us"),
        (make_latency(process_us=(-1.0, 12.0)), "process_us"),
        (make_latency(n=0), "n"),
        (make_latency(-1), "round"),
        (make_latency(MOST + 1), "round"),
        (make_latency(load_1m=-0.5), "load_1m"),
        (make_latency(setting=make_setting(backend="")), "backend"),
        (imported(source=""), "source"),
        (imported(member_sha256="0" * 63), "member_sha256"),
        (imported(latency_us=(5.0, -6.0, 8.0)), "latency_us"),
        (predicted(epsilon=1.0), "epsilon"),
        (predicted(n_max=-1.0), "n_max"),
    ],
)
def test_a_value_out_of_bounds_is_not_written(layout: Layout, event: Payload, field: str) -> None:
    """A writer refuses an event that a reader would refuse, and names the field."""
    with SegmentWriter(layout, NAME, 1) as writer:
        with pytest.raises(LogError, match=rf"not read back as it is: Expected .*\.{field}"):
            writer.append(event)
        assert writer.size == 0


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (imported, {"latency_us": (5.0, 6.0)}),
        (imported, {"n": (), "latency_us": ()}),
        (imported, {"n": (4, 4, 4), "contexts": (128, 256)}),
        (predicted, {"n": (1, 2), "latency_us": (5.0,)}),
        (make_latency, {"wall_us": (), "process_us": (), "dirty": ()}),
        (make_latency, {"process_us": (12.0,)}),
    ],
)
def test_lists_of_one_event_have_one_length(
    event: Callable[..., Payload], fields: dict[str, Any]
) -> None:
    """A curve has a latency for each point, and a visit two times and a flag for each sample."""
    with pytest.raises(ValueError, match=r"a latency for each|latencies|for each sample"):
        event(**fields)


def forge(layout: Layout, old: bytes, new: bytes) -> Path:
    """Seal a take of which one event was changed, with every hash right; return its segment."""
    seal = write_payloads(layout, NAME, PLAN, make_latency())
    path = layout.segment(NAME, 1)
    start, event, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(start + event)
    edit_line(path, 2, lambda body: body.replace(old, new))
    raw = path.read_bytes()
    assert new in raw
    part = structs.replace(
        seal.segments[0],
        events=2,
        bytes=len(raw),
        sha256=sha256(raw),
        head=sha256(raw.splitlines()[1]),
    )
    replace(layout.seal(NAME), render(structs.replace(seal, segments=(part,))))
    layout.receipt(NAME).unlink()
    assert read_seal(layout, NAME).segments == (part,)
    return path


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"wall_us":[13.5,', b'"wall_us":[-5.0,', "Expected `float` > 0.0"),
        (b'"wall_us":[13.5,', b'"wall_us":[', "this one has 1, 2 and 2"),
        (b'"dirty":[false,false]', b'"dirty":[]', "this one has 2, 2 and 0"),
        (b'"backend":"torch_cpu"', b'"backend":""', "Expected `str` of length >= 1"),
    ],
    ids=["negative", "one time less", "no flags", "empty"],
)
def test_a_resealed_take_is_still_bounded(
    layout: Layout, old: bytes, new: bytes, says: str
) -> None:
    """`verify` finds a value that its event forbids in a take whose hashes are all right."""
    path = forge(layout, old, new)
    (finding,) = damage(layout.root)
    assert finding.path == layout.seal(NAME).relative_to(layout.root).as_posix()
    assert f"{path} line 2 holds an event that this version refuses" in finding.message
    assert says in finding.message
    assert finding.message.endswith("retract the take")


def test_a_take_with_a_forbidden_value_can_be_retracted(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error's remedy works: without the retracted take its scope is read again."""
    monkeypatch.chdir(tmp_path)
    forge(layout, b'"wall_us":[13.5,', b'"wall_us":[-5.0,')
    with pytest.raises(LogError, match="refuses"):
        read_scope(layout, "cpu")
    retract(layout, str(NAME), "a forged time")
    assert [take.name.stream for take in read_scope(layout, "cpu")] == ["retracted"]
