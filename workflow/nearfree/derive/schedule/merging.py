"""Schedules of few entries: by expected tokens per second, or below near-free draft lengths.

Engines capture CUDA graphs for each distinct K and look a schedule up in every step, so an entry
has to be worth its place. Expected tokens per second are within a share `worth` of the best at
every batch size. Without an acceptance these are not known: then K is only lowered, to one that is
near-free itself, the positions K + 1 stand for them, and each doubling of the batch counts as much
as any other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby, islice, pairwise

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.errors import ConfigError

MOST_ENTRIES, MOST_LENGTHS = 6, 5
"""Entries and distinct K of a schedule of near-free lengths; those that few are, of any."""
_WORTHS = (*(share / 1000 for share in range(1, 50)), *(share / 100 for share in range(5, 21)))
"""Shares of tokens per second that few entries may lose, where those within a worth are many."""
_MOST_SETS = 50_000
"""Sets of K that are tried; beyond them the lengths of a schedule of fewest entries stand."""
Speeds = Mapping[int, Mapping[int, float]]
NearFree = Mapping[int, frozenset[int]]
"""The near-free K by batch size, 0 among each."""
_Path = tuple[int, int, "_Path | None"]
_States = dict[tuple[int, bool, int], tuple[float, _Path | None]]


def check_worth(worth: float) -> None:
    """Refuse what is no share below 1; ConfigError."""
    if not 0 <= worth < 1:
        raise ConfigError(f"an entry's worth is {worth:g}", remedy="Give a share from 0 to below 1")


def merged_by_speed(speeds: Speeds, worth: float) -> dict[int, int]:
    """Return K by batch size: fewest entries within `worth` of the best, then fewest distinct K.

    Of the sets of K that make such schedules it is the first, in rising order, with most K + 1 that
    are powers of two (vLLM keeps its full graphs there); a K that another one stands for at all its
    batch sizes is in none. With these K it is the schedule of most expected tokens per second on
    the geometric mean over the batches.

    Parameters
    ----------
    speeds
        Expected tokens per second by K, by batch size, in any unit.
    worth
        The share of the best that a batch size may lose; 0 merges equal neighbours alone.
    """
    check_worth(worth)
    batches = sorted(speeds)
    most = {b: max(speeds[b].values()) for b in batches}
    if not worth:
        return {b: min(k for k, v in speeds[b].items() if v == most[b]) for b in batches}
    allowed = [{k for k, v in speeds[b].items() if v >= (1 - worth) * most[b]} for b in batches]
    lasting = _lasting(allowed)
    entries, greedy = _fewest(lasting, sorted(set().union(*allowed)))
    sets = list(islice(_sets(_worthwhile(allowed), len(greedy)), _MOST_SETS))
    found = [each for each in sets if _fewest(lasting, each)[0] == entries]
    few = min(map(len, found), default=len(greedy))
    best = min((each for each in found if len(each) == few), key=_odd, default=sorted(greedy))
    lengths = _fastest(speeds, batches, [mine & {*best} for mine in allowed], entries)
    return dict(zip(batches, lengths, strict=True))


def few_by_speed(speeds: Speeds, worth: float) -> dict[int, int]:
    """Return K by batch size as `merged_by_speed`, in few entries.

    Where those within `worth` are many, they are those within the next share that makes few; with
    `worth` 0 all stay.
    """
    merged = merged_by_speed(speeds, worth)
    if _few(merged) or not worth:
        return merged
    larger = (merged_by_speed(speeds, each) for each in _WORTHS if each > worth)
    return next(filter(_few, larger), merged)


def losses(speeds: Speeds, lengths: Mapping[int, int]) -> tuple[float, float]:
    """Return what lengths lose of the best expected tokens per second: at worst, and in the mean.

    Parameters
    ----------
    speeds
        As of `merged_by_speed`.
    lengths
        K by batch size.
    """
    lost = [1 - speeds[batch][k] / max(speeds[batch].values()) for batch, k in lengths.items()]
    return max(lost), sum(lost) / len(lost)


def _few(lengths: Mapping[int, int]) -> bool:
    parts = ranges(lengths)
    return len(parts) <= MOST_ENTRIES and len({part.k for part in parts}) <= MOST_LENGTHS


def merged_below(near_free: NearFree, worth: float) -> dict[int, int]:
    """Return near-free K by batch size in few entries.

    K rises with the batch up to some size and falls from there on, so that noise makes no entries.
    At most `MOST_ENTRIES`, with `MOST_LENGTHS` distinct K, that lose fewest positions K + 1 (the
    mean logarithm over the logarithm of the batch size); an entry that the mean gains less than
    `worth` by is left out.

    Parameters
    ----------
    near_free
        The near-free K by batch size from 1; a shorter one than the longest need not be near-free.
    worth
        A share of positions; 0 merges equal neighbours alone.

    Raises
    ------
    ConfigError
        As `draft_lengths.ranges`, or `worth` is no share.
    """
    check_worth(worth)
    longest = {batch: max(near_free[batch]) for batch in sorted(near_free)}
    last = ranges(longest)[-1].last
    if not worth:
        return longest
    ends: dict[int, tuple[float, _Path]] = {}
    for (entries, _, _), (loss, path) in _below(near_free).items():
        few = path is not None and len({k for k, _ in _entries(path)}) <= MOST_LENGTHS
        if few and path and (entries not in ends or loss < ends[entries][0]):
            ends[entries] = loss, path
    least = min(loss for loss, _ in ends.values())
    allowed = least + worth * math.log(last + 1)
    path = next(path for _, (loss, path) in sorted(ends.items()) if loss <= allowed)
    starts = sorted((first, k) for k, first in _entries(path))
    return {b: next(k for first, k in reversed(starts) if first <= b) for b in longest}


def _below(near_free: NearFree) -> _States:
    """Return the least loss by (entries, falling, last K), and the entries that have it."""
    ks = sorted(set[int]().union(*near_free.values()))
    runs = groupby(sorted(near_free), near_free.__getitem__)
    parts = [(next(run), able) for able, run in runs]
    end = max(near_free) + 1, frozenset[int]()
    states: _States = {(0, False, -1): (0.0, None)}
    for (first, able), (after, _) in pairwise([*parts, end]):
        weight, most = math.log(after / first), max(able)
        new: _States = {}
        for entries in range(1, MOST_ENTRIES + 1):
            for falling in (False, True):
                before = (falling, True) if falling else (False,)
                for k, switched in _switched(states, entries - 1, before, ks):
                    if k not in able:
                        continue
                    stays = states.get((entries, falling, k))
                    options = [stays] if stays else []
                    if switched:
                        options.append((switched[0], (k, first, switched[1])))
                    if options:
                        loss, path = min(options, key=lambda option: option[0])
                        lost = weight * math.log((most + 1) / (k + 1))
                        new[entries, falling, k] = loss + lost, path
        states = new
    return states


def _switched(
    states: _States, entries: int, before: Sequence[bool], ks: Sequence[int]
) -> Iterator[tuple[int, tuple[float, _Path | None] | None]]:
    """Yield for each K the best state of one entry less that it may follow."""
    falls = True in before
    best = None if falls else states.get((entries, False, -1))
    for k in reversed(ks) if falls else ks:
        yield k, best
        for phase in (False, True) if falls else (False,):
            state = states.get((entries, phase, k))
            if state and (best is None or state[0] < best[0]):
                best = state


def _entries(path: _Path | None) -> Iterator[tuple[int, int]]:
    while path:
        k, first, path = path
        yield k, first


def _lasting(allowed: Sequence[set[int]]) -> list[dict[int, int]]:
    """Return up to which place each K that is allowed at a place goes on to be."""
    found: list[dict[int, int]] = []
    after: dict[int, int] = {}
    for place in range(len(allowed) - 1, -1, -1):
        after = {k: after.get(k, place) for k in allowed[place]}
        found.append(after)
    return found[::-1]


def _fewest(lasting: Sequence[Mapping[int, int]], ks: Sequence[int]) -> tuple[float, set[int]]:
    """Return how many entries these K need, infinity where they do not do, and those taken."""
    place, entries, taken = 0, 0, set[int]()
    while place < len(lasting):
        here = lasting[place]
        able = [k for k in ks if k in here]
        if not able:
            return math.inf, taken
        k = max(able, key=here.__getitem__)
        place, entries = here[k] + 1, entries + 1
        taken.add(k)
    return entries, taken


def _worthwhile(allowed: Sequence[set[int]]) -> list[int]:
    """Return the K that no other stands for at all its batch sizes, powers of two preferred."""
    where: dict[int, set[int]] = {}
    for place, ks in enumerate(allowed):
        for k in ks:
            where.setdefault(k, set()).add(place)
    kept: list[int] = []
    for k in sorted(where, key=lambda k: (-len(where[k]), _odd([k]), k)):
        if not any(where[k] <= where[o] and _odd([o]) <= _odd([k]) for o in kept):
            kept.append(k)
    return sorted(kept)


def _sets(ks: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    for size in range(1, most + 1):
        yield from combinations(ks, size)


def _odd(ks: Sequence[int]) -> int:
    """Return how many K + 1 are no power of two."""
    return sum(bool((k + 1) & k) for k in ks)


def _fastest(
    speeds: Speeds, batches: Sequence[int], allowed: Sequence[set[int]], entries: float
) -> list[int]:
    """Return K by place of most tokens per second, in no more entries, of those allowed."""
    states: dict[tuple[int, int], tuple[float, _Path | None]] = {(0, -1): (0.0, None)}
    for place, batch in enumerate(batches):
        new: dict[tuple[int, int], tuple[float, _Path | None]] = {}
        for (count, before), (gain, path) in states.items():
            for k in allowed[place]:
                now = count + (k != before)
                total = gain + math.log(speeds[batch][k])
                if now <= entries and total > new.get((now, k), (-math.inf, None))[0]:
                    new[now, k] = total, path if k == before else (k, place, path)
        states = new
    _, best = max(states.values(), key=lambda state: state[0])
    starts = {first: k for k, first in _entries(best)}
    lengths: list[int] = []
    for place in range(len(batches)):
        lengths.append(starts.get(place, lengths[-1] if lengths else 0))
    return lengths
