"""Groups in the log are read as they were written, and damaged ones are refused by name."""

import base64
import lzma
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import write_take
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json, msgpack
from msgspec.structs import replace
from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.groups import Group
from nearfree.derive.reference.record import (
    STREAM,
    Recorded,
    group_of,
    newest_kernels,
    recorded_kernels,
    recorded_reference,
    referenced,
)
from nearfree.errors import EvidenceError
from nearfree.log.events import BandsCalibrated, Event, KernelReferenced
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake
from once import Lazily

from derive.reference.bands import BANDS
from derive.reference.made import (
    CHIPS,
    EPSILON,
    HEADS,
    LAYER,
    noisy,
    only_group,
    products,
)

OF_EACH: Lazily[Group] = Lazily({
    "gemm": lambda: only_group(
        *products(), *products(backend_version="2.0", depths=(4096, 9216)), bent=noisy(1)
    ),
    "moe_library": lambda: only_group(
        *({**LAYER, "d_ff": 512 * scale, "routing": routing}
          for scale in (1, 2, 3) for routing in ("balanced", "power_law:1.2")), bent=noisy(2),
    ),
    "attention_prefill": lambda: only_group(
        *({**HEADS, "kv_heads": n} for n in (1, 2, 4, 8)),
        bent=noisy(3),
    ),
})  # fmt: skip
"""Groups with several releases, several loads and grids, and places along N."""


def event_of(group: Group) -> KernelReferenced:
    """Return the event of a group, with a digest for each of its files."""
    members = {name: name.encode().hex().ljust(64, "0") for name in group.curves["member"]}
    return referenced(group, source="ours", epsilon=EPSILON, members=members)


EVENTS = Lazily({name: lambda name=name: event_of(OF_EACH[name]) for name in OF_EACH})


def put(layout: Layout, *payloads: KernelReferenced | BandsCalibrated, take: int = 1) -> None:
    """Seal a take of kernels."""

    def work(unpacked: OpenTake) -> None:
        for payload in payloads:
            unpacked.append(payload, sync=False)

    plan = CalibratePlan(source="ours", files={}, platforms=("h100",), epsilon=EPSILON, form=take)
    write_take(layout, scope=PUBLIC, stream=STREAM, take=take, plan=plan, work=work)


def sealed(layout: Layout, payload: KernelReferenced) -> Event:
    """Return the event of a payload as it is read from a sealed take."""
    put(layout, payload)
    (take,) = read_scope(layout, PUBLIC, stream=STREAM)
    (event,) = take.events_of(KernelReferenced)
    return event


@pytest.mark.parametrize("name", OF_EACH)
def test_a_group_is_read_as_it_was_written(layout: Layout, name: str) -> None:
    """A group is unchanged by JSON, a seal and the disk."""
    group = OF_EACH[name]
    event = sealed(layout, EVENTS[name])
    assert json.decode(json.encode(event.data), type=KernelReferenced) == EVENTS[name]
    read = group_of(event)
    assert (read.key, read.values, read.ratio, read.residual) == (
        group.key, group.values, group.ratio, group.residual,
    )  # fmt: skip
    assert read.curves.equals(group.curves)
    assert read.curves.schema == group.curves.schema
    assert np.array_equal(read.counts, group.counts)
    assert np.array_equal(read.n[group.counts], group.n[group.counts])
    assert read.first_us.tolist() == group.first_us.tolist()
    assert event_of(read) == event.data


def test_an_event_says_what_it_holds() -> None:
    """An event's curves, points, files and digests are readable fields."""
    group = OF_EACH["gemm"]
    event = EVENTS["gemm"]
    assert (event.curves, event.points) == (8, int(group.counts.sum()))
    assert event.members == {name: name.encode().hex().ljust(64, "0")
                            for name in ("h100/1.0", "h100/2.0")}  # fmt: skip
    assert (event.platform, event.family, event.kernel) == ("h100", "gemm", "cublas")


