"""From raw samples to T(N): medians, ratios and intervals against an independent computation."""

import math
from statistics import median
from typing import Any

import pytest
from conftest import make_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.core.protocols import Adaptive, Interleaved, Paper, Timing
from nearfree.derive.tables.latency import LATENCY, latency_rows
from nearfree.log.curves import curves
from nearfree.log.events import LatencyMeasured

from derive.tables.logs import make_take, make_visits

Row = dict[str, Any]
SETTING = make_setting(backend="torch")
samples = st.floats(0.5, 1e5)


def points(*visits: LatencyMeasured, **changes: Any) -> list[Row]:
    """Return the rows of one take with these visits, by N."""
    rows = latency_rows(curves([make_take(*visits, **changes)]))
    return sorted((dict(row) for row in rows), key=lambda row: row["n"])


def make_visit(number: int, n: int, wall: list[float], dirty: list[bool], **changes: Any) -> Any:
    """Return a visit with these samples; process time is a tenth of wall time."""
    fields: Row = {
        "setting": SETTING,
        "n": n,
        "baseline": 1,
        "round": number,
        "order": 0,
        "wall_us": tuple(wall),
        "process_us": tuple(us / 10 for us in wall),
        "dirty": tuple(dirty),
        "cache": "cold",
        "protocol": Interleaved(rounds=3),
    }
    return LatencyMeasured(**(fields | changes))


@st.composite
def many_visits(draw: st.DrawFn) -> list[LatencyMeasured]:
    """Draw the visits of a curve, some of them dirty, some missing."""
    visits = []
    for number in range(draw(st.integers(1, 9))):
        for n in (1, 2, 4):
            wall = draw(st.lists(samples, min_size=1, max_size=4))
            dirty = draw(st.lists(st.booleans(), min_size=len(wall), max_size=len(wall)))
            if draw(st.integers(0, 9)):
                visits.append(make_visit(number, n, wall, dirty))
    return visits


def expected(visits: list[LatencyMeasured]) -> dict[int, Row]:
    """Compute the same rows independently, with the standard library."""
    flags = [flag for visit in visits for flag in visit.dirty]
    wall = 2 * sum(not flag for flag in flags) >= len(flags)
    by_n: dict[int, dict[int, float]] = {}
    for visit in visits:
        clean = [us for us, bad in zip(visit.wall_us, visit.dirty, strict=True) if not bad]
        values = clean if wall else list(visit.process_us)
        if values:
            by_n.setdefault(visit.n, {})[visit.round] = median(values)
    base = by_n.get(1, {})
    curve_by_n: dict[int, Row] = {}
    for n, rounds in by_n.items():
        shares = [us / base[number] for number, us in rounds.items() if number in base]
        if shares:
            curve_by_n[n] = {
                "latency_us": median(rounds.values()),
                "ratio": median(shares),
                "interval": interval(list(rounds.values())),
                "ratio_interval": interval(shares),
                "rounds": len(rounds),
                "timer": "wall" if wall else "process",
            }
    return curve_by_n


