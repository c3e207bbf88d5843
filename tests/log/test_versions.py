"""Versions of an event: each is read as the newest, and stored bytes stay unchanged."""

import pytest
from conftest import make_latency, make_plan, write_payloads
from msgspec import json, structs
from nearfree.derive.reference.record import group_of
from nearfree.errors import LogError
from nearfree.log.events import (
    PAYLOADS,
    VERSIONS,
    BandsCalibrated,
    ConstantsCalibrated,
    DecodeMeasured,
    KernelReferenced,
    LatencyMeasured,
    Payload,
    RunStarted,
)
from nearfree.log.events.payload import versions_of
from nearfree.log.evidence import Take, read_scope, read_take, stored_line
from nearfree.log.names import Layout
from nearfree.log.seal import iter_sealed, read_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.show import show
from nearfree.log.take import take_name
from nearfree.log.verify import verify

from log.faults import HERE
from log.make_golden import content

GOLDEN = HERE / "golden_versions"
LAYOUT = Layout(GOLDEN / "log")
OLD = [kind for kind in VERSIONS if kind not in PAYLOADS]


@pytest.fixture
def takes() -> list[Take]:
    """Return the golden takes: constants of version 1, then version 2; all others likewise."""
    streams = "constants", "kernels", "decodes", "packed"
    return [take for stream in streams for take in read_scope(LAYOUT, "public", stream=stream)]


@pytest.mark.parametrize("kind", PAYLOADS)
def test_versions_count_up_from_one(kind: type[Payload]) -> None:
    """The versions of a type differ only in their number, which counts up from 1."""
    names = [version.type_name for version in versions_of(kind)]
    stem = kind.type_name.rpartition(".v")[0]
    assert names == [f"{stem}.v{number}" for number in range(1, len(names) + 1)]


@pytest.mark.parametrize("kind", VERSIONS)
def test_a_version_upcasts_to_the_next(kind: type[Payload]) -> None:
    """Each version except the newest has exactly one upcaster."""
    assert ("upcast" in vars(kind)) == (kind in OLD)


def test_the_golden_versions_are_sound() -> None:
    """Each version's take verifies as it was written; nothing was rewritten."""
    summary = verify(LAYOUT.root)
    assert (summary.takes, summary.events, summary.findings) == (8, 24, ())
    assert content(LAYOUT) == json.decode((GOLDEN / "expected.json").read_bytes())


def test_the_golden_versions_hold_every_old_version(takes: list[Take]) -> None:
    """The golden log holds each older version beside its successor."""
    type_names = {event.type_name for take in takes for event in take.events}
    assert {kind.type_name for kind in OLD} | {ConstantsCalibrated.type_name} <= type_names


def test_readers_see_the_newest_version_alone(takes: list[Take]) -> None:
    """`Take.of` the newest struct gives events of every version, upcast."""
    (first,), (second,) = (take.events_of(ConstantsCalibrated) for take in takes[:2])
    assert first.type_name == "nearfree.constants.calibrated.v1"
    assert second.type_name == "nearfree.constants.calibrated.v2"
    assert first.data.dtypes == ("bfloat16", "float16")
    assert second.data == structs.replace(first.data, dtypes=("bfloat16",))
    (old,), (new,) = (take.events_of(BandsCalibrated) for take in takes[2:4])
    assert old.type_name == "nearfree.bands.calibrated.v1"
    assert old.data == new.data
    assert old.data.bands[0].hit is None
    (alone,), (one,) = (take.events_of(DecodeMeasured) for take in takes[4:6])
    assert alone.type_name == "nearfree.decode.measured.v1"
    assert one.type_name == "nearfree.decode.measured.v2"
    assert alone.data == one.data
    assert alone.data.batch == 1
    (plain,), (steps,) = (take.events_of(KernelReferenced) for take in takes[6:])
    assert plain.type_name == "nearfree.kernel.referenced.v1"
    assert steps.type_name == "nearfree.kernel.referenced.v2"
    assert (plain.data.stepped, steps.data.stepped) == (False, True)
    assert steps.data == structs.replace(plain.data, packed=steps.data.packed, stepped=True)
    ours, theirs = (group_of(take) for take in (plain, steps))
    assert (ours.ratio, ours.residual) == (theirs.ratio, theirs.residual)
    assert ours.first_us.tolist() == theirs.first_us.tolist()
    assert ours.curves.equals(theirs.curves)
    assert ours.n.tolist() == theirs.n.tolist()


def test_types_are_chosen_whatever_their_version(takes: list[Take]) -> None:
    """Reading chosen types includes or excludes all of their versions."""
    for take in takes[:2]:
        for kind, count in ((ConstantsCalibrated, 1), (LatencyMeasured, 0)):
            (start, *rest) = iter_sealed(LAYOUT, read_seal(LAYOUT, take.name), (RunStarted, kind))
            assert isinstance(start.data, RunStarted)
            assert len(rest) == count


def test_what_is_shown_is_what_lies_on_disk(takes: list[Take]) -> None:
    """An event's type and content are shown in the version in which it was written."""
    event = takes[0].events[1]
    (stored,) = (json.decode(text) for text in show(LAYOUT, event.event_id))
    assert stored == json.decode(stored_line(LAYOUT, event))
    assert stored["type"] == event.type_name == "nearfree.constants.calibrated.v1"
    assert "dtypes" not in stored["data"]
    assert "       1  nearfree.constants.calibrated.v1" in show(LAYOUT, str(takes[0].name))


@pytest.mark.parametrize("kind", OLD)
def test_only_the_newest_version_is_written(layout: Layout, kind: type[Payload]) -> None:
    """A writer refuses an event of an old version, and its segment stays as it was."""
    events = (event for take in read_scope(LAYOUT, "public") for event in take.events)
    stored = next(event for event in events if event.type_name == kind.type_name)
    data = json.decode(stored_line(LAYOUT, stored))["data"]
    old = json.decode(json.encode(data), type=kind)
    with SegmentWriter(layout, take_name("public", "constants", 1, make_plan()), 1) as writer:
        with pytest.raises(LogError, match="would not read back as it is"):
            writer.append(old)
        assert writer.size == writer.path.stat().st_size == 0


def test_a_type_of_one_version_is_read_as_before(layout: Layout) -> None:
    """Where no version is old, an event's stored type is that of its data."""
    plan = make_plan()
    name = take_name("cpu", "dense", 1, plan)
    write_payloads(layout, name, plan, make_latency())
    assert all(e.type_name == e.data.type_name for e in read_take(layout, name).events)