def unpacked(event: KernelReferenced) -> list[Any]:
    """Return the packed fields of an event, unpacked."""
    fields: list[Any] = msgpack.decode(lzma.decompress(base64.b85decode(event.packed)))
    return fields


def packed(fields: object) -> str:
    """Return fields packed as in an event."""
    return base64.b85encode(lzma.compress(msgpack.encode(fields))).decode()


RELEASES, _, _, COLUMNS, GRIDS, FIRST, RATIO, RESIDUAL = range(8)


def changed(change: Callable[[list[Any]], object]) -> str:
    """Return the packed fields of the products' event after a change."""
    fields = unpacked(EVENTS["gemm"])
    change(fields)
    return packed(fields)


def columns(**changes: object) -> Callable[[list[Any]], None]:
    """Return a change of columns: each gets new values, or those that a function makes."""

    def change(fields: list[Any]) -> None:
        for name, of in changes.items():
            old = fields[COLUMNS][name]
            fields[COLUMNS][name] = of(old) if callable(of) else of

    return change


def put_at(place: int, value: Any) -> Callable[[list[Any]], None]:
    """Return a change that sets one field to a value, or to what a function makes of it."""

    def change(fields: list[Any]) -> None:
        fields[place] = value(fields[place]) if callable(value) else value

    return change


def hungry() -> str:
    """Return the curves as a compressed stream whose header asks for 4 GiB of memory."""
    fields = msgpack.encode(unpacked(EVENTS["gemm"]))
    stream = bytearray(lzma.compress(fields, format=lzma.FORMAT_ALONE))
    stream[1:5] = b"\xff" * 4
    return base64.b85encode(bytes(stream)).decode()


HOSTILE: Lazily[str] = Lazily(
    {
        "not base85": lambda: "ö" * 40,
        "no stream": lambda: base64.b85encode(b"not an LZMA stream").decode(),
        "half a stream": lambda: base64.b85encode(
            lzma.compress(msgpack.encode(unpacked(EVENTS["gemm"])))[:-60]
        ).decode(),
        "a bomb": lambda: base64.b85encode(lzma.compress(bytes(64 * 2**20))).decode(),
        "a hungry stream": hungry,
        "no message": lambda: base64.b85encode(lzma.compress(b"\xc1")).decode(),
        "another schema": lambda: packed({"curves": []}),
        "a field more": lambda: changed(lambda fields: fields.append(1)),
        "a field less": lambda: changed(lambda fields: fields.pop()),
        "no columns": lambda: changed(put_at(COLUMNS, {})),
        "no shapes": lambda: changed(lambda fields: fields[COLUMNS].pop("d_model")),
        "no places": lambda: changed(lambda fields: fields[COLUMNS].pop("grid")),
        "a curve less in one column": lambda: changed(columns(d_model=lambda old: old[:-1])),
        "a curve less in all": lambda: changed(
            lambda fields: [field.pop() for field in fields[COLUMNS].values()]
        ),
        "a curve less in places": lambda: changed(columns(backend_version=lambda old: old[:-1])),
        "null places": lambda: changed(columns(grid=lambda old: [None] * len(old))),
        "a null release": lambda: changed(columns(backend_version=lambda old: [None, *old[1:]])),
        "a null size": lambda: changed(columns(d_model=lambda old: [None, *old[1:]])),
        "no size": lambda: changed(columns(d_model=lambda old: [0, *old[1:]])),
        "a place beyond the grids": lambda: changed(columns(grid=lambda old: [99, *old[1:]])),
        "a place before the grids": lambda: changed(columns(grid=lambda old: [-1, *old[1:]])),
        "a place beyond the releases": lambda: changed(
            columns(backend_version=lambda old: [99, *old[1:]])
        ),
        "a place before the files": lambda: changed(columns(member=lambda old: [-1, *old[1:]])),
        "a huge size": lambda: changed(columns(d_model=lambda old: [2**63, *old[1:]])),
        "no grids": lambda: changed(put_at(GRIDS, [])),
        "an empty grid": lambda: changed(put_at(GRIDS, lambda old: [[], *old[1:]])),
        "empty grids": lambda: changed(put_at(GRIDS, lambda old: [[] for _ in old])),
        "a grid that falls": lambda: changed(
            put_at(GRIDS, lambda old: [grid[::-1] for grid in old])
        ),
        "a grid from zero": lambda: changed(
            put_at(GRIDS, lambda old: [[0, *grid[1:]] for grid in old])
        ),
        "a grid of words": lambda: changed(put_at(GRIDS, [["one"]])),
        "half a time": lambda: changed(put_at(FIRST, lambda old: old[:-1])),
        "a time less": lambda: changed(put_at(FIRST, lambda old: old[:-4])),
        "a ratio less": lambda: changed(put_at(RATIO, lambda old: old[:-1])),
        "a residual more": lambda: changed(put_at(RESIDUAL, lambda old: old + b"\0")),
        "no releases": lambda: changed(put_at(RELEASES, [])),
    }
)


