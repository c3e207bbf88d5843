"""Which tuned file a backend itself would open, given its name and the folders it looks in."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from nearfree.errors import EvidenceError
from nearfree.events.types import TunedIndexed
from nearfree.sources.answers.nearest import tuned_intervals

NEWEST_FIRST = "newest first"


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
        The running Triton's version. Without it, the answer must be the same for any.
    last
        The largest number of tokens that is asked for.

    Raises
    ------
    EvidenceError
        The answer depends on `triton` and that is not given, or the file is odd.
    """
    files = [each for each in index if PurePosixPath(each.file).name == name]
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
    answers = {_answer(each, last) for each in (*by_triton.values(), fallback)}
    if by_triton and len(answers) > 1:
        versions = ", ".join(sorted(by_triton, key=_numbers))
        raise EvidenceError(
            f"which {name} is opened depends on the running Triton; there are files for {versions}",
            remedy="Name its version with --triton",
        )
    return fallback


def _answer(event: TunedIndexed | None, last: int) -> object:
    if event is None or event.odd is not None:
        return None if event is None else event.odd
    return tuple(tuned_intervals(event.tokens, event.block_size_m, 1, last))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