def interval(values: list[float]) -> tuple[float, float]:
    """Return the narrowest pair of order statistics that holds the median in 95 % of cases."""
    ordered, size = sorted(values), len(values)
    for low in reversed(range(size // 2)):
        inside = sum(math.comb(size, i) for i in range(low + 1, size - low)) / 2**size
        if inside >= 0.95:
            return ordered[low], ordered[-1 - low]
    return ordered[0], ordered[-1]


@given(many_visits())
@settings(deadline=None)
def test_a_curve_is_what_statistics_say(visits: list[LatencyMeasured]) -> None:
    """Latency, ratio and their intervals are those of an independent computation."""
    rows = points(*visits)
    wanted = expected(visits)
    assert [row["n"] for row in rows] == sorted(wanted)
    for row in rows:
        want = wanted[row["n"]]
        assert row["latency_us"] == pytest.approx(want["latency_us"])
        assert row["ratio"] == pytest.approx(want["ratio"])
        assert (row["latency_low_us"], row["latency_high_us"]) == pytest.approx(want["interval"])
        assert (row["ratio_low"], row["ratio_high"]) == pytest.approx(want["ratio_interval"])
        assert (row["rounds"], row["timer"]) == (want["rounds"], want["timer"])


@given(many_visits(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_the_order_of_events_is_irrelevant(visits: list[LatencyMeasured], source: Any) -> None:
    """A curve's numbers do not depend on the order of its events."""
    shuffled = list(visits)
    source.shuffle(shuffled)
    drop = {"from_ids"}
    one, other = (
        [{k: v for k, v in row.items() if k not in drop} for row in points(*order)]
        for order in (visits, shuffled)
    )
    assert one == other


def test_dirty_samples_are_left_out() -> None:
    """A visit's latency is the median of its clean samples."""
    visits = [make_visit(r, 1, [9000.0, 10.0, 12.0], [True, False, False]) for r in range(3)]
    (row,) = points(*visits)
    assert (row["latency_us"], row["timer"]) == (11.0, "wall")
    assert (row["samples"], row["clean_samples"], row["rounds"]) == (9, 6, 3)


def test_a_round_without_a_clean_sample_does_not_count() -> None:
    """A visit with dirty samples only is left out; other rounds count."""
    clean = [make_visit(r, n, [10.0 * n], [False]) for r in range(4) for n in (1, 2)]
    dirty = make_visit(4, 2, [1.0, 1.0], [True, True])
    rows = points(*clean, make_visit(4, 1, [10.0], [False]), dirty)
    assert [(row["n"], row["rounds"]) for row in rows] == [(1, 5), (2, 4)]
    assert rows[1]["latency_us"] == 20.0


@pytest.mark.parametrize(("dirty", "timer"), [(4, "wall"), (5, "process")])
def test_process_time_stands_in_on_a_busy_machine(dirty: int, timer: str) -> None:
    """If fewer than half of a curve's samples are clean, all its rounds use process time."""
    visits = [
        make_visit(r, n, [100.0 * n], [2 * r + n - 1 < dirty]) for r in range(4) for n in (1, 2)
    ]
    rows = points(*visits)
    assert {row["timer"] for row in rows} == {timer}
    assert rows[1]["latency_us"] == (200.0 if timer == "wall" else 20.0)
    assert rows[1]["rounds"] == (2 if timer == "wall" else 4)


def test_the_choice_of_timer_is_a_curves_own() -> None:
    """A disturbed curve does not change the timer of another curve of the same take."""
    busy = make_setting(backend="torch", batch=2)
    visits = [make_visit(r, 1, [10.0], [False]) for r in range(3)]
    visits += [make_visit(r, 1, [10.0], [True], setting=busy) for r in range(3)]
    assert {row["batch"]: row["timer"] for row in points(*visits)} == {1: "wall", 2: "process"}


def test_a_curve_without_its_baseline_is_left_out() -> None:
    """A curve without its baseline has no row."""
    assert points(*make_visits(SETTING, {2: 10.0, 4: 20.0})) == []
    assert len(points(*make_visits(SETTING, {2: 10.0, 4: 20.0}, baseline=2))) == 2


def test_the_load_is_the_highest_that_was_seen() -> None:
    """A point has its rounds' highest load, or none if none was recorded."""
    assert points(*make_visits(SETTING, {1: 10.0}, rounds=3))[0]["load_1m"] == 2.25
    assert points(*make_visits(SETTING, {1: 10.0}, load_1m=None))[0]["load_1m"] is None


@pytest.mark.parametrize(
    ("values", "spread"),
    [([10.0], 0.0), ([10.0, 20.0, 30.0, 40.0], 0.4), ([10.0] * 5 + [99.0] * 3, 8.9)],
)
def test_the_spread_is_the_middle_half(values: list[float], spread: float) -> None:
    """The spread is the range of the middle half of the rounds, as a share of T(N)."""
    rows = points(*(make_visit(r, 1, [us], [False]) for r, us in enumerate(values)))
    assert rows[0]["spread"] == pytest.approx(spread)


def test_a_row_names_its_visits() -> None:
    """A point's ids are the events of its own N."""
    visits = make_visits(SETTING, {1: 10.0, 2: 20.0}, rounds=3)
    rows = points(*visits)
    assert [len(row["from_ids"]) for row in rows] == [3, 3]
    assert not set(rows[0]["from_ids"]) & set(rows[1]["from_ids"])


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"take": 1, "time": "2026-09-01"}, {"take": 2, "time": "2026-01-01"}),
        ({"time": "2026-01-01", "plan8": "f" * 8}, {"time": "2026-02-01", "plan8": "0" * 8}),
        ({"plan8": "0" * 8}, {"plan8": "f" * 8}),
    ],
)
def test_which_take_is_newer(older: Row, newer: Row) -> None:
    """The higher take is newer; of the same number, the later run; then the plan's digest."""
    takes = [make_take(*make_visits(SETTING, {1: 10.0}), **take) for take in (newer, older)]
    for order in (takes, takes[::-1]):
        rows = [dict(row) for row in latency_rows(curves(order))]
        assert len(rows) == 2
        fields = {"take": 1, "plan8": "0" * 8} | newer
        (newest,) = [row for row in rows if row["newest"]]
        assert (newest["take"], newest["plan8"]) == (fields["take"], fields["plan8"])


