"""Names of takes and segments, and the paths of a results root."""

import re
from glob import escape
from pathlib import Path

from msgspec import Struct

from nearfree.core.names import NAME
from nearfree.errors import LogError

_TAKE = re.compile(rf"({NAME})/({NAME})/([1-9][0-9]{{0,5}})-([0-9a-f]{{8}})")
_SEGMENT_FILE = re.compile(r"([1-9][0-9]{0,5})-([0-9a-f]{8})\.([1-9][0-9]{0,5})\.jsonl")
_SEAL_FILE = re.compile(r"([1-9][0-9]{0,5})-([0-9a-f]{8})\.seal\.json")
LEDGER_FILE = re.compile(r"([0-9]{6})\.json")


class TakeName(Struct, frozen=True, order=True):
    """One take of one plan in one stream of one scope."""

    scope: str
    stream: str
    take: int
    plan8: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}/{self.take}-{self.plan8}"

    def segment(self, attempt: int) -> str:
        """Return the name of an attempt's segment, the `source` of its events."""
        return f"{self}.{attempt}"


def check_part(text: str) -> str:
    """Return the name of a scope or stream; LogError unless it can be a folder's name."""
    if not re.fullmatch(NAME, text):
        raise LogError(
            f"{text!r} cannot name a scope or stream",
            remedy="Use lower-case letters, digits and underscores, at most 64",
        )
    return text


def parse_take(text: str) -> TakeName:
    """Return the take that `scope/stream/take-plan8` names; LogError for any other text."""
    match = _TAKE.fullmatch(text)
    if match is None:
        raise LogError(
            f"{text!r} is not the name of a take",
            remedy="Write it as scope/stream/take-plan8, as `nearfree log show` prints it",
        )
    return TakeName(match[1], match[2], int(match[3]), match[4])


class Layout(Struct, frozen=True):
    """The folders of a results root."""

    root: Path

    @property
    def events(self) -> Path:
        """The event log: segments and seals by scope and stream."""
        return self.root / "events"

    @property
    def ledgers(self) -> Path:
        """The tracked ledger; `local/` below it is this machine's own."""
        return self.root / "ledger"

    @property
    def state(self) -> Path:
        """Receipts, which Snakemake may delete."""
        return self.root / "state"

    def segment(self, take: TakeName, attempt: int) -> Path:
        """Return the path of an attempt's segment."""
        return self.events / f"{take.segment(attempt)}.jsonl"

    def seal(self, take: TakeName) -> Path:
        """Return the path of a take's seal."""
        return self.events / f"{take}.seal.json"

    def receipt(self, take: TakeName) -> Path:
        """Return the path of a take's receipt, a copy of its seal."""
        return self.state / f"{take}.json"

    def table(self, scope: str, table: str) -> Path:
        """Return the path of a scope's table."""
        return self.root / "tables" / scope / f"{table}.parquet"

    def attempts(self, take: TakeName) -> list[int]:
        """Return the attempts of a take that have a segment, oldest first."""
        folder = self.events / take.scope / take.stream
        matches = (
            _SEGMENT_FILE.fullmatch(path.name) for path in folder.glob(f"{take.take}-*.jsonl")
        )
        return sorted(int(match[3]) for match in matches if match and match[2] == take.plan8)

    def takes(
        self, scope: str | None = None, stream: str | None = None, *, sealed: bool = True
    ) -> list[TakeName]:
        """Return the takes on disk, sorted; with `sealed=False` those that have no seal."""
        pattern = f"{scope or '*'}/{'*' if stream is None else escape(stream)}/*"
        seals: set[TakeName] = set()
        segments: set[TakeName] = set()
        for path in self.events.glob(pattern):
            take = take_of(path.relative_to(self.events))
            if take is not None and stream in (None, take.stream):
                (seals if path.name.endswith(".seal.json") else segments).add(take)
        return sorted(seals if sealed else segments - seals)


def take_of(path: Path) -> TakeName | None:
    """Return the take that a segment or seal file belongs to, by its path below events/."""
    match = _SEGMENT_FILE.fullmatch(path.name) or _SEAL_FILE.fullmatch(path.name)
    if match is None or len(path.parts) != 3:
        return None
    text = f"{path.parts[0]}/{path.parts[1]}/{match[1]}-{match[2]}"
    return parse_take(text) if _TAKE.fullmatch(text) else None


def require_log(layout: Layout) -> Layout:
    """Return a layout whose root holds an event log; LogError if it holds none."""
    if not layout.events.is_dir():
        raise LogError(f"{layout.root} holds no events/ folder", remedy="Name a results folder")
    return layout
