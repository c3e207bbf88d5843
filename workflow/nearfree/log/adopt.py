"""Adoption: takes of a named machine enter the repository, with a line in the tracked ledger.

What nothing is read of any more can be retired: it leaves the repository, with a line there, too.
"""

import subprocess
from collections.abc import Container, Sequence
from pathlib import Path

from nearfree.errors import EvidenceError, LogError
from nearfree.log.evidence import RETRACTED, is_simulated, read_take
from nearfree.log.ledger import write_ledger
from nearfree.log.line import sha256
from nearfree.log.names import Layout, TakeName, check_part, take_of
from nearfree.log.reader import read_bytes
from nearfree.log.seal import check_sealed, read_seal


def _git(*args: str) -> str:
    try:
        done = subprocess.run(["git", *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise LogError(
            f"git {args[0]} failed: {detail.strip()}",
            remedy="Adopt from inside a clone of the project",
        ) from error
    return done.stdout


def adopted(layout: Layout) -> set[TakeName]:
    """Return the takes whose seals git tracks."""
    listed = _git("ls-files", "-z", "--", str(layout.events)).split("\0")
    below = (Path(name) for name in listed if name.endswith(".seal.json"))
    takes = {take_of(Path(*path.parts[-3:])) for path in below}
    return {take for take in takes if take is not None}


def adopt(layout: Layout, config: Path, scope: str, stream: str | None = None) -> list[TakeName]:
    """Add a scope's sealed takes and a new tracked ledger to git's index; return the new takes.

    Every take is verified first; the user commits.

    Raises
    ------
    EvidenceError
        There is nothing sealed to adopt.
    """
    check_part(scope)
    if stream is not None:
        check_part(stream)
    before = adopted(layout)
    takes = layout.takes(scope, stream)
    if stream not in (None, RETRACTED) and takes:
        takes += layout.takes(scope, RETRACTED)  # else a clone would believe what is retracted
    if not takes:
        raise EvidenceError(
            f"{scope}{'/' + stream if stream else ''} holds no sealed take",
            remedy="Measure first: `nearfree log show` lists what there is",
        )
    for take in takes:
        if is_simulated(layout, take):
            raise EvidenceError(
                f"{take} is simulated: the repository keeps what was measured",
                remedy="Keep its curve file instead, from which it can be made again",
            )
    seals = {take: read_seal(layout, take) for take in sorted(before.union(takes))}
    for seal in seals.values():
        check_sealed(layout, seal)
    new = [take for take in takes if take not in before]
    for take in new:
        seal = seals[take]
        files = [layout.seal(take), *(layout.segment(take, p.attempt) for p in seal.segments)]
        _git("add", "-f", "--", *map(str, files))
    _git("add", "-f", "--", str(write_ledger(layout, layout.ledgers, config, takes=seals)))
    return new


def retire(
    layout: Layout, config: Path, takes: Sequence[TakeName], read: Container[str]
) -> list[TakeName]:
    """Take adopted takes out of git's index and the log; return them.

    A new tracked ledger says that they are gone, with the digests of their seals; the repository's
    history has their bytes. The user commits.

    Parameters
    ----------
    read
        The events that are read, by their ids: a take with one of them stays.

    Raises
    ------
    EvidenceError
        A take is not adopted, or something of it is read.
    """
    before, takes = adopted(layout), list(dict.fromkeys(takes))
    seals = {take: read_seal(layout, take) for take in sorted(before.union(takes))}
    for take in takes:
        if take not in before:
            raise EvidenceError(
                f"{take} is not adopted: no ledger would say where it went",
                remedy="`nearfree log retract` declares a take invalid, which stays",
            )
        still = [event.event_id for event in read_take(layout, take).events
                 if event.event_id in read]  # fmt: skip
        if still:
            raise EvidenceError(
                f"{take} is still read: {still[0]}", remedy="Retire what nothing is read of"
            )
    for seal in seals.values():
        check_sealed(layout, seal)
    gone = {str(take): sha256(read_bytes(layout.seal(take))) for take in takes}
    stay = [take for take in seals if take not in set(takes)]
    ledger = write_ledger(layout, layout.ledgers, config, takes=stay, retired=gone)
    _git("add", "-f", "--", str(ledger))
    for take in takes:
        layout.receipt(take).unlink(missing_ok=True)
        files = [
            layout.seal(take),
            *(layout.segment(take, p.attempt) for p in seals[take].segments),
        ]
        _git("rm", "-q", "-f", "--", *map(str, files))
    return takes
