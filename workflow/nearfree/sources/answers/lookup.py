"""The tuned file that a backend itself would open, and the entry of it that holds at M tokens."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from nearfree.errors import EvidenceError
from nearfree.log.events import TunedIndexed

Value = TypeVar("Value")


class Interval(NamedTuple, Generic[Value]):
    """A range of M tokens, both ends included, over which one value holds."""

    first: int
    last: int
    value: Value


def nearest(tokens: Sequence[int], m: int) -> int:
    """Return the index of the entry that a backend takes at `m` tokens.

    It is the nearest, `min(keys, key=abs(key - M))`; of two equally near keys Python's `min` takes
    the first in the file. Source: `try_get_optimal_moe_config` in every release of vLLM and SGLang.

    Raises
    ------
    EvidenceError
        There is no entry.
    """
    _require_entries(tokens)
    distances = [abs(key - m) for key in tokens]
    return distances.index(min(distances))


def tuned_intervals(
    tokens: Sequence[int], values: Sequence[Value], first: int, last: int
) -> list[Interval[Value]]:
    """Return the value of each M from `first` to `last`, as intervals in ascending order.

    Neighbours differ in their value: equal entries form one interval. The list is empty if last <
    first.

    Raises
    ------
    EvidenceError
        There is no entry.
    """
    _require_entries(tokens)
    entries: dict[int, Value] = {}
    for key, value in zip(tokens, values, strict=True):
        entries.setdefault(key, value)  # of equal keys the first one counts
    file_index = {key: index for index, key in enumerate(entries)}
    keys = sorted(entries)
    # Only the two neighbouring keys can be nearest to an M.
    ends = [_last_of_lower(low, high, file_index) for low, high in pairwise(keys)]
    intervals: list[Interval[Value]] = []
    start = first
    for key, end in zip(keys, [*ends, last], strict=True):
        stop = min(end, last)
        if stop < start:
            continue
        if intervals and intervals[-1].value == entries[key]:
            intervals[-1] = intervals[-1]._replace(last=stop)
        else:
            intervals.append(Interval(start, stop, entries[key]))
        start = stop + 1
    return intervals


def _last_of_lower(low: int, high: int, file_index: dict[int, int]) -> int:
    """Return the largest M at which the lower of two neighbouring keys is taken."""
    # If their sum is even, an M halfway between them exists; it goes to the first in the file.
    return (low + high) // 2 if file_index[low] < file_index[high] else (low + high - 1) // 2


def _require_entries(tokens: Sequence[int]) -> None:
    if not tokens:
        raise EvidenceError(
            "a tuned file without entries chooses no block size",
            remedy="Use the rule in the source, or mend the file",
        )


NEWEST_FIRST = "newest first"
OTHER_SIZES = ("block_size_n", "block_size_k", "group_size_m", "num_warps", "num_stages")
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3
"""Triton 3.6.0's defaults, for a configuration that sets none: backends/nvidia/compiler.py,
CUDAOptions.
"""


class TunedFiles:
    """The tuned files of a release, by name.

    `opened` caches the opened file of each query, None if it opens none.
    """

    def __init__(self, files: Sequence[TunedIndexed]) -> None:
        self.files = tuple(files)
        self.opened: dict[tuple[object, ...], TunedIndexed | None] = {}
        self._named: dict[str, list[TunedIndexed]] = {}
        for file in self.files:
            self._named.setdefault(file_name(file), []).append(file)

    def named(self, name: str) -> list[TunedIndexed]:
        """Return the files of a name, in any folder."""
        return self._named.get(name, [])


def find_tuned(
    index: TunedFiles,
    name: str,
    *,
    folders: str | None,
    triton: str | None = None,
    last: int,
) -> TunedIndexed | None:
    """Return the file that a release would open, None if it would use the rule in its source.

    Only the up projection's file is looked up: it alone chooses BLOCK_SIZE_M, as both projections
    share one sorting of the tokens.

    Parameters
    ----------
    name
        The file's name, made by the release's own rule.
    folders
        None if all files lie in one folder. Else the order in which the folders of other Triton
        versions are searched after the running one's: versions separated by blanks, or
        NEWEST_FIRST.
    triton
        The running Triton's version. Without it, BLOCK_SIZE_M must be the same for any version, and
        the returned file keeps only those other sizes that are.
    last
        The largest number of tokens of the query.

    Raises
    ------
    EvidenceError
        The answer depends on `triton` and that is not given, the file is odd, or it lies in a
        folder of a Triton version although the release's rules name no such folders.
    """
    files = index.named(name)
    if folders is None:
        opened = next((file for file in files if file.triton is None), None)
        if files and opened is None:
            raise EvidenceError(
                f"{files[0].package} {files[0].version} has {name} in folders of Triton versions, "
                "and which of them it opens is not read",
                remedy="Ask about another release, or set the block with --override",
            )
    else:
        opened = _in_folders(files, name, folders, triton, last)
    if opened is not None and opened.odd is not None:
        raise EvidenceError(
            f"{opened.file} of {opened.package} {opened.version} would be opened, but:"
            f" {opened.odd}",
            remedy="Read the file: an unknown form gives no answer",
        )
    return opened


def file_name(event: TunedIndexed) -> str:
    """Return a file's name without its folders; paths inside an artefact have slashes."""
    return event.file.rpartition("/")[2]


def devices(index: Sequence[TunedIndexed]) -> list[str]:
    """Return the names of the devices that files of a known form are for, sorted."""
    return sorted({event.device for event in index if event.device and event.odd is None})


def _in_folders(
    files: list[TunedIndexed], name: str, folders: str, triton: str | None, last: int
) -> TunedIndexed | None:
    by_triton = {file.triton: file for file in files if file.triton is not None}
    order = folders.split()
    if folders == NEWEST_FIRST:
        order = sorted(by_triton, key=_version_key, reverse=True)
    fallback = next((by_triton[folder] for folder in order if folder in by_triton), None)
    if triton is not None:
        return by_triton.get(triton, fallback)
    # A running Triton with a folder of its own opens that; any other one opens the fallback.
    candidates = [*by_triton.values(), fallback]
    if by_triton and len({_size_intervals(file, "block_size_m", last) for file in candidates}) > 1:
        versions = ", ".join(sorted(by_triton, key=_version_key))
        raise EvidenceError(
            f"which {name} is opened depends on the running Triton; there are files for {versions}",
            remedy="Name its version with --triton",
        )
    if fallback is None:
        return None
    differ = [
        size
        for size in OTHER_SIZES
        if len({_size_intervals(file, size, last) for file in candidates}) > 1
    ]
    return replace(fallback, **dict.fromkeys(differ, ()))


def _size_intervals(event: TunedIndexed | None, size: str, last: int) -> object:
    if event is None or event.odd is not None:
        return None if event is None else event.odd
    values: tuple[int, ...] = getattr(event, size)
    return tuple(tuned_intervals(event.tokens, values, 1, last)) if values else ()


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
