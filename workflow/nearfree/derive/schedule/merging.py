"""Schedules of few entries: by expected tokens per second, or from near-free draft lengths.

Engines capture CUDA graphs for each distinct K and look a schedule up in every step, so each entry
must be worth its cost. With an acceptance rate, a merged schedule keeps expected tokens per second
within a share `worth` of the best at every batch size. Without one these are unknown: then K is
only lowered, to another near-free K, the loss is measured in positions K + 1, and each doubling of
the batch has the same weight.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, groupby, islice, pairwise

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.errors import ConfigError

MOST_ENTRIES, MOST_LENGTHS = 6, 5
"""Most entries and most distinct K of a short schedule."""
_LARGER_WORTHS = (
    *(share / 1000 for share in range(1, 50)),
    *(share / 100 for share in range(5, 21)),
)
"""Larger `worth` values that are tried, in order, until a schedule is short."""
_MOST_SETS = 50_000
"""Sets of K that are tried; if none of them suffices, the greedy set of fewest entries is used."""
Speeds = Mapping[int, Mapping[int, float]]
NearFree = Mapping[int, frozenset[int]]
"""The near-free K by batch size; each set contains 0."""
_Path = tuple[int, int, "_Path | None"]
"""The entries of a partial schedule, last first: K, its first batch or place, and the rest."""
_States = dict[tuple[int, bool, int], tuple[float, _Path | None]]
"""Dynamic programming: (entries, whether K already falls, last K) to the least loss and path."""


def check_worth(worth: float) -> None:
    """Raise ConfigError unless `worth` is a share from 0 to below 1."""
    if not 0 <= worth < 1:
        raise ConfigError(f"an entry's worth is {worth:g}", remedy="Give a share from 0 to below 1")


def merged_by_speed(speeds: Speeds, worth: float) -> dict[int, int]:
    """Return K by batch size: fewest entries within `worth` of the best, then fewest distinct K.

    Of the sets of K that make such schedules, the one with most K + 1 that are powers of two wins
    (vLLM keeps its full graphs there), then the first in rising order. No set contains a K that
    another K can replace at all its batch sizes. Of the schedules with these K, the result has the
    highest geometric mean of expected tokens per second over the batch sizes.

    Parameters
    ----------
    speeds
        Expected tokens per second by K, by batch size, in any unit.
    worth
        The share of the best speed that a batch size may lose; 0 merges only equal neighbours.
    """
    check_worth(worth)
    batches = sorted(speeds)
    best_speed = {batch: max(speeds[batch].values()) for batch in batches}
    if not worth:
        return {
            batch: min(k for k, speed in speeds[batch].items() if speed == best_speed[batch])
            for batch in batches
        }
    allowed = [
        {k for k, speed in speeds[batch].items() if speed >= (1 - worth) * best_speed[batch]}
        for batch in batches
    ]
    lasting = _last_places(allowed)
    entries, greedy_lengths = _fewest_entries(lasting, sorted(set().union(*allowed)))
    lengths = _undominated(allowed)
    every_set = (combinations(lengths, size + 1) for size in range(len(greedy_lengths)))
    sets = list(islice(chain.from_iterable(every_set), _MOST_SETS))
    sufficient = [ks for ks in sets if _fewest_entries(lasting, ks)[0] == entries]
    fewest_lengths = min(map(len, sufficient), default=len(greedy_lengths))
    best = min(
        (ks for ks in sufficient if len(ks) == fewest_lengths),
        key=_not_powers_of_two,
        default=sorted(greedy_lengths),
    )
    k_by_place = _fastest_lengths(speeds, batches, [ks & {*best} for ks in allowed], entries)
    return dict(zip(batches, k_by_place, strict=True))


def short_by_speed(speeds: Speeds, worth: float) -> dict[int, int]:
    """Return K by batch size as `merged_by_speed`, in a short schedule.

    If the schedule within `worth` is not short, try larger shares in turn, and keep it if none
    helps. With `worth` 0 all entries stay.
    """
    merged = merged_by_speed(speeds, worth)
    if _is_short(merged) or not worth:
        return merged
    larger = (merged_by_speed(speeds, share) for share in _LARGER_WORTHS if share > worth)
    return next(filter(_is_short, larger), merged)


def losses(speeds: Speeds, lengths: Mapping[int, int]) -> tuple[float, float]:
    """Return the largest and the mean share of the best expected tokens per second that K lose.

    `speeds` are as in `merged_by_speed`, `lengths` are K by batch size.
    """
    lost = [1 - speeds[batch][k] / max(speeds[batch].values()) for batch, k in lengths.items()]
    return max(lost), sum(lost) / len(lost)


def _is_short(lengths: Mapping[int, int]) -> bool:
    parts = ranges(lengths)
    return len(parts) <= MOST_ENTRIES and len({part.k for part in parts}) <= MOST_LENGTHS


def merged_below(near_free: NearFree, worth: float) -> dict[int, int]:
    """Return near-free K by batch size in a short schedule.

    K rises with the batch up to some size and falls beyond it, so that noise makes no entries. The
    schedule has at most MOST_ENTRIES entries and MOST_LENGTHS distinct K and loses fewest positions
    K + 1, by the mean of their logarithm over the logarithm of the batch size. An entry that
    improves this mean by less than `worth` is left out.

    Parameters
    ----------
    near_free
        The near-free K by batch size from 1; a K below the longest need not be near-free.
    worth
        A share of positions; 0 merges only equal neighbours.

    Raises
    ------
    ConfigError
        As in `draft_lengths.ranges`, or `worth` is no share.
    """
    check_worth(worth)
    longest = {batch: max(near_free[batch]) for batch in sorted(near_free)}
    last = ranges(longest)[-1].last
    if not worth:
        return longest
    ends: dict[int, tuple[float, _Path]] = {}
    for (entries, _, _), (loss, path) in _least_losses(near_free).items():
        few_lengths = path is not None and len({k for k, _ in _entries(path)}) <= MOST_LENGTHS
        if few_lengths and path and (entries not in ends or loss < ends[entries][0]):
            ends[entries] = loss, path
    least = min(loss for loss, _ in ends.values())
    allowed = least + worth * math.log(last + 1)
    path = next(path for _, (loss, path) in sorted(ends.items()) if loss <= allowed)
    starts = sorted((first, k) for k, first in _entries(path))
    return {b: next(k for first, k in reversed(starts) if first <= b) for b in longest}


def _least_losses(near_free: NearFree) -> _States:
    """Return the least loss by (entries, falling, last K), with the path that has it."""
    lengths = sorted(set[int]().union(*near_free.values()))
    runs = groupby(sorted(near_free), near_free.__getitem__)
    parts = [(next(run), allowed) for allowed, run in runs]
    end = max(near_free) + 1, frozenset[int]()
    states: _States = {(0, False, -1): (0.0, None)}
    for (first, allowed), (after, _) in pairwise([*parts, end]):
        weight, longest = math.log(after / first), max(allowed)
        next_states: _States = {}
        for entries in range(1, MOST_ENTRIES + 1):
            for falling in (False, True):
                before = (falling, True) if falling else (False,)
                for k, switched in _best_switches(states, entries - 1, before, lengths):
                    if k not in allowed:
                        continue
                    stays = states.get((entries, falling, k))
                    options = [stays] if stays else []
                    if switched:
                        options.append((switched[0], (k, first, switched[1])))
                    if options:
                        loss, path = min(options, key=lambda option: option[0])
                        segment_loss = weight * math.log((longest + 1) / (k + 1))
                        next_states[entries, falling, k] = loss + segment_loss, path
        states = next_states
    return states


def _best_switches(
    states: _States, entries: int, phases: Sequence[bool], lengths: Sequence[int]
) -> Iterator[tuple[int, tuple[float, _Path | None] | None]]:
    """Yield each K with the best state of `entries` entries that it may follow.

    `phases` says whether K falls in the states that may precede: only a falling K may follow a
    falling one.
    """
    falls = True in phases
    best = None if falls else states.get((entries, False, -1))
    for k in reversed(lengths) if falls else lengths:
        yield k, best
        for phase in (False, True) if falls else (False,):
            state = states.get((entries, phase, k))
            if state and (best is None or state[0] < best[0]):
                best = state


def _entries(path: _Path | None) -> Iterator[tuple[int, int]]:
    """Yield (K, first batch or place) of each entry of a path, the last entry first."""
    while path:
        k, first, path = path
        yield k, first


def _last_places(allowed: Sequence[set[int]]) -> list[dict[int, int]]:
    """Return, by place and allowed K, the last place up to which that K stays allowed."""
    last_places: list[dict[int, int]] = []
    after: dict[int, int] = {}
    for place in range(len(allowed) - 1, -1, -1):
        after = {k: after.get(k, place) for k in allowed[place]}
        last_places.append(after)
    return last_places[::-1]


def _fewest_entries(
    lasting: Sequence[Mapping[int, int]], ks: Sequence[int]
) -> tuple[float, set[int]]:
    """Return the fewest entries of a schedule of these K, and the K that it uses.

    The count is infinite where no such schedule exists. Taking the K that stays allowed longest is
    optimal.
    """
    place, entries, used = 0, 0, set[int]()
    while place < len(lasting):
        last_places = lasting[place]
        allowed = [k for k in ks if k in last_places]
        if not allowed:
            return math.inf, used
        k = max(allowed, key=last_places.__getitem__)
        place, entries = last_places[k] + 1, entries + 1
        used.add(k)
    return entries, used


def _undominated(allowed: Sequence[set[int]]) -> list[int]:
    """Return the K that no other K can replace at all places; powers of two K + 1 are preferred."""
    places_of: dict[int, set[int]] = {}
    for place, ks in enumerate(allowed):
        for k in ks:
            places_of.setdefault(k, set()).add(place)
    kept: list[int] = []
    for k in sorted(places_of, key=lambda k: (-len(places_of[k]), _not_powers_of_two([k]), k)):
        if not any(
            places_of[k] <= places_of[other]
            and _not_powers_of_two([other]) <= _not_powers_of_two([k])
            for other in kept
        ):
            kept.append(k)
    return sorted(kept)


def _not_powers_of_two(ks: Sequence[int]) -> int:
    """Return the number of K whose K + 1 is no power of two."""
    return sum(bool((k + 1) & k) for k in ks)


def _fastest_lengths(
    speeds: Speeds, batches: Sequence[int], allowed: Sequence[set[int]], entries: float
) -> list[int]:
    """Return the allowed K by place with the highest geometric mean speed in `entries` entries."""
    states: dict[tuple[int, int], tuple[float, _Path | None]] = {(0, -1): (0.0, None)}
    for place, batch in enumerate(batches):
        next_states: dict[tuple[int, int], tuple[float, _Path | None]] = {}
        for (count, previous), (log_speed, path) in states.items():
            for k in allowed[place]:
                entry_count = count + (k != previous)
                log_total = log_speed + math.log(speeds[batch][k])
                if (
                    entry_count <= entries
                    and log_total > next_states.get((entry_count, k), (-math.inf, None))[0]
                ):
                    next_states[entry_count, k] = (
                        log_total,
                        path if k == previous else (k, place, path),
                    )
        states = next_states
    _, best = max(states.values(), key=lambda state: state[0])
    starts = {first: k for k, first in _entries(best)}
    lengths: list[int] = []
    for place in range(len(batches)):
        lengths.append(starts.get(place, lengths[-1] if lengths else 0))
    return lengths