def test_rows_fit_the_table() -> None:
    """What is computed fits the schema."""
    visits = make_visits(SETTING, {1: 10.0, 2: 20.0})
    frame = LATENCY.build(
        LATENCY.frame(points(*visits)), {f"cpu/dense_ffn/1-00000000.1#{i}" for i in range(99)}
    )
    assert frame["n"].to_list() == [1, 2]


def test_the_papers_rounds_are_not_paired() -> None:
    """Under the paper's protocol ratio and interval are those of unpaired medians."""
    protocol = Paper(rounds=3, forwards=1)
    base, later = (10.0, 20.0, 30.0), (60.0, 40.0, 30.0)
    visits = [
        make_visit(number, n, [us], [False], protocol=protocol)
        for n, values in ((1, base), (4, later))
        for number, us in enumerate(values)
    ]
    first, second = points(*visits)
    assert (first["ratio"], first["ratio_low"], first["ratio_high"]) == (1.0, 1.0, 1.0)
    assert (second["ratio"], second["ratio_low"], second["ratio_high"]) == (2.0, 1.0, 6.0)
    assert (second["protocol"], second["resolution"]) == ("paper", None)


def test_an_adaptive_interval_is_wider() -> None:
    """A test that looks several times has wider intervals than the same rounds looked at once."""
    rounds = [(10.0, 11.0 + number / 10) for number in range(12)]

    def ratio(protocol: Timing) -> Row:
        visits = [
            make_visit(number, n, [us], [False], protocol=protocol)
            for number, pair in enumerate(rounds)
            for n, us in zip((1, 2), pair, strict=True)
        ]
        return points(*visits)[1]

    plain, looked = ratio(Interleaved(rounds=3)), ratio(Adaptive(looks=(2, 4, 8, 16)))
    assert plain["ratio"] == looked["ratio"]
    assert looked["ratio_low"] < plain["ratio_low"]
    assert looked["ratio_high"] > plain["ratio_high"]
    assert (plain["resolution"], looked["resolution"]) == (None, 1.15)


def test_gpu_times_are_told_apart() -> None:
    """A GPU's samples are CUDA events, never replaced by host time."""
    visits = [
        make_visit(number, n, [10.0 * n], [True], timer="cuda_events", launch="graph")
        for number in range(3)
        for n in (1, 2)
    ]
    assert points(*visits) == []
    clean = [
        make_visit(number, n, [10.0 * n], [False], timer="cuda_events", launch="graph")
        for number in range(3)
        for n in (1, 2)
    ]
    assert {(row["timer"], row["launch"]) for row in points(*clean)} == {("cuda_events", "graph")}
    assert [row["latency_us"] for row in points(*clean)] == [10.0, 20.0]


def test_what_was_simulated_says_so() -> None:
    """Points of a simulated timer have the origin `simulated`, all others `measured`."""
    real = make_visits(SETTING, {1: 10.0, 2: 10.0}, timer="cuda_events")
    made_up = make_visits(SETTING, {1: 10.0, 2: 10.0}, timer="simulated", process_us=(0.0, 0.0))
    assert {(row["timer"], row["origin"]) for row in points(*real)} == {("cuda_events", "measured")}
    assert {(row["timer"], row["origin"]) for row in points(*made_up)} == {
        ("simulated", "simulated")
    }


def test_the_cpu_time_of_several_threads_is_no_latency() -> None:
    """With two threads wall time of all samples is used, with one process time."""
    timed = []
    for threads in (1, 2):
        setting = make_setting(
            module="engine", backend="llama_cpp", release="3.22.1", file_type="q8_0",
            context=64, threads=threads, d_model=None, d_ff=None,
        )  # fmt: skip
        visits = [
            make_visit(r, n, [100.0 * n], [r > 0], setting=setting)
            for r in range(4)
            for n in (1, 2)
        ]
        timed.append([(row["timer"], row["rounds"], row["latency_us"]) for row in points(*visits)])
    process, wall = timed
    assert process == [("process", 4, 10.0), ("process", 4, 20.0)]
    assert wall == [("wall", 4, 100.0), ("wall", 4, 200.0)]
