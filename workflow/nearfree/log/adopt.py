"""Adoption: put sealed takes into the repository and list them in its tracked ledger.

A take that nothing reads any more can be retired: a new ledger records it, and git removes it.
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
from nearfree.log.seal import Seal, check_sealed, read_seal


def _git(*args: str) -> str:
    try:
        completed = subprocess.run(["git", *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise LogError(
            f"git {args[0]} failed: {detail.strip()}",
            remedy="Adopt from inside a clone of the project",
        ) from error
    return completed.stdout


def adopted_takes(layout: Layout) -> set[TakeName]:
    """Return the takes whose seals git tracks."""
    names = _git("ls-files", "-z", "--", str(layout.events)).split("\0")
    paths = (Path(name) for name in names if name.endswith(".seal.json"))
    takes = {take_of(Path(*path.parts[-3:])) for path in paths}
    return {take for take in takes if take is not None}


def adopt(layout: Layout, config: Path, scope: str, stream: str | None = None) -> list[TakeName]:
    """Add a scope's sealed takes and a new tracked ledger to git's index; return the new takes.

    Every take is verified first; the user commits.

    Raises
    ------
    EvidenceError
        The scope holds no sealed take, or one of its takes is simulated.
    """
    check_part(scope)
    if stream is not None:
        check_part(stream)
    adopted_before = adopted_takes(layout)
    takes = layout.takes(scope, stream)
    if stream not in (None, RETRACTED) and takes:
        takes += layout.takes(scope, RETRACTED)  # else a clone would use retracted takes
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
    seals = {take: read_seal(layout, take) for take in sorted(adopted_before.union(takes))}
    for seal in seals.values():
        check_sealed(layout, seal)
    new_takes = [take for take in takes if take not in adopted_before]
    for take in new_takes:
        _git("add", "-f", "--", *_files(layout, seals[take]))
    _git("add", "-f", "--", str(write_ledger(layout, layout.ledgers, config, takes=seals)))
    return new_takes


def retire(
    layout: Layout, config: Path, takes: Sequence[TakeName], used_events: Container[str]
) -> list[TakeName]:
    """Remove adopted takes from git's index and from the log; return them.

    A new tracked ledger lists them as retired, with the SHA-256 of their seals; their bytes stay in
    the repository's history. The user commits.

    Parameters
    ----------
    used_events
        The ids of events that something reads: a take with one of them is refused.

    Raises
    ------
    EvidenceError
        A take is not adopted, or one of its events is still used.
    """
    adopted_before, takes = adopted_takes(layout), list(dict.fromkeys(takes))
    seals = {take: read_seal(layout, take) for take in sorted(adopted_before.union(takes))}
    for take in takes:
        if take not in adopted_before:
            raise EvidenceError(
                f"{take} is not adopted: no ledger would say where it went",
                remedy="Use `nearfree log retract`, which declares a take invalid and keeps it",
            )
        used = [event.event_id for event in read_take(layout, take).events
                 if event.event_id in used_events]  # fmt: skip
        if used:
            raise EvidenceError(
                f"{take} is still read: {used[0]}", remedy="Retire only takes that nothing reads"
            )
    for seal in seals.values():
        check_sealed(layout, seal)
    retired_seals = {str(take): sha256(read_bytes(layout.seal(take))) for take in takes}
    remaining = [take for take in seals if take not in set(takes)]
    ledger = write_ledger(layout, layout.ledgers, config, takes=remaining, retired=retired_seals)
    _git("add", "-f", "--", str(ledger))
    for take in takes:
        layout.receipt(take).unlink(missing_ok=True)
        _git("rm", "-q", "-f", "--", *_files(layout, seals[take]))
    return takes


def _files(layout: Layout, seal: Seal) -> list[str]:
    """Return the files of a sealed take: its seal and its segments."""
    segments = (layout.segment(seal.name, part.attempt) for part in seal.segments)
    return list(map(str, (layout.seal(seal.name), *segments)))
