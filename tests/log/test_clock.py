"""A clock that jumps: times are recorded, and no decision depends on them."""

from itertools import count

import pytest
from conftest import latencies, measure_rounds, write_take
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.errors import EvidenceError
from nearfree.log.curves import curves
from nearfree.log.events import LatencyMeasured
from nearfree.log.evidence import read_scope, read_take
from nearfree.log.names import Layout
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import OpenTake

from log.faults import damage


def halfway(take: OpenTake) -> float:
    """Measure all that is missing, and fail before the seal."""
    measure_rounds(take)
    raise EvidenceError("stopped", remedy="go on")


def sealed_under(layout: Layout, years: list[int]) -> list[tuple[int, int]]:
    """Seal a take of two attempts while each event is written in one of these years."""
    ticks = count()

    def now() -> str:
        return f"{years[next(ticks) % len(years)]:04}-01-02T03:04:05.678901Z"

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SegmentWriter.__init__.__kwdefaults__, "now", now)
        with pytest.raises(EvidenceError):
            write_take(layout, work=halfway)
        sealed: list[tuple[int, int]] = []

        def work(take: OpenTake) -> float:
            sealed.extend(latencies(take))
            return measure_rounds(take)

        seal = write_take(layout, work=work)
    events = read_take(layout, seal.name).events
    places = [(e.data.round, e.data.n) for e in events if isinstance(e.data, LatencyMeasured)]
    assert places == sealed
    return places


@settings(deadline=None, max_examples=30)
@given(years=st.lists(st.integers(1970, 2999), min_size=1, max_size=7))
def test_a_jumping_clock_changes_nothing(tmp_path_factory, years: list[int]) -> None:
    """With any clock, the same rounds are kept in the same order, and the log verifies."""
    steady, jumping = (Layout(tmp_path_factory.mktemp("clock")) for _ in range(2))
    assert sealed_under(jumping, years) == sealed_under(steady, [2026])
    assert damage(jumping.root) == []
    every = [curves(read_scope(layout, "cpu")) for layout in (steady, jumping)]
    assert [curve.ids for curve in every[0]] == [curve.ids for curve in every[1]]
