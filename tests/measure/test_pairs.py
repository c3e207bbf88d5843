"""The paired protocol: what a pair holds, when a point gets no more, and how a take goes on."""

import math
from collections import Counter
from itertools import repeat
from random import Random

import pytest
from conftest import make_latency, make_plan, make_setting
from msgspec.structs import replace
from nearfree.core.boundary import interval_of
from nearfree.core.protocols import Paired
from nearfree.errors import HardwareError
from nearfree.log.curves import curve_samples, curves, samples_ratios
from nearfree.log.evidence import read_take
from nearfree.log.names import Layout
from nearfree.measure.pairs import Pair, pair_of, unresolved_n
from nearfree.measure.rounds import recover

from measure.machines import TICK, FakeKernel, FakeTimer, measured, take

GRID = (1, 2, 4)
PROTOCOL = Paired(rounds=8, look_every=4, half_width=0.2, warmup=0)
PLAN = replace(make_plan(positions=GRID), protocol=PROTOCOL)


def noisy(share: float, *, only: int | None = None, dirty: object = ()) -> FakeTimer:
    """Return a timer of T(N) = 10 N us that is off by up to a share, at one N or at each."""
    draw = Random(1)  # noqa: S311 (noise, no secret)

    def curve(n: int) -> float:
        off = share * draw.uniform(-1, 1) if only in {None, n} else 0.0
        return TICK * n * (1 + off)

    return FakeTimer(curve, dirty)  # type: ignore[arg-type]


def pair(ratio: float) -> Pair:
    """Return a pair of clean visits that has this ratio by both clocks."""
    return Pair(make_latency(0, 4), clean_ratio=ratio, ratio=ratio, seconds=0.1, clean=2, samples=2)


def test_a_baseline_without_process_time_has_a_ratio() -> None:
    """A clock too coarse for the baseline counts no process time: the wall time decides, unhurt."""
    baseline = make_latency(0, 1, wall_us=(10.0,), process_us=(0.0,), dirty=(False,))
    visit = make_latency(0, 4, wall_us=(12.0,), process_us=(3.0,), dirty=(False,))
    found = pair_of([baseline, visit])
    assert (found.clean_ratio, found.ratio) == (1.2, 3.0)


def test_a_pair_lies_between_two_visits_to_its_baseline(layout: Layout) -> None:
    """A pair is the baseline, N and the baseline again; what N = 1 gets is the baseline alone."""
    kernel = FakeKernel()
    visits = measured(layout, take(layout, PLAN, kernel))
    assert [v.round for v in visits] == sorted(v.round for v in visits)
    calls = iter(kernel.calls)
    by_round: dict[int, list[int]] = {}
    for visit in visits:
        by_round.setdefault(visit.round, []).append(visit.n)
    for ns in by_round.values():
        expected = [1, 1] if ns == [1] else [1, 1, ns[-1], 1, 1]
        assert [next(calls) for _ in expected] == expected
        assert ns in ([1], [1, 2], [1, 4])
    assert {v.round_points for v in visits} == {1, 2}
    assert all(v.paired for v in visits)


def test_what_is_known_gets_no_further_pair(layout: Layout) -> None:
    """Without noise the first look ends the take; otherwise only the noisy N goes on."""
    visits = measured(layout, take(layout, PLAN, FakeKernel()))
    assert Counter(v.n for v in visits if v.n > 1) == {2: 4, 4: 4}


def test_a_noisy_point_goes_on_alone(layout: Layout) -> None:
    """Only the N whose interval is too wide at a look gets more pairs, `rounds` at most."""
    visits = measured(layout, take(layout, PLAN, FakeKernel(), noisy(0.9, only=4)))
    assert Counter(v.n for v in visits if v.n > 1) == {2: 4, 4: 8}


def test_the_seconds_of_a_setting_end_its_pairs(layout: Layout) -> None:
    """After `seconds_max` inside forwards, a look leaves nothing open, however wide."""
    plan = replace(PLAN, protocol=replace(PROTOCOL, seconds_max=4e-4))
    visits = measured(layout, take(layout, plan, FakeKernel(), noisy(0.9)))
    assert Counter(v.n for v in visits if v.n > 1) == {2: 4, 4: 4}


def test_settings_end_apart(layout: Layout) -> None:
    """A decided setting does not wait for an undecided one."""
    (sweep,) = PLAN.sweeps
    plan = replace(PLAN, sweeps=(sweep, replace(sweep, setting=make_setting(batch=2))))
    visits = measured(layout, take(layout, plan, FakeKernel()))
    assert Counter((v.setting.batch, v.n) for v in visits if v.n > 1) == {
        (sweep.setting.batch, 2): 4, (sweep.setting.batch, 4): 4, (2, 2): 4, (2, 4): 4,
    }  # fmt: skip


@pytest.mark.parametrize("fails_at", [1, 7, 30, 60, 67])
def test_a_resumed_take_is_the_one_it_would_have_been(layout: Layout, fails_at: int) -> None:
    """After a failure complete pairs are kept, and each N gets the same number of pairs."""
    with pytest.raises(HardwareError, match="fell over"):
        take(layout, PLAN, FakeKernel(fails_at), noisy(0.9, only=4))
    visits = measured(layout, take(layout, PLAN, FakeKernel(), noisy(0.9, only=4)))
    assert Counter(v.n for v in visits if v.n > 1) == {2: 4, 4: 8}
    rounds = [v.round for v in visits]
    assert sorted(set(rounds)) == list(range(rounds[-1] + 1))


