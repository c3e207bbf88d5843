"""One visit: its warm-up, its samples, and the event that keeps them."""

import gc

import pytest
from conftest import make_plan, make_setting
from hardware.scripted_handover import Scripted
from msgspec.structs import replace
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.errors import HardwareError
from nearfree.hardware.handover import Handover
from nearfree.log.names import Layout
from nearfree.log.reader import gc_paused

from measure.machines import TICK, FakeKernel, FakeTimer, bench, measured, take

PROTOCOL = Interleaved(rounds=3, warmup=2, forwards=3, retries=2)
TWO_THREADS = make_setting(
    module="engine", d_model=None, d_ff=None, context=8, release="1.0", file_type="q8_0", threads=2
)
Visit = list[tuple[bool, float | None]]
PLAN = replace(make_plan(positions=(1, 2, 4)), protocol=PROTOCOL)


def test_a_quiet_visit() -> None:
    """A visit is the warm-up, which is not timed, and the timed forwards."""
    kernel = FakeKernel()
    table, point = bench(kernel, PLAN, FakeTimer())
    samples = table.visit(point, PROTOCOL.warmup)
    assert kernel.calls == [4] * 5
    assert [sample.wall_us for sample in samples] == [TICK] * 3
    assert table.timed_s > 0


def test_dirty_samples_are_kept_flagged_and_repeated() -> None:
    """A disturbed forward is kept with its flag, and another one is run in its place."""
    table, point = bench(FakeKernel(), PLAN, FakeTimer(dirty=[True, False, False, False]))
    samples = table.visit(point, 0)
    assert [sample.dirty for sample in samples] == [True, False, False, False]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_retries_are_limited(retries: int) -> None:
    """However disturbed a visit is, it is repeated at most `retries` times."""
    plan = replace(PLAN, protocol=replace(PROTOCOL, retries=retries))
    kernel = FakeKernel()
    table, point = bench(kernel, plan, FakeTimer(dirty=[True] * 99))
    samples = table.visit(point, 2)
    assert len(samples) == 3 + retries
    assert all(sample.dirty for sample in samples)
    assert len(kernel.calls) == 2 + 3 + retries


def watched_visit(
    *trips_ns: float, retries: int = 2, setting: Setting = TWO_THREADS, threads: int = 1
) -> tuple[list[int], Visit]:
    """Return the forwards of a visit on two threads, and its samples as (dirty, handover_ns)."""
    kernel = FakeKernel()
    plan = replace(PLAN, protocol=replace(PROTOCOL, retries=retries, threads=threads))
    table, point = bench(kernel, plan, FakeTimer())
    table.handover = Scripted(trips_ns)
    samples = table.visit(replace(point, setting=setting), 0)
    return kernel.calls, [(sample.dirty, sample.handover_ns) for sample in samples]


def test_forwards_of_several_threads_wait_for_their_cpus() -> None:
    """They start once the CPUs are close, after a warm-up, and a sample has what lay around it."""
    calls, samples = watched_visit(400.0, 60.0, 70.0, 40.0, 50.0)
    assert samples == [(False, 70.0), (False, 70.0), (False, 50.0)]
    assert calls == [4] * 4


@pytest.mark.parametrize("threads", [1, 2])
def test_our_own_forwards_have_the_protocols_threads(threads: int) -> None:
    """They are watched if it gives them all CPUs, since their settings name no threads."""
    trips_ns = [400.0, *[60.0] * 8]
    calls, samples = watched_visit(*trips_ns, setting=make_setting(), threads=threads)
    assert samples == [(False, 60.0 if threads == 2 else None)] * 3
    assert calls == [4] * (4 if threads == 2 else 3)


def test_a_sample_whose_cpus_moved_is_dirty_and_repeated() -> None:
    """Its round trip is the longer one of those before and after it."""
    calls, samples = watched_visit(60.0, 400.0, 400.0, 60.0, 60.0, 60.0, 60.0)
    assert samples == [(True, 400.0), (False, 60.0), (False, 60.0), (False, 60.0)]
    assert calls == [4] * 5  # a sample, a warm-up after the wait, three samples


