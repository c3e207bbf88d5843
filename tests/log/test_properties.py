"""Properties of the log for any content: what is written is what is read, in any order."""

import tempfile
from pathlib import Path
from typing import Any

from conftest import make_plan, make_setting, write_payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.core.protocols import MOST, Interleaved
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
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: "://" not in text and HOME not in text
)
DIGEST = st.text("0123456789abcdef", min_size=64, max_size=64)
NATURAL = st.integers(0, MOST)
POSITIVE = st.integers(1, MOST)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
AT_LEAST_ZERO = st.floats(0, allow_nan=False, allow_infinity=False)
ABOVE_ZERO = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
TOLERANCE = st.floats(0, 1, exclude_min=True, exclude_max=True)


def make_visit(samples: list[tuple[float, float, bool]], **fields: Any) -> LatencyMeasured:
    """Return a visit with these samples: wall time, process time and whether it was disturbed."""
    wall_us, process_us, dirty = zip(*samples, strict=True)
    return LatencyMeasured(wall_us=wall_us, process_us=process_us, dirty=dirty, **fields)


def make_imported(
    points: list[tuple[int, float, int]], *, varied: bool, **fields: Any
) -> LatencyImported:
    """Return an imported curve of these points: N, latency and context, if that is `varied`."""
    n, latency_us, contexts = zip(*points, strict=True)
    return LatencyImported(
        n=n, latency_us=latency_us, contexts=contexts if varied else None, **fields
    )


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
        wall_s=AT_LEAST_ZERO,
        timed_s=st.none() | AT_LEAST_ZERO,
    ),
    st.builds(
        make_visit,
        samples=st.lists(
            st.tuples(ABOVE_ZERO, AT_LEAST_ZERO, st.booleans()), min_size=1, max_size=5
        ),
        setting=SETTINGS,
        n=POSITIVE,
        baseline=POSITIVE,
        round=NATURAL,
        order=NATURAL,
        cache=st.sampled_from(["cold", "warm"]),
        protocol=st.builds(Interleaved, rounds=st.integers(3, 99), seed=st.integers(0, 2**32 - 1)),
        load_1m=st.none() | AT_LEAST_ZERO,
    ),
    st.builds(
        HardwareProbed,
        fingerprint=st.builds(
            Fingerprint,
            kind=st.sampled_from(["cpu", "cuda"]),
            model=TEXT,
            features=st.lists(TEXT, max_size=3).map(tuple),
            cores=POSITIVE,
            caches=st.dictionaries(TEXT, NATURAL, max_size=3),
        ),
        compute=st.just(()),
        bandwidth=st.lists(
            st.builds(
                BandwidthPeak,
                method=st.sampled_from(["stream", "gemm"]),
                gb_s=ABOVE_ZERO,
                bytes_read=NATURAL,
                samples=st.lists(ABOVE_ZERO, max_size=5).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
        threads=POSITIVE,
    ),
    st.builds(
        make_imported,
        points=st.lists(st.tuples(POSITIVE, ABOVE_ZERO, NATURAL), min_size=1, max_size=5),
        varied=st.booleans(),
        source=TEXT,
        member=TEXT,
        member_sha256=DIGEST,
        platform=TEXT,
        setting=SETTINGS,
        backend_version=TEXT,
        kernel=st.none() | TEXT,
        distribution=st.none() | TEXT,
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
        band=AT_LEAST_ZERO,
        epsilon=TOLERANCE,
        platforms=st.lists(TEXT, max_size=2).map(tuple),
        selection=TEXT,
        curves=POSITIVE,
        rows_sha256=DIGEST,
        files=st.dictionaries(TEXT, DIGEST, max_size=2),
        members=st.dictionaries(TEXT, DIGEST, max_size=2),
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
        n_max=ABOVE_ZERO,
        platform=TEXT,
        epsilon=st.none() | TOLERANCE,
        grid=st.lists(POSITIVE, max_size=3).map(tuple),
    ),
    st.builds(
        RulePublished,
        source=TEXT,
        table=TEXT,
        row=POSITIVE,
        package=TEXT,
        versions=TEXT,
        path=TEXT,
        condition=TEXT,
        value=POSITIVE,
    ),
    st.builds(ObservationRetracted, target=TEXT, reason=TEXT),
    st.builds(
        SegmentRecovered,
        segment=TEXT,
        kept_events=NATURAL,
        kept_bytes=NATURAL,
        ignored_bytes=NATURAL,
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
