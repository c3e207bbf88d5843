"""The exceptions, as one small tree.

NearfreeError
├── ConfigError      a file under config/ is invalid or names something that does not exist
│   └── RefusedError a model's files need something unsupported; it lists every reason
├── LogError         an event log cannot be read or written
│   ├── DamageError  bytes that differ from what was written
│   ├── BusyError    another writer holds the same name
│   └── WriteError   a file could not be written
├── TableError       a table does not match its schema or its manifest
├── SourceError      a package's source is unavailable, damaged, or of unknown form
│   ├── LackingError           a release holds none of the required files
│   ├── MovedError             a rule is not where its reader looks for it
│   └── UnknownConstructError  a construct in the source is not supported
├── StoppedError     the run was ended from outside, as by a batch system
├── LockError        an environment differs from its lock, or cannot be made from it
├── SchedulerError   the cluster's batch system is missing, or refuses a job
├── HardwareError    the machine is not the platform, or lacks a requested device or tool
└── EvidenceError    a rule, fact or measurement that an answer needs is missing
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

Read = TypeVar("Read")
Default = TypeVar("Default")


def printable(text: str) -> str:
    """Return a text as one line, with unprintable characters escaped."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def printable_json(text: str) -> str:
    """Return JSON with every control and non-printable character escaped; newlines stay."""

    def escaped(match: re.Match[str]) -> str:
        return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]

    return re.sub(r"[^\x20-\x7e\n]", escaped, text)


class NearfreeError(Exception):
    """An error that the user can act on; it ends the command with exit code 2.

    Parameters
    ----------
    what
        What happened, to which input: one sentence without a final full stop.
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
    """A file under config/ is invalid or names something that does not exist."""


class Refusal(NamedTuple):
    """One key of a file that is not supported, with the reason and the remedy."""

    file: str
    key: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} {self.reason}" if self.key else self.reason


class RefusedError(ConfigError):
    """A model's files need something unsupported, or a file has several faults.

    Parameters
    ----------
    refusals
        Every reason, at least one.
    heading
        The words before several reasons (default: their number, and their file if it is one).
    listed
        The most reasons that the message lists before it counts the others (default: all).
    """

    def __init__(
        self, refusals: Sequence[Refusal], *, heading: str = "", listed: int | None = None
    ) -> None:
        self.refusals = tuple(dict.fromkeys(refusals))
        if len(self.refusals) == 1:
            (refusal,) = self.refusals
            where = f"{refusal.file}: " if refusal.file else ""
            super().__init__(printable(f"{where}{refusal}"), remedy=refusal.remedy)
            return
        files_named = dict.fromkeys(refusal.file for refusal in self.refusals if refusal.file)
        one_file = len(files_named) == 1
        files = printable(f"{', '.join(files_named)}: ") if one_file else ""
        prefixes = [
            "" if one_file or not refusal.file else f"{refusal.file}: " for refusal in self.refusals
        ]
        reasons = "".join(
            f"\n  {printable(f'{where}{refusal}. {refusal.remedy}')}"
            for where, refusal in list(zip(prefixes, self.refusals, strict=True))[:listed]
        )
        further = len(self.refusals[listed:]) if listed else 0
        more = f"\n  and {further} more" if further else ""
        problem = "are not understood" if files_named else "stand in the way of an answer"
        heading = printable(heading) or f"{files}{len(self.refusals)} things {problem}"
        alternative = ", or give a model without them" if files_named else ""
        super().__init__(
            f"{heading}:{reasons}{more}",
            remedy=f"Mend all of them{alternative}",
        )


class Refusals:
    """Collects refusals, so that one error reports all of them."""

    def __init__(self) -> None:
        self.found: list[Refusal] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect the refusals raised inside the `with` block, and continue after it."""
        try:
            yield
        except RefusedError as error:
            self.add(error)

    def read(self, reader: Callable[[], Read], default: Default) -> Read | Default:
        """Return what a reader returns; if it is refused, collect that and return the default."""
        with self.collect():
            return reader()
        return default

    def add(self, error: RefusedError) -> None:
        """Collect the refusals of an error."""
        self.found += error.refusals

    def check(self) -> None:
        """Raise RefusedError with all collected refusals, if there are any."""
        if self.found:
            raise RefusedError(self.found)


class LogError(NearfreeError):
    """An event log cannot be read or written."""


class DamageError(LogError):
    """Bytes of the log differ from what was written."""


class BusyError(LogError):
    """Another writer holds the same name."""


class WriteError(LogError):
    """A file could not be written."""


class TableError(NearfreeError):
    """A table does not match its schema or its manifest."""


MOVED = "This release keeps its rule elsewhere: its reader must learn where"
"""The remedy of `MovedError`."""


class SourceError(NearfreeError):
    """A package's source is unavailable, damaged, or has no rule of a known form.

    Parameters
    ----------
    what
        What happened, to which input: one sentence without a final full stop.
    remedy
        What to do about it.
    """

    def __init__(
        self, what: str, *, remedy: str = "This release needs a reader of its own: report it"
    ) -> None:
        super().__init__(what, remedy=remedy)


class LackingError(SourceError):
    """A release holds none of the required files."""


class MovedError(SourceError):
    """A rule is not where its reader looks for it, or not in the known form."""

    def __init__(self, what: str, *, remedy: str = MOVED) -> None:
        super().__init__(what, remedy=remedy)


class UnknownConstructError(SourceError):
    """A construct in the source is not supported.

    Parameters
    ----------
    what
        The construct.
    node
        Its node in a syntax tree; if the node has a file and line, the message begins with them.
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
    """The run was ended from outside, as by a batch system."""


class LockError(NearfreeError):
    """An environment differs from its lock, or cannot be made from it."""


class SchedulerError(NearfreeError):
    """The cluster's batch system is missing, or refuses a job."""


class HardwareError(NearfreeError):
    """The machine is not the platform, or lacks a requested device or tool."""


class EvidenceError(NearfreeError):
    """A rule, fact or measurement that an answer needs is missing."""
