"""Verification: every byte of the log, ledgers, tables, figures and report is accounted for.

Links are damage, except that a segment or seal may be a link to one: what it leads to is read.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from nearfree.errors import NearfreeError
from nearfree.log.document import (
    FOLDER_MANIFEST,
    MANIFEST_SUFFIX,
    check_table,
    named_files,
    read_document,
    walk,
)
from nearfree.log.ledger import Ledger, config_texts, ledger_paths, read_chain, retired_seals
from nearfree.log.line import sha256
from nearfree.log.names import Layout, parse_take, require_log, take_of
from nearfree.log.reader import read_bytes, read_segment
from nearfree.log.seal import Seal, check_sealed, read_seal

_FOLDERS = {"events", "ledger", "state", "tables", "figures", "report", "as_of"}
_AGAIN = {"config", "results", "other_code.txt"}
_AGAIN_NAME = re.compile(r"(adopted_)?([0-9]{6})")
_PARTIAL = re.compile(r"\..+\.[0-9]+")


class Finding(Struct, frozen=True):
    """Something about one file; a notice is worth knowing, anything else is damage."""

    path: str
    message: str
    notice: bool = False


class Summary(Struct, frozen=True):
    """How much was checked, and what was found."""

    takes: int
    events: int
    tables: int
    figures: int
    findings: tuple[Finding, ...]

    @property
    def damaged(self) -> bool:
        """Whether any finding is more than a notice."""
        return any(not finding.notice for finding in self.findings)


class _Verifier:
    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.findings: list[Finding] = []
        self.retired: dict[str, str] = {}
        self.takes = self.events = self.tables = self.figures = 0

    def report(self, path: Path, message: str, *, notice: bool = False) -> None:
        shown = path.relative_to(self.layout.root).as_posix()
        self.findings.append(Finding(shown, message, notice))

    def check(self) -> Summary:
        for path in sorted(self.layout.root.iterdir()):
            if path.is_symlink() or path.name not in _FOLDERS or not path.is_dir():
                self._foreign(path)
        self._log()
        self._ledgers()
        self._receipts()
        self._tables()
        figures, report = self.layout.root / "figures", self.layout.root / "report"
        self._named(figures, [scope / "figures.json" for scope in sorted(figures.glob("*/"))])
        if any(_files(report)):
            self._named(report, [report / FOLDER_MANIFEST])
        self._made_again()
        return Summary(self.takes, self.events, self.tables, self.figures, tuple(self.findings))

    def _foreign(self, path: Path) -> None:
        if path.is_symlink():
            self.report(path, "is a link; put what it leads to in its place")
        elif _PARTIAL.fullmatch(path.name):
            self.report(path, "was left by an interrupted write; remove it", notice=True)
        else:
            self.report(path, "does not belong here; move it elsewhere")

    def _log(self) -> None:
        known = set()
        for take in self.layout.takes():
            known.add(self.layout.seal(take))
            try:
                seal = read_seal(self.layout, take)
                known |= {self.layout.segment(take, part.attempt) for part in seal.segments}
                self.events += check_sealed(self.layout, seal)
                self.takes += 1
                self._after_the_seal(seal)
            except NearfreeError as error:
                self.report(self.layout.seal(take), str(error))
        for path in _files(self.layout.events):
            if path not in known:
                self._unsealed(path)

    def _after_the_seal(self, seal: Seal) -> None:
        for part in seal.segments:
            path = self.layout.segment(seal.name, part.attempt)
            late = path.stat().st_size - part.bytes
            if late:
                self.report(path, f"{late} bytes after its sealed part are ignored", notice=True)

    def _unsealed(self, path: Path) -> None:
        take = take_of(path.relative_to(self.layout.events))
        if take is None:
            self._foreign(path)
            return
        if self.layout.seal(take).exists():
            self.report(path, "was written beside a sealed take and is ignored", notice=True)
            return
        try:
            segment = read_segment(path, f"{take.scope}/{take.stream}/{path.stem}")
        except NearfreeError as error:
            self.report(path, str(error))
            return
        torn = f", and a torn tail of {segment.torn_bytes} bytes" if segment.torn_bytes else ""
        self.report(path, f"is not sealed: {len(segment.events)} whole events{torn}", notice=True)

    def _ledgers(self) -> None:
        with suppress(NearfreeError):  # which ledger is damaged is said below
            self.retired = retired_seals(self.layout)
        for folder in (self.layout.ledgers, self.layout.ledgers / "local"):
            try:
                told: set[str] = set()
                for ledger in read_chain(folder):
                    self._against(folder, ledger, told)
            except NearfreeError as error:
                self.report(folder, str(error))
            known = {*ledger_paths(folder), self.layout.ledgers / "local"}
            for path in sorted(folder.glob("*")):
                if path.is_symlink() or path not in known:
                    self._foreign(path)

    def _against(self, folder: Path, ledger: Ledger, told: set[str]) -> None:
        """Check the seals that a ledger names; `told` are those whose retirement was said."""
        for name, sha in ledger.seals.items():
            seal = self.layout.seal(parse_take(name))
            raw = _content(seal)
            if raw is None and self.retired.get(name) == sha:
                if name not in told:
                    what = f"lists {name} as the first; a later one retired it"
                    self.report(folder / f"{ledger.number:06}.json", what, notice=True)
                told.add(name)
            elif raw is None or sha256(raw) != sha:
                state = "is not the one" if seal.exists() else "is gone that"
                self.report(
                    folder / f"{ledger.number:06}.json",
                    f"the seal of {name} {state} this ledger names; restore {seal} from a copy",
                )

    def _receipts(self) -> None:
        for path in _files(self.layout.state):
            if path == self.layout.state / "ledger.json":
                original = self.layout.ledgers / "local" / f"{_number(path):06}.json"
            else:
                original = self.layout.events / path.relative_to(self.layout.state)
                original = original.with_suffix(".seal.json")
            if path.is_symlink() or path.suffix != ".json" or path.name.startswith("."):
                self._foreign(path)
            elif (raw := _content(original)) is None:
                take = path.relative_to(self.layout.state).with_suffix("").as_posix()
                gone = take in self.retired
                self.report(path, f"is the receipt of {original}, which is gone", notice=gone)
            elif raw != _content(path):
                self.report(path, "is not a copy of its seal; remove it and run again")

    def _tables(self) -> None:
        for path in _files(self.layout.root / "tables"):
            if path.is_symlink():
                self._foreign(path)
            elif path.suffix == ".parquet":
                self.tables += 1
                try:
                    check_table(path)
                except NearfreeError as error:
                    self.report(path, str(error))
            elif not path.name.endswith(MANIFEST_SUFFIX):
                self._foreign(path)
            elif not (table := path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))).is_file():
                self.report(path, f"is the manifest of {table}, which is gone; make it again")

    def _named(self, folder: Path, manifests: list[Path]) -> None:
        """Check a folder whose every file is named, with its digest, by one of its manifests.

        Of what lies beside a manifest that cannot be read the manifest alone is told.
        """
        remedy = f"run `nearfree {folder.name}` again"
        unread: set[Path] = set()
        digests: dict[Path, set[str]] = {path: set() for path in manifests}
        for manifest in manifests:
            try:
                for path, sha in named_files(manifest, folder).items():
                    digests.setdefault(path, set()).add(sha)
            except NearfreeError as error:
                self.report(manifest, f"{error}; {remedy}")
                unread.add(manifest.parent)
        for path in sorted(digests.keys() - {*manifests}):
            raw = _content(path)
            self.figures += path.suffix == ".svg"
            if raw is None:
                self.report(path, f"is gone, which a manifest names; {remedy}")
            elif digests[path] != {sha256(raw)}:
                self.report(path, f"is not what its manifest says; {remedy}")
        for path in _files(folder):
            if path.is_symlink() or (path not in digests and not unread & {*path.parents}):
                self._foreign(path)

    def _made_again(self) -> None:
        """Check the results of earlier ledgers, each a root beside the config of its ledger."""
        for folder in sorted((self.layout.root / "as_of").glob("*")):
            if folder.is_symlink() or not folder.is_dir() or not _AGAIN_NAME.fullmatch(folder.name):
                self._foreign(folder)
                continue
            for path in sorted(folder.iterdir()):
                if path.is_symlink() or path.name not in _AGAIN:
                    self._foreign(path)
            self._config_of(folder)
            try:
                findings = verify(folder / "results").findings
            except NearfreeError as error:
                self.report(folder, str(error))
                continue
            below = folder.relative_to(self.layout.root).as_posix()
            for finding in findings:
                shown = f"{below}/results/{finding.path}"
                self.findings.append(Finding(shown, finding.message, finding.notice))

    def _config_of(self, folder: Path) -> None:
        """Compare a config folder with the texts of the ledger that the folder above names."""
        own = "" if folder.name.startswith("adopted_") else "local"
        ledger = self.layout.ledgers / own / f"{folder.name[-6:]}.json"
        config = folder / "config"
        texts: dict[str, str] = {}
        try:
            texts = config_texts(config)
            if texts != read_document(ledger, Ledger).config:
                self.report(config, f"is not the config of {ledger}; make it again")
        except NearfreeError as error:
            self.report(config, str(error))
        for path in _files(config):
            if path.is_symlink() or path.relative_to(config).as_posix() not in texts:
                self._foreign(path)


def _number(path: Path) -> int:
    try:
        return read_document(path, Ledger).number
    except NearfreeError:
        return 0


def _content(path: Path) -> bytes | None:
    """Return a file's bytes, None where there is no such file, whatever stands in its place."""
    try:
        return read_bytes(path)
    except (NearfreeError, ValueError):  # a name that no file can have is a ValueError
        return None


def _files(folder: Path) -> Iterator[Path]:
    """Yield what is no folder below one, if that is there; a link to a folder is none, either."""
    paths = walk(folder) if folder.is_dir() else ()
    return (path for path in paths if path.is_symlink() or not path.is_dir())


def verify(root: Path) -> Summary:
    """Check everything below a results root and return what was found.

    Raises
    ------
    LogError
        The root holds no event log.
    """
    require_log(Layout(root))
    return _Verifier(root).check()