def test_what_is_packed_again_is_the_same_group() -> None:
    """Unpacking fields and packing them again gives the same group."""
    again = replace(EVENTS["gemm"], packed=changed(lambda _fields: None))
    assert event_of(group_of(Named(again))) == EVENTS["gemm"]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_unpacked_is_refused(layout: Layout, name: str) -> None:
    """Any packed text is either a group or refused by name."""
    event = sealed(layout, replace(EVENTS["gemm"], packed=HOSTILE[name]))
    with pytest.raises(EvidenceError, match=f"the curves of {event.event_id}") as refused:
        group_of(event)
    assert "nearfree" in str(refused.value.remedy)


@pytest.mark.parametrize(
    "changes",
    [
        {"curves": 7},
        {"points": 5},
        {"family": "gemm_of_old"},
        {"constants": {}},
        {"constants": {"tile_16": {}, "tile_128": {}}},
    ],
    ids=str,
)
def test_what_an_event_says_beside_is_checked(layout: Layout, changes: dict[str, Any]) -> None:
    """Wrong counts and constants of another form are refused."""
    event = sealed(layout, replace(EVENTS["gemm"], **changes))
    with pytest.raises(EvidenceError, match=event.event_id):
        group_of(event)


def test_a_form_may_have_got_a_constant_since(layout: Layout) -> None:
    """A constant that an event lacks is added if it has a neutral value, else required."""
    event = EVENTS["gemm"]
    older = {
        hypothesis: {name: value for name, value in of.items() if name != "depth_us"}
        for hypothesis, of in event.constants.items()
    }
    read = group_of(sealed(layout, replace(event, constants=older)))
    assert read.values == {name: {**of, "depth_us": 0.0} for name, of in older.items()}
    for of in older.values():
        del of["sharpness"]
    with pytest.raises(EvidenceError, match="another form"):
        group_of(Named(replace(event, constants=older)))  # type: ignore[arg-type]


def test_empty_groups_are_none(layout: Layout) -> None:
    """An event without curves or without points is refused."""
    nobody = {name: [] for name in unpacked(EVENTS["gemm"])[COLUMNS]}
    fields = [[], [], [], nobody, [], b"", b"", b""]
    event = replace(EVENTS["gemm"], packed=packed(fields), curves=0, points=0)
    with pytest.raises(EvidenceError, match="cannot be unpacked"):
        group_of(sealed(layout, event))
    flat = unpacked(EVENTS["gemm"])
    flat[GRIDS], flat[RATIO], flat[RESIDUAL] = [[] for _ in flat[GRIDS]], b"", b""
    changed = replace(EVENTS["gemm"], packed=packed(flat), points=0)
    put(layout, changed, take=2)
    newest = recorded_reference(layout, CHIPS)
    assert newest is not None
    with pytest.raises(EvidenceError, match="cannot be unpacked"):
        newest.reference.groups[OF_EACH["gemm"].key]


@given(st.binary(max_size=200))
def test_no_bytes_are_another_error(data: bytes) -> None:
    """Any bytes in place of the curves are refused as damaged evidence."""
    packed_text = base64.b85encode(lzma.compress(data)).decode()
    event = replace(EVENTS["gemm"], packed=packed_text)
    with pytest.raises(EvidenceError, match="the curves of here"):
        group_of(Named(event))  # type: ignore[arg-type]


