"""Schedules merged to few entries."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.derive.schedule.merging import (
    MOST_ENTRIES,
    MOST_LENGTHS,
    losses,
    merged_below,
    merged_by_speed,
    short_by_speed,
)
from nearfree.errors import ConfigError

PASSING = st.one_of(
    st.integers(0, 9).map(lambda k: frozenset(range(k + 1))),
    st.frozensets(st.integers(0, 9)).map(lambda ks: ks | {0}),
)
"""Near-free K where T(N) never falls, and where it may."""
NEAR_FREE = st.lists(PASSING, min_size=1, max_size=40).map(
    lambda values: dict(enumerate(values, 1))
)
ROWS = st.lists(st.floats(0.5, 2), min_size=4, max_size=4)
SPEEDS = st.lists(ROWS, min_size=1, max_size=6).map(
    lambda rows: {b: dict(enumerate(row)) for b, row in enumerate(rows, 1)}
)


def up_to(lengths: dict[int, int]) -> dict[int, frozenset[int]]:
    """Return near-free K by batch size, all up to the longest."""
    return {b: frozenset(range(k + 1)) for b, k in lengths.items()}


def entries(ks: list[int]) -> int:
    """Return the number of entries of lengths by batch size."""
    return 1 + sum(before != k for before, k in pairwise(ks))


@given(SPEEDS, st.floats(0.001, 0.5))
def test_fewest_entries_then_fewest_lengths(
    speeds: dict[int, dict[int, float]], worth: float
) -> None:
    """By trying all: no schedule within the loss has fewer entries, or as many with fewer K."""
    lengths_ = [*merged_by_speed(speeds, worth).values()]
    floors = [(1 - worth) * max(speed.values()) for speed in speeds.values()]
    able = [
        [k for k, v in speed.items() if v >= floor]
        for speed, floor in zip(speeds.values(), floors, strict=True)
    ]
    assert all(k in here for k, here in zip(lengths_, able, strict=True))
    least = min((entries([*choice]), len({*choice})) for choice in product(*able))
    assert (entries(lengths_), len({*lengths_})) == least


@given(SPEEDS)
def test_no_worth_is_the_best(speeds: dict[int, dict[int, float]]) -> None:
    """With an allowed loss of 0 each batch size has its fastest K."""
    merged = merged_by_speed(speeds, 0)
    assert all(speeds[b][k] == max(speeds[b].values()) for b, k in merged.items())


def test_powers_of_two_are_preferred() -> None:
    """Of equally fast K the one that keeps vLLM's full graphs is taken."""
    speeds = {b: {0: 1.0, 2: 2.0, 3: 1.99, 4: 2.0} for b in range(1, 9)}
    assert set(merged_by_speed(speeds, 0.02).values()) == {3}


def test_what_takes_many_entries_is_merged_further() -> None:
    """Entries that differ by 4 % are merged, with at most that loss."""
    speeds = {b: {1: 1.0, 2: 1.04 if b % 2 else 1 / 1.04} for b in range(1, 21)}
    many = merged_by_speed(speeds, 0.02)
    assert entries([*many.values()]) == 20
    assert losses(speeds, many) == (0.0, 0.0)
    short_lengths = short_by_speed(speeds, 0.02)
    assert short_lengths == merged_by_speed(speeds, 0.04)
    assert entries([*short_lengths.values()]) == 1
    worst, mean = losses(speeds, short_lengths)
    assert worst == pytest.approx(1 - 1 / 1.04)
    assert 0 < mean < worst
    assert short_by_speed(speeds, 0) == merged_by_speed(speeds, 0)


@given(NEAR_FREE, st.floats(0.001, 0.3))
def test_merged_downwards(near_free: dict[int, frozenset[int]], worth: float) -> None:
    """Each K is near-free, and K increases at most up to one batch size."""
    assume(any(max(ks) for ks in near_free.values()))
    merged = merged_below(near_free, worth)
    ks = [*merged.values()]
    assert merged.keys() == near_free.keys()
    assert all(k in near_free[b] for b, k in merged.items())
    assert entries(ks) <= MOST_ENTRIES
    assert len({*ks}) <= MOST_LENGTHS
    signs = [k > before for before, k in pairwise(ks) if k != before]
    assert signs == sorted(signs, reverse=True)


@given(st.lists(st.integers(4, 5), min_size=2, max_size=60))
def test_noise_makes_no_entries(ks: list[int]) -> None:
    """Alternating K, such as 5, 4, 5, 4, are merged."""
    merged = merged_below(up_to(dict(enumerate(ks, 1))), 0.02)
    assert len(ranges(merged)) <= 3
    for parts in combinations(ranges(merged), 3):
        assert [part.k for part in parts] != [5, 4, 5]


