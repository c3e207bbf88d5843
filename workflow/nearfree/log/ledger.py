"""Ledgers: numbered, chained lists of every seal, with the config and code of that moment.

`ledger/` is tracked and written by `adopt`; `ledger/local/` is this machine's own.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from nearfree.errors import BusyError, ConfigError, DamageError
from nearfree.log.codebase import package_digest
from nearfree.log.document import read_document, walk, write_once
from nearfree.log.line import GENESIS, holds_home, sha256
from nearfree.log.names import LEDGER_FILE, Layout, TakeName
from nearfree.log.reader import read_bytes, refuse_larger
from nearfree.log.segment import utc_now

_PAUSE_S = 0.02
_MODEL = (".json", ("models",))
_DRAWN_BY = ("polars", "pandera", "altair", "vl-convert-python")


class Ledger(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One state of the log: `root` is the SHA-256 over `seals`, sorted, a line each.

    `retired` are takes that an earlier ledger lists and that the log no longer holds, with the
    SHA-256 of their seals: nothing was read of them any more.
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
    """Return the ledgers in a folder, oldest first, up to the newest that was there."""
    paths = {path for path in folder.glob("*.json") if LEDGER_FILE.fullmatch(path.name)}
    newest = max((int(path.stem) for path in paths), default=0)
    # A folder that others write to may list a file and not the one that was there before it.
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
    """Return the takes that ledgers, tracked or local, say are retired, with their seals' SHA-256.

    Raises
    ------
    DamageError
        A ledger is damaged.
    """
    found: dict[str, str] = {}
    for folder in (layout.ledgers, layout.ledgers / "local"):
        for ledger in read_chain(folder):
            found |= ledger.retired or {}
    return found


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

    Of several processes that write one number the first has it, and the others look again: seals
    are listed after the ledgers before them were read, so none lists less than its predecessor.

    Parameters
    ----------
    takes
        What it lists; every sealed take if nothing is said.
    retired
        Takes that are to be gone, with the SHA-256 of their seals, beside those that a ledger says
        so of already.

    Raises
    ------
    ConfigError
        A config file holds this user's home folder, which a tracked ledger must not carry.
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
        known = retired_seals(layout) | (retired or {})
        listed = last.seals.items() if last else ()
        gone = {name: sha for name, sha in listed if name not in seals and known.get(name) == sha}
        ledger = _next(last, seals, texts, gone)
        if last and _content(last) == _content(ledger):
            return folder / f"{last.number:06}.json"
        with suppress(BusyError):
            return write_once(folder / f"{ledger.number:06}.json", ledger)
        time.sleep(_PAUSE_S)  # a shared file system may be slow to show the other's


def _next(
    last: Ledger | None, seals: dict[str, str], texts: dict[str, str], gone: dict[str, str]
) -> Ledger:
    return Ledger(
        number=last.number + 1 if last else 1,
        time=utc_now(),
        previous=last.hash if last else GENESIS,
        root=seals_root(seals),
        seals=seals,
        config=texts,
        code_digest=package_digest(),
        libraries={name: metadata.version(name) for name in _DRAWN_BY},
        retired=gone or UNSET,
    )


def config_texts(config: Path) -> dict[str, str]:
    """Return the text of every config file that a ledger records, by its path in the folder.

    Hidden ones, such as the lock that an editor lays beside a file, are not read by anything.

    Raises
    ------
    ConfigError
        One is no file or no text, or there is none.
    """
    texts = {}
    for path in walk(config) if config.is_dir() else ():
        name = path.relative_to(config)
        of_config = path.suffix == ".yaml" or (path.suffix, name.parts[:-1]) == _MODEL
        if not of_config or any(part.startswith(".") for part in name.parts):
            continue
        if not path.is_file():
            raise ConfigError(f"{path} is no file", remedy="Put it in its place, or remove it")
        try:
            refuse_larger(path, path.stat().st_size)
            texts[name.as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not text: {error}", remedy="Mend the file") from error
    if not texts:
        raise ConfigError(f"{config} holds no config files", remedy="Name the config folder")
    return texts


def _content(ledger: Ledger) -> tuple[object, ...]:
    return ledger.root, ledger.config, ledger.code_digest, ledger.libraries