def test_where_patience_is_lost_samples_are_marked_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine whose CPUs stay apart a visit takes as many forwards as elsewhere."""
    monkeypatch.setattr(Handover, "patient", False)
    calls, samples = watched_visit(*[400.0] * 4)
    assert samples == [(True, 400.0)] * 3
    assert calls == [4] * 3


@pytest.mark.parametrize(
    ("setting", "warmup", "timed"),
    [
        (TWO_THREADS, 1, [None, TICK, None, TICK]),
        (TWO_THREADS, 0, [None] * 4),
        (make_setting(), 1, [None] * 4),
    ],
    ids=["engine", "no warm-up", "module"],
)
def test_an_engines_first_forward_after_another_n_is_timed(
    setting: Setting, warmup: int, timed: list[float | None]
) -> None:
    """It is a warm-up forward that runs anyway: not the take's first one, nor one of the same N."""
    kernel = FakeKernel()
    table, point = bench(kernel, PLAN, FakeTimer())
    visits = [
        table.visit(replace(point, setting=setting, n=n), warmup, forwards=2) for n in (4, 2, 2, 4)
    ]
    assert [samples[0].changed_us for samples in visits] == timed
    assert {samples[1].changed_us for samples in visits} == {None}
    assert kernel.calls == [n for n in (4, 2, 2, 4) for _ in range(2 + warmup)]


def test_a_forward_after_a_wait_tells_nothing_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs that idled are slower to begin: such a forward is not timed."""
    monkeypatch.setattr("nearfree.hardware.handover.time.sleep", lambda _: None)
    table, point = bench(FakeKernel(), PLAN, FakeTimer())
    point = replace(point, setting=TWO_THREADS)
    table.handover = Scripted([60.0, 60.0, 400.0, 60.0, 60.0])
    table.visit(replace(point, n=2), 1, forwards=1)
    (sample,) = table.visit(point, 1, forwards=1)
    assert sample.changed_us is None


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_other_threads_than_fill_the_watched_cpus_wait_for_none(threads: int | None) -> None:
    """Forwards of one thread, or of others than fill the CPUs, are neither watched nor marked."""
    table, point = bench(FakeKernel(), PLAN, FakeTimer())
    point = replace(point, setting=replace(TWO_THREADS, threads=threads))
    table.handover = Scripted([])
    samples = table.visit(point, 0)
    assert {(sample.dirty, sample.handover_ns) for sample in samples} == {(False, None)}


def test_an_event_says_what_was_timed(layout: Layout) -> None:
    """A visit's event holds its samples, its place, its protocol and how it was timed."""
    seal = take(layout, PLAN, FakeKernel())
    visits = measured(layout, seal)
    assert {v.wall_us for v in visits} == {(TICK,) * 3}
    assert {v.process_us for v in visits} == {(TICK - 1,) * 3}
    assert {(v.cache, v.baseline, v.protocol) for v in visits} == {("cold", 1, PROTOCOL)}
    assert {(v.timer, v.launch, v.forwards_a_sample) for v in visits} == {("cpu", "eager", 1)}
    assert {v.round_points for v in visits} == {3}


def test_attention_tells_both_lengths(layout: Layout) -> None:
    """An attention visit holds L in its setting, and the keys that it reads: L and the N new."""
    setting = make_setting(
        module="attention", d_model=None, d_ff=None, context=100, heads=2, kv_heads=1, head_dim=8
    )
    (sweep,) = PLAN.sweeps
    plan = replace(PLAN, sweeps=(replace(sweep, setting=setting),))
    visits = measured(layout, take(layout, plan, FakeKernel()))
    assert {(v.setting.context, v.n, v.key_length) for v in visits} == {
        (100, n, 100 + n) for n in (1, 2, 4)
    }


def test_every_visit_is_checked_against_the_timer(layout: Layout) -> None:
    """A sample that the timer cannot resolve ends the take, and nothing of it is sealed."""
    timer = FakeTimer()

    def refuse(wall_us: float) -> None:
        raise HardwareError(f"{wall_us} is too short", remedy="Measure more")

    timer.check = refuse  # type: ignore[method-assign]
    with pytest.raises(HardwareError, match=r"10\.0 is too short"):
        take(layout, PLAN, FakeKernel(), timer)
    assert not layout.takes()


def test_the_cycle_collector_is_away_and_comes_back() -> None:
    """No cycles are collected between timed forwards, and again after whatever ends them."""
    seen = []

    def fail() -> None:
        seen.append(gc.isenabled())
        raise HardwareError("the GPU failed", remedy="Run it again")

    with pytest.raises(HardwareError), gc_paused():
        fail()
    assert (seen, gc.isenabled()) == ([False], True)