def test_stairs_of_few_steps_are_kept() -> None:
    """A schedule that has few entries keeps those that are worth it."""
    stairs = {b: 7 if b < 5 else 3 if b < 17 else 1 for b in range(1, 65)}
    assert merged_below(up_to(stairs), 0.02) == stairs


def test_k_is_lowered_to_what_passes_itself() -> None:
    """If 4 drafts are not near-free and 5 are, K is not lowered to 4."""
    rises = up_to({1: 5, 2: 4} | dict.fromkeys(range(3, 65), 5))
    falls_again = {b: ks if b == 2 else ks - {4} for b, ks in rises.items()}
    for near_free, ks in ((rises, [4, 5]), (falls_again, [3, 5])):
        assert [part.k for part in ranges(merged_below(near_free, 0.05))] == ks


@pytest.mark.parametrize("worth", [-0.1, 1, 2, float("nan")])
def test_a_worth_is_a_share(worth: float) -> None:
    """An allowed loss outside [0, 1) is refused."""
    with pytest.raises(ConfigError, match="an entry's worth is"):
        merged_below(up_to({1: 1}), worth)
    with pytest.raises(ConfigError, match="an entry's worth is"):
        merged_by_speed({1: {0: 1.0}}, worth)


@given(SPEEDS, st.floats(0.001, 0.5))
def test_of_its_lengths_no_schedule_of_as_few_entries_is_faster(
    speeds: dict[int, dict[int, float]], worth: float
) -> None:
    """With the chosen K no schedule of as few entries within the loss is faster."""
    merged = merged_by_speed(speeds, worth)
    chosen, few = {*merged.values()}, entries([*merged.values()])
    able = [
        [k for k, v in speed.items() if k in chosen and v >= (1 - worth) * max(speed.values())]
        for speed in speeds.values()
    ]
    others = (
        math.prod(speeds[b][k] for b, k in zip(speeds, ks, strict=True))
        for ks in product(*able)
        if entries([*ks]) <= few
    )
    assert math.prod(speeds[b][k] for b, k in merged.items()) == pytest.approx(max(others))


SHORT = st.lists(
    st.frozensets(st.integers(0, 3)).map(lambda ks: ks | {0}), min_size=1, max_size=5
).map(lambda values: dict(zip((1, 2, 3, 7, 20), values, strict=False)))


@given(SHORT, st.floats(0.001, 0.3))
def test_near_free_lengths_lose_fewest_positions_in_entries_worth_their_place(
    near_free: dict[int, frozenset[int]], worth: float
) -> None:
    """By trying all: the fewest entries within the allowed loss."""
    assume(any(max(ks) for ks in near_free.values()))
    batches = [*near_free]
    weights = [math.log(after / b) for b, after in pairwise([*batches, batches[-1] + 1])]
    longest = [max(ks) for ks in near_free.values()]

    def lost(ks: Sequence[int]) -> float:
        entry = zip(weights, longest, ks, strict=True)
        return sum(weight * math.log((most + 1) / (k + 1)) for weight, most, k in entry)

    least: dict[int, float] = {}
    for ks in product(*near_free.values()):
        rises = [k > before for before, k in pairwise(ks) if k != before]
        if rises == sorted(rises, reverse=True):
            count = entries([*ks])
            least[count] = min(least.get(count, math.inf), lost(ks))
    allowed = min(least.values()) + worth * math.log(batches[-1] + 1)
    few = min(count for count, loss in least.items() if loss <= allowed + 1e-12)
    lengths_ = [*merged_below(near_free, worth).values()]
    assert entries(lengths_) == few
    assert lost(lengths_) == pytest.approx(least[few])


def test_without_a_worth_the_shortest_of_equals_is_taken() -> None:
    """Each batch size has its smallest fastest K, independent of neighbours."""
    speeds = {1: {1: 2.0, 3: 2.0}, 2: {1: 1.0, 3: 2.0}, 3: {1: 2.0, 3: 2.0}}
    assert merged_by_speed(speeds, 0) == {1: 1, 2: 3, 3: 1}
    assert merged_by_speed(speeds, 1e-9) == dict.fromkeys((1, 2, 3), 3)


def test_a_length_that_another_stands_for_is_in_no_schedule() -> None:
    """If 5 drafts are as good as 4 at two batch sizes, 4 is left out."""
    able = {1: (4, 5), 2: (4, 5), 3: (5, 8), 4: (8,), 5: (8,)}
    speeds = {b: {k: 2.0 if k in ks else 1.0 for k in (4, 5, 8)} for b, ks in able.items()}
    merged = merged_by_speed(speeds, 0.1)
    assert {merged[1], merged[2]} == {5}
    assert {merged[4], merged[5]} == {8}