class Named:
    """An event that is not on disk."""

    event_id = "here"

    def __init__(self, data: KernelReferenced) -> None:
        self.data = data


def test_groups_are_unpacked_when_they_are_asked_for(layout: Layout) -> None:
    """A damaged group is refused only when it is used; a sound one is unpacked once."""
    broken = replace(EVENTS["moe_library"], packed="0")
    put(layout, EVENTS["gemm"], broken)
    groups = Recorded(newest_kernels(layout)[0])
    assert list(groups) == [OF_EACH["gemm"].key, OF_EACH["moe_library"].key]
    assert len(groups) == 2
    assert groups[OF_EACH["gemm"].key] is groups[OF_EACH["gemm"].key]
    assert groups.constants(OF_EACH["moe_library"].key) == OF_EACH["moe_library"].constants
    with pytest.raises(EvidenceError):
        groups[OF_EACH["moe_library"].key]
    with pytest.raises(KeyError):
        groups[OF_EACH["attention_prefill"].key]


@pytest.mark.parametrize("family", OF_EACH)
def test_a_group_on_record_says_the_same(family: str) -> None:
    """A recorded group equals the group of its own curves and no other."""
    for name, event in EVENTS.items():
        held = group_of(Named(event))  # type: ignore[arg-type]
        assert OF_EACH[family].says_the_same(held) == (name == family)


@pytest.mark.parametrize(
    ("change", "same"),
    [({}, True), ({"sharpness": 1.0005}, True), ({"sharpness": 1.01}, False)],
    ids=str,
)
def test_a_fit_on_another_processor_is_the_same(change: dict[str, float], same: bool) -> None:  # noqa: FBT001
    """Constants may differ in their last digits, and neutral ones by next to nothing."""
    group = OF_EACH["gemm"]
    values = {
        name: {item: value * change.get(item, 1.0) for item, value in of.items()}
        for name, of in group.values.items()
    }
    assert group.says_the_same(replace(group, values=values)) == same
    tiny = {name: {**of, "fixed_us": 0.0} for name, of in values.items()}
    almost = {name: {**of, "fixed_us": 1e-9} for name, of in values.items()}
    zero = replace(group, values=tiny)
    assert zero.says_the_same(replace(group, values=almost))
    fewer = {name: {"sharpness": of["sharpness"]} for name, of in values.items()}
    assert not group.says_the_same(replace(group, values=fewer))


def test_another_form_s_residuals_are_not_the_same() -> None:
    """Equal constants of another form make another group."""
    group = OF_EACH["gemm"]
    moved = replace(group.residual, low=group.residual.low + 0.5)
    assert not group.says_the_same(replace(group, residual=moved))


def test_the_newest_of_each_kernel_counts(layout: Layout) -> None:
    """The newest event of each kernel is used, over all takes."""
    assert recorded_reference(layout, CHIPS) is None
    assert recorded_kernels(layout) == []
    put(layout, EVENTS["gemm"], BANDS)
    put(layout, EVENTS["moe_library"], take=2)
    known = recorded_reference(layout, CHIPS)
    assert known is not None
    assert [*known.reference.groups] == [OF_EACH[family].key for family in ("gemm", "moe_library")]
    assert known.bands == {
        (band.regime, band.module, band.formats, band.routing): band for band in BANDS.bands
    }
    older = known.events[OF_EACH["gemm"].key].event_id
    wider = replace(BANDS.bands[0], band=9.0)
    put(layout, EVENTS["gemm"], replace(BANDS, bands=(wider,)), take=3)
    again = recorded_reference(layout, CHIPS)
    assert again is not None
    assert again.events[OF_EACH["gemm"].key].event_id != older
    assert [*again.bands.values()] == [wider, *BANDS.bands[1:]]
    assert recorded_kernels(layout) == [
        *(event.event_id for event in again.events.values()), *again.bands_events,
    ]  # fmt: skip
