"""The adaptive protocol: what it tests, when it stops, and that it goes on where it was."""

import pytest
from conftest import make_latency, make_plan, make_setting
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.core.boundary import Ratio, interval_of
from nearfree.core.protocols import Adaptive
from nearfree.errors import HardwareError
from nearfree.log.names import Layout
from nearfree.measure.protocols import Search, open_positions

from measure.machines import TICK, FakeKernel, FakeTimer, measured, take
from measure.simulation import Machine, Noise, staircase

GRID = (1, 2, 4, 8, 16, 17, 32)
PROTOCOL = Adaptive(rounds=4, looks=(4, 8), warmup=1)
PLAN = replace(make_plan(positions=GRID), protocol=PROTOCOL)


def curve(**values: tuple[float, float, float]) -> list[Ratio]:
    """Return ratios from n1=(value, low, high) and so on."""
    return [Ratio(int(name[1:]), *value) for name, value in values.items()]


SURE = (1.0, 1.0, 1.0)


def test_a_known_boundary_needs_no_pairs() -> None:
    """Where every N surely passes or fails, nothing is left to test."""
    known = curve(n1=SURE, n8=(1.1, 1.05, 1.15), n16=(1.5, 1.4, 1.6))
    assert open_positions(known, 1, PROTOCOL) == []


def test_what_lies_beyond_the_boundary_is_tested() -> None:
    """Every larger N that may still pass is tested, because curves need not be monotone."""
    ratios = curve(n1=SURE, n8=(1.1, 1.0, 1.1), n16=(1.5, 1.1, 1.6), n17=(2, 1.9, 2.1),
                  n32=(1.3, 1.1, 1.5))  # fmt: skip
    assert open_positions(ratios, 1, PROTOCOL) == [16, 32]


def test_what_seems_to_pass_is_tested() -> None:
    """The largest N that seems to pass is tested until it surely does."""
    ratios = curve(n1=SURE, n8=(1.1, 1.0, 1.15), n16=(1.15, 1.1, 1.3), n32=(2, 1.9, 2.1))
    assert open_positions(ratios, 1, PROTOCOL) == [16]


def test_an_interval_that_is_narrow_enough_may_stay_open() -> None:
    """What is closer than the square root of `width` to the boundary is not fought over."""
    ratios = curve(n1=SURE, n96=(1.1, 1.05, 1.19), n100=(1.19, 1.1, 1.3), n104=(1.21, 1.1, 1.3),
                  n120=(1.5, 1.4, 1.6))  # fmt: skip
    assert open_positions(ratios, 1, PROTOCOL) == []
    assert open_positions(ratios, 1, replace(PROTOCOL, width=1.0)) == [100, 104]


def test_a_round_tests_a_limited_number_of_points() -> None:
    """No more than `probes` points are tested in one round, what seems to pass first."""
    ratios = [Ratio(1, *SURE), *(Ratio(n, 1.3, 1.1, 1.5) for n in range(10, 40))]
    assert open_positions(ratios, 1, PROTOCOL) == list(range(32, 40))


@given(
    st.lists(st.tuples(st.floats(0.5, 3), st.floats(0, 0.5), st.floats(0, 0.5)), min_size=1),
    st.floats(1, 1.5),
)
def test_it_stops_only_when_the_interval_is_narrow(
    points: list[tuple[float, float, float]], width: float
) -> None:
    """Nothing left to test means that no N beyond `width` of a sure pass may still pass."""
    protocol = replace(PROTOCOL, width=width)
    ratios = [Ratio(1, *SURE)] + [
        Ratio(n + 2, value, value - below, value + above)
        for n, (value, below, above) in enumerate(points)
    ]
    if open_positions(ratios, 1, protocol) == []:
        low = max(p.n for p in ratios if p.high <= 1.2)
        high = max(p.n for p in ratios if p.low <= 1.2)
        assert high <= width * low or high == low


def test_an_interval_pays_for_every_look() -> None:
    """The error is shared among the looks, so a range too small for its share is widened."""
    interval = interval_of(PROTOCOL)
    few = [1.0, 1.1, 1.2, 1.3]
    assert interval(few) == (pytest.approx(1 / 1.3), pytest.approx(1.3**2))
    many = [1 + n / 100 for n in range(8)]
    assert interval(many) == (many[0], many[-1])


