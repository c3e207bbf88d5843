"""Curves: what visits give T(N), with which load, and which interval fits the protocol."""

import pytest
from conftest import make_latency, make_plan, make_setting, write_payloads
from derive.tables.logs import make_take
from msgspec.structs import replace
from nearfree.core.boundary import interval_of, ratios, unpaired_ratios
from nearfree.core.protocols import Adaptive, Interleaved, Paired, Paper, Thinned, Timing
from nearfree.log.curves import CurveSamples, clean_us, curve_samples, curves, samples_ratios
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.take import take_name

SAMPLES = CurveSamples(
    timer="wall",
    baseline=1,
    rounds={
        n: {number: 10.0 * n + (number * 7 + n * n) % 31 / 4 for number in range(30)}
        for n in (1, 2, 4)
    },
)


@pytest.mark.parametrize(
    ("protocol", "looks"), [(Adaptive(), True), (Paired(), True), (Thinned(), False),
                            (Interleaved(), False)],
)  # fmt: skip
def test_rounds_are_paired_and_looks_corrected(protocol: Timing, looks: bool) -> None:  # noqa: FBT001
    """Ratios are paired by round; a protocol that looks repeatedly has wider intervals."""
    plain = ratios(SAMPLES.rounds, 1)
    found = samples_ratios(SAMPLES, protocol)
    if looks:
        assert isinstance(protocol, Adaptive | Paired)
        assert found == ratios(SAMPLES.rounds, 1, interval_of(protocol)) != plain
    else:
        assert found == plain


def test_the_papers_rounds_are_not_paired() -> None:
    """The paper times one N after the other: its ratios are those of medians."""
    found = samples_ratios(SAMPLES, Paper())
    assert found == unpaired_ratios(SAMPLES.rounds, 1) != ratios(SAMPLES.rounds, 1)


@pytest.mark.parametrize(
    ("loads", "highest"), [((0.5, 2.0, 1.0), 2.0), ((None, 0.5, None), 0.5), ((None, None), None)]
)
def test_a_point_has_the_highest_load_of_its_visits(
    loads: tuple[float | None, ...], highest: float | None
) -> None:
    """Visits that recorded no load say nothing of it."""
    visits = [make_latency(number, load_1m=load) for number, load in enumerate(loads)]
    (curve,) = curves([make_take(*visits)])
    assert curve.visits[1].load_1m == highest


def test_a_curve_names_its_visits_by_n_in_order() -> None:
    """Each N has the ids of its own visits, whatever came between; a setting has one curve."""
    other = make_setting(d_ff=256)
    visits = [
        make_latency(0, 1), make_latency(0, 2), make_latency(0, 1, setting=other),
        make_latency(1, 2), make_latency(1, 1),
    ]  # fmt: skip
    take = make_take(*visits)
    first, second = curves([take])
    by_setting = {curve.setting: curve for curve in (first, second)}
    segment = take.name.segment(1)
    assert by_setting[make_setting()].ids == {
        1: [f"{segment}#2", f"{segment}#6"], 2: [f"{segment}#3", f"{segment}#5"],
    }  # fmt: skip
    assert by_setting[other].ids == {1: [f"{segment}#4"]}
    assert by_setting[other].first_id == f"{segment}#4"
    assert by_setting[other].key == ("dense_ffn", other)


def test_visits_of_two_attempts_name_their_segments(layout: Layout) -> None:
    """A take's curves are those of its own visits, one curve a setting and take."""
    for number in (1, 2):
        plan = make_plan()
        write_payloads(layout, take_name("cpu", "dense", number, plan), plan, make_latency())
    found = curves(read_scope(layout, "cpu"))
    assert [curve.take.name.take for curve in found] == [1, 2]
    assert [curve.ids for curve in found] == [
        {1: [f"{curve.take.name.segment(1)}#2"]} for curve in found
    ]
    assert found[0].order < found[1].order


ENGINE = {
    "module": "engine",
    "d_model": None,
    "d_ff": None,
    "context": 8,
    "release": "1.0",
    "file_type": "q8_0",
}


@pytest.mark.parametrize(("threads", "latency_us"), [(1, 20.0), (2, 30.0)])
def test_disturbed_samples_count_with_several_threads_alone(
    threads: int, latency_us: float
) -> None:
    """With one thread the median is over clean samples, with several over all."""
    setting = make_setting(**ENGINE, threads=threads)
    visit = make_latency(setting=setting, wall_us=(20.0, 30.0, 40.0), dirty=(False, True, True))
    assert clean_us(visit) == latency_us
    (curve,) = curves([make_take(visit)])
    samples = curve_samples(curve)
    assert samples.timer == ("process" if threads == 1 else "wall")
    assert samples.rounds == {1: {0: 13.0 if threads == 1 else 30.0}}


def test_our_own_forwards_have_the_protocols_threads() -> None:
    """CPU time of two of its threads is twice a forward's latency, so that wall time counts."""
    protocol = replace(make_latency().protocol, threads=2)
    visit = make_latency(protocol=protocol, wall_us=(20.0, 30.0, 40.0), dirty=(True,) * 3)
    (curve,) = curves([make_take(visit)])
    samples = curve_samples(curve)
    assert (samples.timer, samples.rounds) == ("wall", {1: {0: 30.0}})


@pytest.mark.parametrize(("dirty", "latency_us"), [(1, 20.0), (2, 20.0), (3, 50.0)])
def test_watched_samples_of_several_threads_count_where_half_are_clean(
    dirty: int, latency_us: float
) -> None:
    """Samples while the CPUs were apart are left out, unless the CPUs mostly were."""
    setting = make_setting(**ENGINE, threads=2)
    flags = tuple(number >= 4 - dirty for number in range(4))
    wall_us = tuple(50.0 if flag else 20.0 for flag in flags)
    visit = make_latency(
        setting=setting, wall_us=wall_us, dirty=flags, handover_ns=(50.0, None, 400.0, 400.0)
    )
    (curve,) = curves([make_take(visit)])
    samples = curve_samples(curve)
    assert (samples.timer, samples.rounds) == ("wall", {1: {0: latency_us}})


@pytest.mark.parametrize(("dirty", "timer"), [(1, "wall"), (2, "wall"), (3, "process")])
def test_half_of_the_samples_must_be_clean(dirty: int, timer: str) -> None:
    """A CPU's curve is in wall time if at least half of its samples are clean."""
    flags = tuple(number < dirty for number in range(4))
    visit = make_latency(wall_us=(20.0,) * 4, dirty=flags)
    (curve,) = curves([make_take(visit)])
    assert curve_samples(curve).timer == timer


@pytest.mark.parametrize(
    ("n", "whole"), [((1, 2), True), ((2, 4), False)], ids=["timed", "without"]
)
def test_a_curve_is_whole_with_its_baseline(n: tuple[int, int], whole: bool) -> None:  # noqa: FBT001
    """Without a time of the baseline a curve has no ratios."""
    (curve,) = curves([make_take(*(make_latency(0, position) for position in n))])
    assert curve_samples(curve).whole == whole