def test_what_drifts_between_pairs_cancels(layout: Layout) -> None:
    """A machine that slows down by half from pair to pair gives the same ratios."""
    calls = [0]

    def slower(n: int) -> float:
        calls[0] += 1
        return TICK * n * 1.5 ** (calls[0] // 40)

    seal = take(layout, PLAN, FakeKernel(), FakeTimer(slower))
    (curve,) = curves([read_take(layout, next(iter(layout.takes("cpu"))))])
    assert seal.segments
    ratios = {r.n: r.value for r in samples_ratios(curve_samples(curve), PROTOCOL)}
    assert ratios == pytest.approx({1: 1, 2: 2, 4: 4}, rel=1e-6)


def test_cpu_time_stands_in_where_hardly_a_sample_is_clean(layout: Layout) -> None:
    """Pairs of disturbed samples are judged by process time, as in the tables."""
    timer = FakeTimer(lambda n: TICK * n, repeat(object=True))
    visits = measured(layout, take(layout, PLAN, FakeKernel(), timer))
    assert Counter(v.n for v in visits if v.n > 1) == {2: 4, 4: 4}


def test_a_pair_says_its_ratio_by_either_clock() -> None:
    """N over the baseline, by clean samples of wall time and by all of process time."""
    reference = make_latency(0, 1, wall_us=(10.0, 90.0), process_us=(8.0, 8.0), dirty=(False, True),
                             forwards_a_sample=4)  # fmt: skip
    visit = make_latency(0, 4, wall_us=(30.0,), process_us=(16.0,), dirty=(False,),
                         forwards_a_sample=4)  # fmt: skip
    pair = pair_of([reference, visit])
    assert (pair.visit.n, pair.clean_ratio, pair.ratio) == (4, 3.0, 2.0)
    assert (pair.clean, pair.samples) == (2, 3)
    assert pair.seconds == pytest.approx(520e-6)
    assert pair_of([reference]).clean_ratio == 1.0


@pytest.mark.parametrize("which", [0, 1])
def test_a_pair_without_a_clean_sample_on_a_side_has_no_ratio(which: int) -> None:
    """A disturbed baseline or a disturbed N gives no ratio."""
    sides = [make_latency(0, 1), make_latency(0, 4)]
    sides[which] = replace(sides[which], dirty=(True, True))
    assert pair_of(sides).clean_ratio is None


def test_wall_time_tells_where_samples_are_clean() -> None:
    """Only the clock that a curve is judged by decides whether its N is resolved."""
    by_wall = [replace(pair(4.0), ratio=4.0 * (1 + k % 2)) for k in range(8)]
    assert unresolved_n({4: by_wall}, PROTOCOL) == set()
    by_process = [replace(pair(4.0), clean_ratio=4.0 * (1 + k % 2), clean=0) for k in range(8)]
    assert unresolved_n({4: by_process}, PROTOCOL) == set()
    assert unresolved_n({4: [replace(sample, clean=2) for sample in by_process]}, PROTOCOL) == {4}


def test_an_n_without_a_ratio_stays_open() -> None:
    """Of an N all of whose samples were disturbed nothing is known, while others are."""
    none = [replace(pair(4.0), clean_ratio=None, clean=0)] * 4
    assert unresolved_n({2: [pair(2.0)] * 8, 4: none}, PROTOCOL) == {4}


def test_progress_rises_to_one(layout: Layout) -> None:
    """Progress is reported as a share after each pair, and as one at the end."""
    progress: list[float] = []
    take(layout, PLAN, FakeKernel(), noisy(0.9), progress.append)
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0.0, 1.0)
    assert len(set(progress)) > PROTOCOL.rounds


@pytest.mark.parametrize("sigma", [0.02, 0.06, 0.12])
def test_intervals_hold_the_ratio_however_often_it_is_looked_at(sigma: float) -> None:
    """Of takes that end when an interval is narrow, at least 95 % hold the true ratio in it."""
    draw, protocol = Random(2), Paired()  # noqa: S311 (noise, no secret)
    interval = interval_of(protocol)
    held = made = 0
    for _ in range(400):
        pairs: list[Pair] = []
        for look in protocol.looks:
            pairs += [pair(4 * math.exp(draw.gauss(0, sigma))) for _ in range(look - len(pairs))]
            if not unresolved_n({4: pairs}, protocol):
                break
        low, high = interval([pair.ratio for pair in pairs])
        held += low <= 4 <= high
        made += len(pairs)
    assert held >= 0.95 * 400
    assert made / 400 == pytest.approx({0.02: 8, 0.06: 22, 0.12: 32}[sigma], abs=3)


def test_an_interrupted_take_of_pairs_can_be_sealed(layout: Layout) -> None:
    """`nearfree log recover` counts the pairs of the point that has the fewest."""
    with pytest.raises(HardwareError, match="fell over"):
        take(layout, PLAN, FakeKernel(50), noisy(0.9))
    (name,) = layout.takes(sealed=False)
    (line,) = recover(layout, str(name))
    assert "sealed as partial with 4 of 8 rounds" in line
