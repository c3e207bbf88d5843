"""Properties of the log for any content: what is written is what is read, in any order."""

import tempfile
from pathlib import Path

from conftest import make_plan, make_setting, write_payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.core.protocols import Interleaved
from nearfree.log.events import (
    BandwidthPeak,
    BoundaryPublished,
    CalibratedConstant,
    ConstantsCalibrated,
    Event,
    Fingerprint,
    HardwareProbed,
    LatencyImported,
    LatencyMeasured,
    ObservationRetracted,
    Payload,
    RulePublished,
    RunFailed,
    RunFinished,
    SegmentRecovered,
)
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name

HOME = str(Path.home())
TEXT = st.text(st.characters(exclude_categories=["Cs"])).filter(
    lambda text: "://" not in text and HOME not in text
)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
MANY_FLOATS = st.lists(FLOATS, max_size=5).map(tuple)
SETTINGS = st.builds(
    make_setting,
    backend=TEXT,
    batch=st.integers(1, 2**40),
    context=st.none() | st.integers(1, 2**40),
)
PAYLOADS: st.SearchStrategy[Payload] = st.one_of(
    st.builds(RunFailed, error=TEXT, remedy=TEXT),
    st.builds(
        RunFinished,
        outcome=st.sampled_from(["complete", "partial"]),
        wall_s=FLOATS,
        timed_s=st.none() | FLOATS,
    ),
    st.builds(
        LatencyMeasured,
        setting=SETTINGS,
        n=INTS,
        baseline=INTS,
        round=INTS,
        order=INTS,
        wall_us=MANY_FLOATS,
        process_us=MANY_FLOATS,
        dirty=st.lists(st.booleans(), max_size=5).map(tuple),
        cache=st.sampled_from(["cold", "warm"]),
        protocol=st.builds(Interleaved, rounds=st.integers(3, 99), seed=st.integers(0, 2**32 - 1)),
        load_1m=st.none() | FLOATS,
    ),
    st.builds(
        HardwareProbed,
        fingerprint=st.builds(
            Fingerprint,
            kind=st.sampled_from(["cpu", "cuda"]),
            model=TEXT,
            features=st.lists(TEXT, max_size=3).map(tuple),
            cores=INTS,
            caches=st.dictionaries(TEXT, INTS, max_size=3),
        ),
        compute=st.just(()),
        bandwidth=st.lists(
            st.builds(
                BandwidthPeak,
                method=st.sampled_from(["stream", "gemm"]),
                gb_s=FLOATS,
                bytes_read=INTS,
                samples=MANY_FLOATS,
            ),
            max_size=2,
        ).map(tuple),
        threads=INTS,
    ),
    st.builds(
        LatencyImported,
        source=TEXT,
        member=TEXT,
        member_sha256=TEXT,
        platform=TEXT,
        setting=SETTINGS,
        backend_version=TEXT,
        kernel=st.none() | TEXT,
        distribution=st.none() | TEXT,
        n=st.lists(INTS, max_size=3).map(tuple),
        latency_us=MANY_FLOATS,
        contexts=st.none() | st.lists(INTS, max_size=3).map(tuple),
    ),
    st.builds(
        ConstantsCalibrated,
        family=TEXT,
        dtypes=st.lists(TEXT, max_size=2).map(tuple),
        constants=st.lists(
            st.builds(
                CalibratedConstant,
                hypothesis=TEXT,
                name=TEXT,
                unit=TEXT,
                meaning=TEXT,
                value=FLOATS,
            ),
            max_size=2,
        ).map(tuple),
        band=FLOATS,
        epsilon=FLOATS,
        platforms=st.lists(TEXT, max_size=2).map(tuple),
        selection=TEXT,
        curves=INTS,
        rows_sha256=TEXT,
        files=st.dictionaries(TEXT, TEXT, max_size=2),
        members=st.dictionaries(TEXT, TEXT, max_size=2),
        tried=st.lists(TEXT, max_size=2).map(tuple),
    ),
    st.builds(
        BoundaryPublished,
        source=TEXT,
        table=TEXT,
        row=TEXT,
        column=TEXT,
        quantity=st.sampled_from(["n_max", "idle_compute", "principle"]),
        setting=SETTINGS,
        n_max=FLOATS,
        platform=TEXT,
        epsilon=st.none() | FLOATS,
        grid=st.lists(INTS, max_size=3).map(tuple),
    ),
    st.builds(
        RulePublished,
        source=TEXT,
        table=TEXT,
        row=INTS,
        package=TEXT,
        versions=TEXT,
        path=TEXT,
        condition=TEXT,
        value=INTS,
    ),
    st.builds(ObservationRetracted, target=TEXT, reason=TEXT),
    st.builds(
        SegmentRecovered,
        segment=TEXT,
        kept_events=INTS,
        kept_bytes=INTS,
        ignored_bytes=INTS,
        head=TEXT,
        torn=st.booleans(),
    ),
)
NAME = TakeName("cpu", "dense", 1, "0123abcd")


@given(st.lists(PAYLOADS, max_size=8))
@settings(deadline=None)
def test_what_is_written_is_read(payloads: list[Payload]) -> None:
    """Any payloads come back equal, of the same types, in the same order."""
    with tempfile.TemporaryDirectory() as folder:
        with SegmentWriter(Layout(Path(folder)), NAME, 1) as writer:
            for payload in payloads:
                writer.append(payload, sync=False)
        segment = read_segment(writer.path, writer.name)
    assert [event.data for event in segment.events] == payloads
    assert [type(event.data) for event in segment.events] == [type(p) for p in payloads]
    assert (segment.size, segment.torn_bytes) == (writer.size, 0)


def evidence(
    takes: list[tuple[TakeName, list[Payload]]],
) -> list[tuple[TakeName, Seal, tuple[Event, ...]]]:
    """Write takes of one scope in the given order, and return all that the scope holds."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder))
        for name, payloads in takes:
            write_payloads(layout, name, PLAN, *payloads)
        return [(take.name, take.seal, take.events) for take in read_scope(layout, "cpu")]


PLAN = make_plan()
NAMES = [take_name("cpu", stream, take, PLAN) for stream in ("a", "b") for take in (2, 9, 10)]
RETRACTION = ObservationRetracted(target=f"{NAMES[1]}.1#2", reason="wrong clock")


@given(
    st.lists(st.sampled_from(NAMES), unique=True, min_size=2).flatmap(
        lambda names: st.tuples(st.permutations(names), st.permutations(names))
    ),
    st.lists(PAYLOADS, min_size=6, max_size=6),
)
@settings(deadline=None, max_examples=25)
def test_evidence_forgets_the_order_of_writing(
    orders: tuple[list[TakeName], list[TakeName]], payloads: list[Payload]
) -> None:
    """The evidence of a scope is the same, seals included, however its takes came to be."""
    content = {name: [payload] for name, payload in zip(NAMES, payloads, strict=True)}
    content[NAMES[0]] = [RETRACTION]
    one, other = (evidence([(name, content[name]) for name in order]) for order in orders)
    assert one == other
    assert [name for name, _, _ in one] == sorted(orders[0])
