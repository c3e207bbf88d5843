"""What can go wrong, as one small tree.

NearfreeError
├── ConfigError      a file under config/ asks for something that is not there
│   └── RefusedError a model's files ask for what is not understood: every reason at once
├── LogError         an event log cannot be read or written
│   ├── DamageError  bytes that are not what was written
│   ├── BusyError    another writer holds the same name
│   └── WriteError   the disk did not take what was given
├── TableError       a table breaks its schema or its manifest
├── SourceError      a package's source is not to be had, is damaged, or has no known form
│   ├── LackingError           a release holds none of the files that are looked for
│   └── UnknownConstructError  a construct of a source is outside the known set
├── StoppedError     somebody, such as a batch system, ended the run
├── LockError        an interpreter is not what its lock names, or cannot be made from it
├── SchedulerError   the cluster's batch system is not there, or refuses a job
├── HardwareError    this machine is not what the log says it is, or lacks what is asked
└── EvidenceError    a rule, fact or measurement that an answer needs is not in the log
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


def printable(text: str) -> str:
    """Return a text as one line without control characters; unprintable ones are escaped."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def printable_json(text: str) -> str:
    """Return JSON as the same JSON without characters that a terminal acts on; lines stay."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]

    return re.sub(r"[^\x20-\x7e\n]", escaped, text)


class NearfreeError(Exception):
    """A mistake or fault that the user can act on; ends the command with exit code 2.

    Parameters
    ----------
    what
        What happened and to which input, as one sentence without a final stop.
    remedy
        What to do about it.
    """

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


class ConfigError(NearfreeError):
    """A file under config/ asks for something that is not there."""


class Refusal(NamedTuple):
    """One thing that a file asks for and that is not understood, as the command line prints it."""

    file: str
    key: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} {self.reason}" if self.key else self.reason


class RefusedError(ConfigError):
    """A model's files ask for what is not understood.

    Parameters
    ----------
    refusals
        Every reason, at least one.
    """

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(dict.fromkeys(refusals))
        if len(self.refusals) == 1:
            (only,) = self.refusals
            where = f"{only.file}: " if only.file else ""
            super().__init__(printable(f"{where}{only}"), remedy=only.remedy)
            return
        named = dict.fromkeys(each.file for each in self.refusals if each.file)
        one = len(named) == 1
        files = printable(f"{', '.join(named)}: ") if one else ""
        each_file = ["" if one or not each.file else f"{each.file}: " for each in self.refusals]
        reasons = "".join(
            f"\n  {printable(f'{where}{each}. {each.remedy}')}"
            for where, each in zip(each_file, self.refusals, strict=True)
        )
        what = "are not understood" if named else "stand in the way of an answer"
        without = ", or give a model without them" if named else ""
        super().__init__(
            f"{files}{len(self.refusals)} things {what}:{reasons}",
            remedy=f"Mend all of them{without}",
        )


class Refusals:
    """The reasons that were found in files so far, of which all are told at once."""

    def __init__(self) -> None:
        self.found: list[Refusal] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep what is refused within, and go on behind it."""
        try:
            yield
        except RefusedError as error:
            self.add(error)

    def add(self, error: RefusedError) -> None:
        """Keep what was refused."""
        self.found += error.refusals

    def check(self) -> None:
        """Raise RefusedError with all that was found, if anything was."""
        if self.found:
            raise RefusedError(self.found)


class LogError(NearfreeError):
    """An event log cannot be read or written."""


class DamageError(LogError):
    """Bytes of the log that are not what was written."""


class BusyError(LogError):
    """Another writer holds the same name."""


class WriteError(LogError):
    """The disk did not take what was given."""


class TableError(NearfreeError):
    """A table breaks its schema or its manifest."""


MOVED = "This release keeps its rule elsewhere: its reader must learn where"
"""What to do about a rule that is not where its reader looks for it."""


class SourceError(NearfreeError):
    """A package's source is not to be had, is damaged, or holds no rule of the known form.

    Parameters
    ----------
    what
        What happened and to which input, as one sentence without a final stop.
    remedy
        What to do about it.
    """

    def __init__(
        self, what: str, *, remedy: str = "This release needs a reader of its own: report it"
    ) -> None:
        super().__init__(what, remedy=remedy)


class LackingError(SourceError):
    """A release holds none of the files that are looked for."""


class UnknownConstructError(SourceError):
    """A construct of a source is outside the known set.

    Parameters
    ----------
    what
        What it is.
    node
        The part of a syntax tree; where it knows its file and line, the message begins with them.
    remedy
        What to do about it.
    """

    def __init__(
        self,
        what: str,
        node: object = None,
        *,
        remedy: str = "This rule needs a reader of its own: report it",
    ) -> None:
        line, origin = getattr(node, "lineno", None), getattr(node, "origin", None)
        where = f"{origin.path} line {line}: " if line and origin else ""
        super().__init__(f"{where}{what}", remedy=remedy)


class StoppedError(NearfreeError):
    """Somebody, such as a batch system, ended the run."""


class LockError(NearfreeError):
    """An interpreter is not what its lock names, or cannot be made from it."""


class SchedulerError(NearfreeError):
    """The cluster's batch system is not there, or refuses a job."""


class HardwareError(NearfreeError):
    """A machine is not what the log says it is, or lacks what is asked."""


class EvidenceError(NearfreeError):
    """A rule, fact or measurement that an answer needs is not in the log."""
