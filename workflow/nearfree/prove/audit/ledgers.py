"""Ledgers by name, their config as files, and differences of code and libraries."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath

from msgspec import Struct

from nearfree.config.files import Config
from nearfree.errors import ConfigError, DamageError, LogError
from nearfree.log.codebase import package_digest
from nearfree.log.document import replace
from nearfree.log.ledger import Ledger, is_recordable, read_chain
from nearfree.log.names import Layout

ADOPTED = "adopted:"
"""Prefix of tracked ledgers' names."""
_NAME = re.compile(rf"({ADOPTED})?([1-9][0-9]{{0,5}})")


class NamedLedger(Struct, frozen=True):
    """A ledger and its name: `N` is this machine's own, `adopted:N` a tracked one."""

    name: str
    ledger: Ledger

    @property
    def adopted(self) -> bool:
        """Whether it is a tracked ledger."""
        return self.name.startswith(ADOPTED)

    @property
    def folder(self) -> str:
        """The name of its folder under `results/as_of/`."""
        return f"{'adopted_' if self.adopted else ''}{self.ledger.number:06}"


def find_ledger(layout: Layout, name: str) -> NamedLedger:
    """Return a ledger by its name.

    Raises
    ------
    LogError
        No ledger has that name; DamageError if its chain is broken.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise LogError(
            f"{name!r:.80} names no ledger",
            remedy="Write N for ledger N of this machine, adopted:N for one that git tracks",
        )
    prefix, number = match[1] or "", int(match[2])
    chain = read_chain(layout.ledgers if prefix else layout.ledgers / "local")
    if number > len(chain):
        available = f"{prefix}1 to {prefix}{len(chain)}" if chain else "none"
        if not chain and not prefix:
            available += (
                f" of this machine: `nearfree ledger` writes one; {ADOPTED}N is a tracked one"
            )
        raise LogError(f"there is no ledger {name}", remedy=f"There are {available}")
    return NamedLedger(name, chain[number - 1])


def check_names(ledger: Ledger) -> None:
    """Raise DamageError if a config file's name leads out of the config folder or is too long."""
    for name in ledger.config:
        path = PurePosixPath(name)
        is_model = path.parts[:-1] == ("models",) and path.suffix == ".json"
        is_plain = name == path.as_posix() and is_recordable(name) and ".." not in path.parts
        if not is_plain or path.is_absolute() or not (is_model or path.suffix == ".yaml"):
            raise DamageError(
                f"ledger {ledger.number} holds {name!r:.80}, which is no name of a config file",
                remedy="Do not trust this ledger: copy it again from where it was written",
            )


@contextmanager
def restored_config(ledger: Ledger, name: str, folder: Path) -> Iterator[Config]:
    """Write a ledger's config files into a folder, and yield the config.

    Raises
    ------
    DamageError
        A config file has an invalid name.
    ConfigError
        The config does not fit this code; also raised for errors inside the `with` block.
    """
    check_names(ledger)
    for path, text in ledger.config.items():
        replace(folder / path, text.encode())
    try:
        yield Config(folder)
    except ConfigError as error:
        raise ConfigError(
            f"the config of ledger {name} does not fit this code: "
            f"{error.what.replace(f'{folder}/', '')}",
            remedy=f"Use the code that wrote it: {ledger.code_digest!a:.40}",
        ) from error


def differences(ledger: Ledger) -> str:
    """Return the differences of the installed code and libraries from a ledger's, as text."""
    pairs: dict[str, tuple[str, str | None]] = {"code": (ledger.code_digest, package_digest())}
    pairs |= {name: (version, _version(name)) for name, version in ledger.libraries.items()}
    return "; ".join(
        f"{name!a:.40} was {recorded!a:.40} and is {installed!a}"
        for name, (recorded, installed) in pairs.items()
        if recorded != installed
    )


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except (metadata.PackageNotFoundError, ValueError):
        return None
