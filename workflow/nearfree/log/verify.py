"""Verify a results root: account for every byte of log, ledgers, tables, figures and report.

Symbolic links are damage, except that a segment or a seal may be a link to one.
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
_AS_OF_ENTRIES = {"config", "results", "other_code.txt"}
_AS_OF_NAME = re.compile(r"(adopted_)?([0-9]{6})")
_PARTIAL = re.compile(r"\..+\.[0-9]+")


class Finding(Struct, frozen=True):
    """A message about one file: damage, or a notice that is no damage."""

    path: str
    message: str
    notice: bool = False


class Summary(Struct, frozen=True):
    """How much was checked, and the findings."""

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
                self._report_foreign(path)
        self._check_log()
        self._check_ledgers()
        self._check_receipts()
        self._check_tables()
        figures, report = self.layout.root / "figures", self.layout.root / "report"
        self._check_manifests(
            figures, [scope / "figures.json" for scope in sorted(figures.glob("*/"))]
        )
        if any(_files(report)):
            self._check_manifests(report, [report / FOLDER_MANIFEST])
        self._check_as_of()
        return Summary(self.takes, self.events, self.tables, self.figures, tuple(self.findings))

    def _report_foreign(self, path: Path) -> None:
        if path.is_symlink():
            self.report(path, "is a link; put what it leads to in its place")
        elif _PARTIAL.fullmatch(path.name):
            self.report(path, "was left by an interrupted write; remove it", notice=True)
        else:
            self.report(path, "does not belong here; move it elsewhere")

    def _check_log(self) -> None:
        sealed_files = set()
        for take in self.layout.takes():
            sealed_files.add(self.layout.seal(take))
            try:
                seal = read_seal(self.layout, take)
                sealed_files |= {self.layout.segment(take, part.attempt) for part in seal.segments}
                self.events += check_sealed(self.layout, seal)
                self.takes += 1
                self._report_trailing_bytes(seal)
            except NearfreeError as error:
                self.report(self.layout.seal(take), str(error))
        for path in _files(self.layout.events):
            if path not in sealed_files:
                self._report_unsealed(path)

    def _report_trailing_bytes(self, seal: Seal) -> None:
        for part in seal.segments:
            path = self.layout.segment(seal.name, part.attempt)
            late = path.stat().st_size - part.bytes
            if late:
                self.report(path, f"{late} bytes after its sealed part are ignored", notice=True)

    def _report_unsealed(self, path: Path) -> None:
        take = take_of(path.relative_to(self.layout.events))
        if take is None:
            self._report_foreign(path)
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

    def _check_ledgers(self) -> None:
        with suppress(NearfreeError):  # a damaged ledger is reported below
            self.retired = retired_seals(self.layout)
        for folder in (self.layout.ledgers, self.layout.ledgers / "local"):
            try:
                reported: set[str] = set()
                for ledger in read_chain(folder):
                    self._check_seals(folder, ledger, reported)
            except NearfreeError as error:
                self.report(folder, str(error))
            expected = {*ledger_paths(folder), self.layout.ledgers / "local"}
            for path in sorted(folder.glob("*")):
                if path.is_symlink() or path not in expected:
                    self._report_foreign(path)

    def _check_seals(self, folder: Path, ledger: Ledger, reported: set[str]) -> None:
        """Check the seals that a ledger lists.

        `reported` collects the takes whose retirement was reported already, over all ledgers.
        """
        for name, sha in ledger.seals.items():
            seal = self.layout.seal(parse_take(name))
            raw = _content(seal)
            if raw is None and self.retired.get(name) == sha:
                if name not in reported:
                    message = f"lists {name} as the first; a later one retired it"
                    self.report(folder / f"{ledger.number:06}.json", message, notice=True)
                reported.add(name)
            elif raw is None or sha256(raw) != sha:
                state = "is not the one" if seal.exists() else "is gone that"
                self.report(
                    folder / f"{ledger.number:06}.json",
                    f"the seal of {name} {state} this ledger names; restore {seal} from a copy",
                )

    def _check_receipts(self) -> None:
        for path in _files(self.layout.state):
            if path == self.layout.state / "ledger.json":
                original = self.layout.ledgers / "local" / f"{_number(path):06}.json"
            else:
                original = self.layout.events / path.relative_to(self.layout.state)
                original = original.with_suffix(".seal.json")
            if path.is_symlink() or path.suffix != ".json" or path.name.startswith("."):
                self._report_foreign(path)
            elif (raw := _content(original)) is None:
                take = path.relative_to(self.layout.state).with_suffix("").as_posix()
                retired = take in self.retired
                self.report(path, f"is the receipt of {original}, which is gone", notice=retired)
            elif raw != _content(path):
                self.report(path, "is not a copy of its seal; remove it and run again")

    def _check_tables(self) -> None:
        for path in _files(self.layout.root / "tables"):
            if path.is_symlink():
                self._report_foreign(path)
            elif path.suffix == ".parquet":
                self.tables += 1
                try:
                    check_table(path)
                except NearfreeError as error:
                    self.report(path, str(error))
            elif not path.name.endswith(MANIFEST_SUFFIX):
                self._report_foreign(path)
            elif not (table := path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))).is_file():
                self.report(path, f"is the manifest of {table}, which is gone; make it again")

    def _check_manifests(self, folder: Path, manifests: list[Path]) -> None:
        """Check a folder in which manifests list every file with its digest.

        If a manifest cannot be read, only the manifest is reported, not the files beside it.
        """
        remedy = f"run `nearfree {folder.name}` again"
        unread_folders: set[Path] = set()
        digests: dict[Path, set[str]] = {path: set() for path in manifests}
        for manifest in manifests:
            try:
                for path, sha in named_files(manifest, folder).items():
                    digests.setdefault(path, set()).add(sha)
            except NearfreeError as error:
                self.report(manifest, f"{error}; {remedy}")
                unread_folders.add(manifest.parent)
        for path in sorted(digests.keys() - {*manifests}):
            raw = _content(path)
            self.figures += path.suffix == ".svg"
            if raw is None:
                self.report(path, f"is gone, which a manifest names; {remedy}")
            elif digests[path] != {sha256(raw)}:
                self.report(path, f"is not what its manifest says; {remedy}")
        for path in _files(folder):
            if path.is_symlink() or (path not in digests and not unread_folders & {*path.parents}):
                self._report_foreign(path)

    def _check_as_of(self) -> None:
        """Check the results made again for earlier ledgers: a root and the ledger's config each."""
        for folder in sorted((self.layout.root / "as_of").glob("*")):
            if folder.is_symlink() or not folder.is_dir() or not _AS_OF_NAME.fullmatch(folder.name):
                self._report_foreign(folder)
                continue
            for path in sorted(folder.iterdir()):
                if path.is_symlink() or path.name not in _AS_OF_ENTRIES:
                    self._report_foreign(path)
            self._check_config(folder)
            try:
                findings = verify(folder / "results").findings
            except NearfreeError as error:
                self.report(folder, str(error))
                continue
            below = folder.relative_to(self.layout.root).as_posix()
            for finding in findings:
                shown = f"{below}/results/{finding.path}"
                self.findings.append(Finding(shown, finding.message, finding.notice))

    def _check_config(self, folder: Path) -> None:
        """Compare the config in an `as_of` folder with the config that its ledger records."""
        subfolder = "" if folder.name.startswith("adopted_") else "local"
        ledger = self.layout.ledgers / subfolder / f"{folder.name[-6:]}.json"
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
                self._report_foreign(path)


def _number(path: Path) -> int:
    try:
        return read_document(path, Ledger).number
    except NearfreeError:
        return 0


def _content(path: Path) -> bytes | None:
    """Return a file's bytes; None if there is no readable file at the path."""
    try:
        return read_bytes(path)
    except (NearfreeError, ValueError):  # ValueError: no file can have such a name
        return None


def _files(folder: Path) -> Iterator[Path]:
    """Return the files and links below a folder; none if the folder does not exist."""
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