def test_a_search_looks_only_at_its_looks() -> None:
    """Between two looks the same points are tested again, whatever their ratios are."""
    search = Search(1, {}, [])
    for number in range(4):
        for n, us in ((1, 10.0), (8, 11.9 + number / 10), (16, 30.0)):
            search.add(make_latency(number, n, wall_us=(us,), dirty=(False,), protocol=PROTOCOL))
    assert search.probes(PROTOCOL) == [8]
    for number in range(4, 7):
        for n, us in ((1, 10.0), (8, 10.0)):
            search.add(
                make_latency(
                    number, n, wall_us=(us,), dirty=(False,), paired=True, protocol=PROTOCOL
                )
            )
        assert search.probes(PROTOCOL) == [8]


def looked_at(*after: float, live: bool = False) -> Search:
    """Return a search with a look after four pairs at N=8 of ratio 1.17, and those of `after`.

    After its sweep N=8 was open: four values alone are widened by their own range. Of a `live` one
    it was asked before each pair what to test.
    """
    search = Search(1, {}, [])
    clean = {"dirty": (False,), "protocol": PROTOCOL}
    for number, us in enumerate((11.5, 11.9, 11.5, 11.9)):
        for n, wall in ((1, 10.0), (8, us), (16, 30.0)):
            search.add(make_latency(number, n, wall_us=(wall,), **clean))
    for number, us in enumerate((11.7,) * 4 + after, start=4):
        assert not live or search.probes(PROTOCOL) == [8]
        for n, wall in ((1, 10.0), (8, us)):
            search.add(make_latency(number, n, wall_us=(wall,), paired=True, **clean))
    return search


def test_what_a_look_makes_known_is_tested_no_more() -> None:
    """At a look all rounds before it count, so that N=8, open after the sweep, passes for sure."""
    assert looked_at(live=True).probes(PROTOCOL) == []
    assert looked_at().probes(PROTOCOL) == []


def test_who_goes_on_decides_as_at_the_last_look() -> None:
    """Rounds that follow a look change nothing until the next, in a resumed take, too."""
    assert looked_at(13.0, 13.0).probes(PROTOCOL) == []
    late = replace(PROTOCOL, looks=(6, 8))
    assert looked_at(13.0, 13.0).probes(late) == [8]


def test_of_what_passes_the_smallest_and_the_largest_are_tested() -> None:
    """Near a boundary without proof from below, an N in between that fails is not tested."""
    wide = replace(PROTOCOL, width=4.0)
    ratios = curve(n1=SURE, n20=(1.1, 1.0, 1.3), n24=(1.3, 1.25, 1.4), n28=(1.1, 1.0, 1.3),
                  n32=(1.15, 1.0, 1.3), n64=(2, 1.9, 2.1))  # fmt: skip
    assert open_positions(ratios, 1, wide) == [20, 32]
    failing = curve(n1=SURE, n20=(1.3, 1.25, 1.4), n28=(1.1, 1.0, 1.3), n32=(1.15, 1.0, 1.3))
    assert open_positions(failing, 1, wide) == [28, 32]


def test_settings_are_paired_in_rounds_of_their_own(layout: Layout) -> None:
    """A paired round is of one setting, each has a number, and the share that is done rises."""
    (sweep,) = PLAN.sweeps
    plan = replace(PLAN, sweeps=(sweep, replace(sweep, setting=make_setting(batch=2))))
    progress: list[float] = []
    visits = measured(layout, take(layout, plan, FakeKernel(), noisy(), progress.append))
    settings: dict[int, set[int]] = {}
    for visit in visits:
        settings.setdefault(visit.round, set()).add(visit.setting.batch)
    paired = {visit.round for visit in visits if visit.paired}
    assert sorted(settings) == list(range(len(settings)))
    assert [len(settings[number]) for number in sorted(paired)] == [1] * len(paired)
    assert {batch for number in paired for batch in settings[number]} == {sweep.setting.batch, 2}
    total_rounds = PROTOCOL.rounds + PROTOCOL.looks[-1]
    assert progress == pytest.approx([(done + 1) / total_rounds for done in range(len(progress))])
    assert len(progress) > PROTOCOL.rounds


