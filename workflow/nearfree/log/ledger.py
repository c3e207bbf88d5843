"""Ledgers: numbered, chained lists of every seal, with the config and code at that time.

`ledger/` is tracked and written by `adopt`; `ledger/local/` is this machine's own.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from nearfree.errors import BusyError, ConfigError, DamageError, printable
from nearfree.log.codebase import package_digest
from nearfree.log.document import read_document, walk, write_once
from nearfree.log.line import GENESIS, holds_home, sha256
from nearfree.log.names import LEDGER_FILE, Layout, TakeName
from nearfree.log.reader import read_bytes, refuse_larger
from nearfree.log.segment import utc_now

_PAUSE_S = 0.02
_MODEL_FILE = (".json", ("models",))
LONGEST_PATH = 200
"""Bytes of the longest path of a config file in its folder: file systems take names of 255, and a
name is longer while its file is written."""
_LIBRARIES = ("polars", "pandera", "altair", "vl-convert-python")


class Ledger(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One state of the log: `root` is the SHA-256 over the sorted lines of `seals`.

    `retired` holds takes that an earlier ledger lists and that were removed from the log because
    nothing read them any more, with the SHA-256 of their seals.
    """

    version: Literal[1] = 1
    number: int
    time: str
    previous: str
    root: str
    seals: dict[str, str]
    config: dict[str, str]
    code_digest: str
    libraries: dict[str, str]
    retired: dict[str, str] | UnsetType = UNSET
    hash: str = ""


def seals_root(seals: dict[str, str]) -> str:
    """Return the SHA-256 over sorted `name digest` lines."""
    return sha256("".join(f"{name} {seals[name]}\n" for name in sorted(seals)).encode())


def ledger_paths(folder: Path) -> list[Path]:
    """Return the paths of a folder's ledgers, oldest first, up to the newest listed one."""
    paths = {path for path in folder.glob("*.json") if LEDGER_FILE.fullmatch(path.name)}
    newest = max((int(path.stem) for path in paths), default=0)
    # While others write into the folder, a listing may hold a new file and lack an older one.
    before = (folder / f"{number:06}.json" for number in range(1, newest))
    return sorted(paths | {path for path in before if path.exists()})


def read_chain(folder: Path) -> list[Ledger]:
    """Return all ledgers of a folder; DamageError if one is missing, edited or out of place."""
    chain: list[Ledger] = []
    for path in ledger_paths(folder):
        ledger = read_document(path, Ledger)
        previous = chain[-1].hash if chain else GENESIS
        number = len(chain) + 1
        if (ledger.number, ledger.previous) != (number, previous):
            raise DamageError(
                f"{path} does not follow ledger {number - 1}",
                remedy="Restore the missing or changed ledger from a copy",
            )
        if path.name != f"{number:06}.json" or ledger.root != seals_root(ledger.seals):
            raise DamageError(f"{path} is not ledger {number}", remedy="Restore it from a copy")
        chain.append(ledger)
    return chain


def retired_seals(layout: Layout) -> dict[str, str]:
    """Return the takes that tracked or local ledgers retire, with the SHA-256 of their seals.

    Raises
    ------
    DamageError
        A ledger is damaged.
    """
    seals: dict[str, str] = {}
    for folder in (layout.ledgers, layout.ledgers / "local"):
        for ledger in read_chain(folder):
            seals |= ledger.retired or {}
    return seals


def current_seals(layout: Layout, scope: str | None = None) -> dict[str, str]:
    """Return the SHA-256 of every seal on disk, or of one scope's, by the take's name."""
    return _digests(layout, layout.takes(scope))


def _digests(layout: Layout, takes: Iterable[TakeName]) -> dict[str, str]:
    return {str(take): sha256(read_bytes(layout.seal(take))) for take in takes}


def write_ledger(
    layout: Layout,
    folder: Path,
    config: Path,
    *,
    takes: Iterable[TakeName] | None = None,
    retired: dict[str, str] | None = None,
) -> Path:
    """Write the next ledger, or return the newest one if nothing changed since.

    If several processes write the same number, the first succeeds and the others try again. Seals
    are listed after the chain is read, so no ledger lists fewer takes than its predecessor.

    Parameters
    ----------
    takes
        The takes to list; every sealed take by default.
    retired
        Takes to retire now, with the SHA-256 of their seals; takes retired earlier stay retired.

    Raises
    ------
    ConfigError
        A config file holds the path of this user's home folder, which a tracked ledger must not
        publish.
    """
    texts = config_texts(config)
    for name, text in texts.items():
        if folder == layout.ledgers and holds_home(text):
            raise ConfigError(
                f"config/{name} holds the path of your home folder",
                remedy="Keep such paths in the environment, not in a file that a ledger records",
            )
    while True:
        chain = read_chain(folder)
        last = chain[-1] if chain else None
        seals = _digests(layout, layout.takes() if takes is None else takes)
        retired_before = retired_seals(layout) | (retired or {})
        last_seals = last.seals.items() if last else ()
        retired_now = {
            name: sha
            for name, sha in last_seals
            if name not in seals and retired_before.get(name) == sha
        }
        ledger = _next(last, seals, texts, retired_now)
        if last and _content(last) == _content(ledger):
            return folder / f"{last.number:06}.json"
        with suppress(BusyError):
            return write_once(folder / f"{ledger.number:06}.json", ledger)
        time.sleep(_PAUSE_S)  # a shared file system may show the other's ledger late


def _next(
    last: Ledger | None, seals: dict[str, str], texts: dict[str, str], retired: dict[str, str]
) -> Ledger:
    return Ledger(
        number=last.number + 1 if last else 1,
        time=utc_now(),
        previous=last.hash if last else GENESIS,
        root=seals_root(seals),
        seals=seals,
        config=texts,
        code_digest=package_digest(),
        libraries={name: metadata.version(name) for name in _LIBRARIES},
        retired=retired or UNSET,
    )


def is_recordable(name: str) -> bool:
    """Return whether a ledger may hold a config file of this path: it can be written out again."""
    return name.isprintable() and len(name.encode()) <= LONGEST_PATH


def config_texts(config: Path) -> dict[str, str]:
    """Return the text of every config file that a ledger records, by its path in the folder.

    Hidden files, such as an editor's lock file, are left out.

    Raises
    ------
    ConfigError
        A config path is no file or cannot be recorded, a file is no text, or the folder holds no
        config file.
    """
    texts = {}
    for path in walk(config) if config.is_dir() else ():
        name = path.relative_to(config)
        is_config = path.suffix == ".yaml" or (path.suffix, name.parts[:-1]) == _MODEL_FILE
        if not is_config or any(part.startswith(".") for part in name.parts):
            continue
        if not is_recordable(name.as_posix()):
            raise ConfigError(
                f"config/{printable(name.as_posix()):.80} is no path that a ledger records: it has "
                f"unprintable characters, or more than {LONGEST_PATH} bytes",
                remedy="Give it another name, or move it out of the config folder",
            )
        if not path.is_file():
            raise ConfigError(f"{path} is no file", remedy="Put a file in its place, or remove it")
        try:
            refuse_larger(path, path.stat().st_size)
            texts[name.as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not text: {error}", remedy="Correct the file") from error
    if not texts:
        raise ConfigError(f"{config} holds no config files", remedy="Name the config folder")
    return texts


def _content(ledger: Ledger) -> tuple[object, ...]:
    return ledger.root, ledger.config, ledger.code_digest, ledger.libraries
