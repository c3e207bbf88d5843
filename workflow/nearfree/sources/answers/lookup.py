"""Which tuned file a backend itself would open, given its name and the folders it looks in."""

from collections.abc import Sequence

from msgspec.structs import replace

from nearfree.errors import EvidenceError
from nearfree.log.events import TunedIndexed
from nearfree.sources.answers.nearest import tuned_intervals

NEWEST_FIRST = "newest first"
_OTHERS = ("block_size_n", "block_size_k", "group_size_m")


def find_tuned(
    index: Sequence[TunedIndexed],
    name: str,
    *,
    folders: str | None,
    triton: str | None = None,
    last: int,
) -> TunedIndexed | None:
    """Return the file that a release would open, None if it would use the rule in its source.

    Only the file of the up projection is sought: it alone chooses BLOCK_SIZE_M, as both
    projections share one sorting of the tokens.

    Parameters
    ----------
    index
        The files of one release.
    name
        The file's name, as the release's own rule makes it.
    folders
        None where all files lie in one folder; else the order in which the folders of Triton
        versions are searched after the running one's: versions apart by blanks, or NEWEST_FIRST.
    triton
        The running Triton's version. Without it, BLOCK_SIZE_M must be the same for any, and of
        the other sizes the file that is returned holds those that are.
    last
        The largest number of tokens that is asked for.

    Raises
    ------
    EvidenceError
        The answer depends on `triton` and that is not given, or the file is odd.
    """
    files = [each for each in index if file_name(each) == name]
    if folders is None:
        found = next((each for each in files if each.triton is None), None)
    else:
        found = _in_folders(files, name, folders, triton, last)
    if found is not None and found.odd is not None:
        raise EvidenceError(
            f"{found.file} of {found.package} {found.version} would be opened, but: {found.odd}",
            remedy="Read the file; no answer rests on a form that is not known",
        )
    return found


def file_name(event: TunedIndexed) -> str:
    """Return a file's name without its folders; paths inside an artefact have slashes."""
    return event.file.rpartition("/")[2]


def devices(index: Sequence[TunedIndexed]) -> list[str]:
    """Return the names of the devices that files of a known form are for, ordered."""
    return sorted({event.device for event in index if event.device and event.odd is None})


def _in_folders(
    files: list[TunedIndexed], name: str, folders: str, triton: str | None, last: int
) -> TunedIndexed | None:
    by_triton = {each.triton: each for each in files if each.triton is not None}
    order = folders.split()
    if folders == NEWEST_FIRST:
        order = sorted(by_triton, key=_numbers, reverse=True)
    fallback = next((by_triton[each] for each in order if each in by_triton), None)
    if triton is not None:
        return by_triton.get(triton, fallback)
    # A running Triton with a folder of its own opens that; any other one opens the fallback.
    candidates = [*by_triton.values(), fallback]
    if by_triton and len({_answer(each, "block_size_m", last) for each in candidates}) > 1:
        versions = ", ".join(sorted(by_triton, key=_numbers))
        raise EvidenceError(
            f"which {name} is opened depends on the running Triton; there are files for {versions}",
            remedy="Name its version with --triton",
        )
    if fallback is None:
        return None
    differ = [
        each for each in _OTHERS if len({_answer(file, each, last) for file in candidates}) > 1
    ]
    return replace(fallback, **dict.fromkeys(differ, ()))


def _answer(event: TunedIndexed | None, size: str, last: int) -> object:
    if event is None or event.odd is not None:
        return None if event is None else event.odd
    values: tuple[int, ...] = getattr(event, size)
    return tuple(tuned_intervals(event.tokens, values, 1, last)) if values else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