def test_caps_end_a_search() -> None:
    """After the last look, or the seconds that a setting may take, nothing is tested any more."""
    search = Search(1, {1: dict.fromkeys(range(4), 10.0), 8: {0: 9, 1: 15, 2: 9, 3: 15}}, [])
    assert search.probes(PROTOCOL) == [8]
    assert Search(1, search.curve, list(range(8))).probes(PROTOCOL) == []
    assert Search(1, search.curve, [], spent_s=61).probes(PROTOCOL) == []


def test_what_a_search_has_spent_counts_its_warm_up() -> None:
    """The time of a setting is that of all its forwards, timed or not."""
    search = Search(1, {}, [])
    search.add(make_latency(wall_us=(1e6,), dirty=(False,), protocol=replace(PROTOCOL, warmup=2)))
    assert search.spent_s == pytest.approx(3.0)
    many = replace(PROTOCOL, warmup=0)
    search.add(make_latency(wall_us=(1e6,), dirty=(False,), protocol=many, forwards_a_sample=3))
    assert search.spent_s == pytest.approx(6.0)


def test_a_clear_curve_is_a_sweep_alone(layout: Layout) -> None:
    """On a machine without noise the sweep decides, so there are no paired rounds."""
    visits = measured(layout, take(layout, PLAN, FakeKernel(), FakeTimer(staircase(16, 0.5, 0.0))))
    assert len(visits) == 4 * len(GRID)
    assert not any(visit.paired for visit in visits)


def noisy(seed: int = 1) -> FakeTimer:
    """Return a timer with noise of a curve whose N=16 is exactly on the limit."""
    machine = Machine(lambda n: 1.2 if n == 16 else staircase(16, 1.0, 0.0)(n), Noise(), seed)
    return FakeTimer(lambda n: TICK * machine.sample(None, n).wall_us)  # type: ignore[arg-type]


def test_a_paired_round_is_a_palindrome(layout: Layout) -> None:
    """A paired round visits the baseline first and last, and keeps both visits of each N."""
    kernel = FakeKernel()
    visits = measured(layout, take(layout, PLAN, kernel, noisy()))
    paired = [visit for visit in visits if visit.paired]
    assert paired
    assert {len(visit.wall_us) for visit in paired} == {2}
    calls = kernel.calls[2 * 4 * len(GRID) :]
    first = [visit.n for visit in paired if visit.round == paired[0].round]
    assert first[0] == 1
    assert 16 in first
    assert calls[: 4 * len(first)] == [n for n in (*first, *reversed(first)) for _ in range(2)]


@pytest.mark.parametrize("fails_at", [1, 40, 60, 80])
def test_a_resumed_take_keeps_its_whole_rounds(layout: Layout, fails_at: int) -> None:
    """After a failure in the sweep or among the pairs, each round is recorded exactly once."""
    with pytest.raises(HardwareError):
        take(layout, PLAN, FakeKernel(fails_at), noisy())
    seal = take(layout, PLAN, FakeKernel(), noisy())
    visits = measured(layout, seal)
    seen = [(visit.round, visit.n) for visit in visits]
    assert len(set(seen)) == len(seen)
    rounds = sorted({number for number, _ in seen})
    assert rounds == list(range(len(rounds)))
    assert len(rounds) == PROTOCOL.rounds + PROTOCOL.looks[-1]
    assert len(seal.segments) == 2


def test_a_visit_without_a_clean_sample_decides_nothing() -> None:
    """The search sees what the tables see: a visit all of whose samples are dirty is left out."""
    search = Search(1, {}, [])
    dirty = {"wall_us": (9.0,), "dirty": (True,), "protocol": PROTOCOL}
    search.add(make_latency(0, 1, **dirty))
    assert (search.curve, search.forwards) == ({}, 2.0)
    assert search.probes(PROTOCOL) == []
    search.add(make_latency(0, 8, **dirty | {"dirty": (False,)}))
    assert search.probes(PROTOCOL) == []  # without its baseline there is no ratio
