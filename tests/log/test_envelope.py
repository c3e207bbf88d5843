"""The envelope: every line is a CloudEvents 1.0 event, checked with the `cloudevents` package."""

import re
from datetime import UTC

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from conftest import make_latency, make_plan, measure_rounds, write_take
from msgspec import json
from nearfree.errors import WriteError
from nearfree.log.events import ENVELOPES, VERSIONS
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake

STANDARD = {"specversion", "type", "id", "source", "time", "datacontenttype"}


@pytest.fixture
def layout(layout: Layout) -> Layout:
    """Write a take that was interrupted once, failed once, and ended."""

    def fail(take: OpenTake) -> float:
        take.append(make_latency())
        raise WriteError("no space", remedy="Free some")

    with pytest.raises(WriteError):
        write_take(layout, work=fail)
    write_take(layout, work=measure_rounds)
    return layout


def test_every_line_is_a_cloud_event(layout: Layout) -> None:
    """Every line parses as a valid CloudEvents 1.0 event with the content that we read."""
    name = layout.takes()[0]
    ours = {event.event_id: event for event in read_take(layout, name).events}
    lines = [
        line
        for attempt in layout.attempts(name)
        for line in layout.segment(name, attempt).read_bytes().splitlines()
    ]
    assert len(lines) == 3 + 12
    seen = set()
    for line in lines:
        event = JSONFormat().read(CloudEvent, line)
        time = event.get_time()
        assert event.get_specversion() == "1.0"
        assert event.get_datacontenttype() == "application/json"
        assert time is not None
        assert time.utcoffset() == UTC.utcoffset(None)
        seen.add((event.get_source(), event.get_id()))
        extensions = set(event.get_attributes()) - STANDARD
        assert extensions == {"sequence", "prevhash", "hash"}
        assert all(re.fullmatch("[a-z0-9]{1,20}", extension) for extension in extensions)
        assert all(isinstance(event.get_extension(e), str) for e in extensions)
        mine = ours.pop(f"{event.get_source()}#{event.get_id()}", None)
        if mine is not None:
            assert event.get_data() == json.decode(json.encode(mine.data))
    assert len(seen) == len(lines), "source and id together are unique"
    places = [json.decode(line)["sequence"] for line in lines]
    assert places == sorted(places[:3]) + sorted(places[3:]), "the text sorts as the places do"
    assert ours == {}


def test_a_source_is_a_uri_reference(layout: Layout) -> None:
    """A source holds only characters that a relative URI reference may hold."""
    sources = {event.source for event in read_take(layout, layout.takes()[0]).events}
    assert len(sources) == 2
    assert all(
        re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+/[0-9]+-[0-9a-f]{8}\.[0-9]+", s) for s in sources
    )


def test_types_are_versioned_and_unique() -> None:
    """Each payload has a unique type `nearfree.<noun>.<verb>.v<number>`."""
    names = [payload.type_name for payload in VERSIONS]
    assert len(set(names)) == len(names) == len(ENVELOPES)
    assert all(re.fullmatch(r"nearfree\.[a-z]+\.[a-z]+\.v[1-9][0-9]*", name) for name in names)


def test_payloads_refuse_unknown_fields() -> None:
    """Every payload and envelope refuses fields that it does not know."""
    for struct in (*VERSIONS, *ENVELOPES):
        assert struct.__struct_config__.forbid_unknown_fields
        assert struct.__struct_config__.frozen


def test_a_plan_is_on_record(layout: Layout) -> None:
    """The record of each run holds the plan as it was requested."""
    started = read_take(layout, layout.takes()[0]).events[0].data
    assert started.plan == make_plan()
