"""Verification of a crate: its metadata, files, log and description must agree.

No value of the metadata is used as a path. The ids of the files on disk are computed and compared
with the ids in the metadata. All other metadata must equal, byte for byte, a new description of
these files.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from nearfree.errors import DamageError, NearfreeError
from nearfree.log.document import walk
from nearfree.log.ledger import read_chain
from nearfree.log.reader import read_bytes
from nearfree.log.verify import Finding, verify
from nearfree.prove.crate.derived_root import find_mismatch
from nearfree.prove.crate.describe import describe
from nearfree.prove.crate.graph import (
    METADATA,
    Contents,
    Entity,
    crate_layout,
    file_id,
    ledger_folder,
    read_contents,
)

_NO_FILE = "is a link or no plain file"
_MAX_BYTES = 64 * 1024**2
_WRITE_AGAIN = "Write the crate again, or fetch another copy of it"


class _Document(Struct, forbid_unknown_fields=True):
    context: Annotated[list[Any], Meta(min_length=1)] = msgspec.field(name="@context")
    graph: list[dict[str, Any]] = msgspec.field(name="@graph")


def check_crate(folder: Path) -> list[Finding]:
    """Compare a crate with its own metadata; return the differences.

    Raises
    ------
    DamageError
        The metadata is missing or unreadable.
    """
    entities = _read_metadata(folder / METADATA)
    irregular = [path for path in walk(folder) if path.is_symlink() or not path.is_file()]
    findings = [Finding(file_id(path.relative_to(folder)), _NO_FILE) for path in irregular]
    findings += _check_files(entities, read_contents(folder))
    if irregular:
        return findings
    findings += _check_log(folder)
    return findings or list(_check_description(folder, entities))


def _read_metadata(path: Path) -> list[Entity]:
    if path.is_symlink() or not path.is_file():
        raise DamageError(f"{path} is not there", remedy="Name the folder of a crate")
    try:
        entities = msgspec.json.decode(read_bytes(path, _MAX_BYTES), type=_Document).graph
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamageError(f"{path} is no crate's metadata: {error}", remedy=_WRITE_AGAIN) from error
    for number, entity in enumerate(entities):
        if not isinstance(entity.get("@id"), str) or not _kinds(entity):
            raise DamageError(f"{path}: entity {number} has no id or type", remedy=_WRITE_AGAIN)
    return entities


def _kinds(entity: Entity) -> list[str]:
    kinds = entity.get("@type")
    kind_list = kinds if isinstance(kinds, list) else [kinds]
    names = [kind for kind in kind_list if isinstance(kind, str)]
    return names if len(names) == len(kind_list) else []


def _check_files(entities: list[Entity], files: dict[str, Contents]) -> Iterator[Finding]:
    declared = {entity["@id"]: entity for entity in entities if "File" in _kinds(entity)}
    for name in sorted(files.keys() - declared.keys()):
        yield Finding(name, "is not described")
    for name, entity in declared.items():
        if name not in files:
            yield Finding(name, "is not there")
        elif entity.get("sha256") != (sha := files[name].sha256):
            yield Finding(name, f"has other bytes than described: SHA-256 {sha[:16]}")


def _check_log(folder: Path) -> Iterator[Finding]:
    """Yield damage in the crate's results root, and takes that its ledger does not list."""
    layout = crate_layout(folder)
    results = layout.root.relative_to(folder)
    try:
        for finding in verify(layout.root).findings:
            if not finding.notice:
                yield Finding(f"{results}/{finding.path}", finding.message)
        chain = read_chain(ledger_folder(layout))
        if not chain:
            yield Finding(f"{results}/ledger", "holds no ledger")
            return
        for take in layout.takes():
            if str(take) not in chain[-1].seals:
                path = layout.seal(take).relative_to(folder).as_posix()
                yield Finding(path, f"is not a seal of ledger {chain[-1].number}")
        if mismatch := find_mismatch(layout, chain[-1]):
            yield Finding(f"{results}", f"{mismatch} than ledger {chain[-1].number} records")
    except NearfreeError as error:
        yield Finding(f"{results}", str(error))


def _check_description(folder: Path, entities: list[Entity]) -> Iterator[Finding]:
    """Describe the crate again; yield the entities whose metadata differs."""
    try:
        expected = describe(folder)
    except NearfreeError as error:
        yield Finding(METADATA, str(error))
        return
    if read_bytes(folder / METADATA) == expected:
        return
    stored = {entity["@id"]: entity for entity in entities}
    expected_entities = {
        entity["@id"]: entity for entity in msgspec.json.decode(expected, type=_Document).graph
    }
    differing = [
        name
        for name in [*expected_entities, *(stored.keys() - expected_entities)]
        if stored.get(name) != expected_entities.get(name)
    ]
    for name in differing:
        yield Finding(METADATA, f"describes {name!r} otherwise than its log and its files have it")
    if not differing:
        yield Finding(METADATA, "is not written as this version writes the same")
