"""RO-Crate metadata: flat JSON-LD entities by id, and the files of the crate's folder."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from nearfree.log.document import walk
from nearfree.log.names import Layout
from nearfree.log.reader import open_bytes

METADATA = "ro-crate-metadata.json"
CONTEXT = [
    "https://w3id.org/ro/crate/1.1/context",
    {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"},
]
Entity = dict[str, Any]
RESULTS = "results"


class Graph:
    """Entities by id, in insertion order; empty properties are left out."""

    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}

    def add(self, identifier: str, kind: str | list[str], /, **properties: object) -> Entity:
        """Add an entity unless its id exists, and return a reference to it."""
        entity = {"@id": identifier, "@type": kind} | {
            name: value for name, value in properties.items() if value not in (None, [], "")
        }
        self.entities.setdefault(identifier, entity)
        return {"@id": identifier}

    def facts(self, owner: str, facts: Mapping[str, object]) -> list[Entity]:
        """Add an owner's facts as property values, and return references to them."""
        return [
            self.add(f"{owner}/{quote(name)}", "PropertyValue", name=name, value=value)
            for name, value in facts.items()
            if value not in (None, "")
        ]

    def of_type(self, kind: str) -> list[Entity]:
        """Return references to all entities of one type."""
        return refs(entity["@id"] for entity in self.entities.values() if entity["@type"] == kind)

    def render(self) -> bytes:
        """Return the document's bytes."""
        compact = [
            # RO-Crate requires a list of one item to be written as the item.
            {name: _unwrapped(value) for name, value in entity.items()}
            for entity in self.entities.values()
        ]
        document = {"@context": CONTEXT, "@graph": compact}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _unwrapped(value: object) -> object:
    """Return the item of a list of one; any other value unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def refs(identifiers: Iterable[str]) -> list[Entity]:
    """Return references to entities."""
    return [{"@id": identifier} for identifier in identifiers]


def file_id(path: PurePath) -> str:
    """Return the id of the file at a path below the crate's folder: always ASCII."""
    return quote(os.fsencode(path.as_posix()))


class Contents(Struct, frozen=True):
    """A file's size in bytes and its SHA-256."""

    size: int
    sha256: str


def crate_layout(folder: Path) -> Layout:
    """Return the results root inside a crate."""
    return Layout(folder / RESULTS)


def ledger_folder(layout: Layout) -> Path:
    """Return the folder of a root's ledgers: this machine's own if there are any, else tracked."""
    local = layout.ledgers / "local"
    return local if any(local.glob("*.json")) else layout.ledgers


def read_contents(folder: Path) -> dict[str, Contents]:
    """Return size and SHA-256 of every plain file except the metadata, by its id in the crate."""
    return {
        file_id(path.relative_to(folder)): _contents(path)
        for path in walk(folder)
        if path.is_file() and not path.is_symlink() and path != folder / METADATA
    }


def _contents(path: Path) -> Contents:
    with open_bytes(path) as file:
        return Contents(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=file.tell())
