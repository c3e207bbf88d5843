"""Entities of a crate's metadata, and the files of its folder."""

from pathlib import Path, PurePosixPath

import pytest
from msgspec import json
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.prove.crate.graph import (
    CONTEXT,
    METADATA,
    Contents,
    Graph,
    crate_layout,
    file_id,
    ledger_folder,
    read_contents,
    refs,
)


def test_an_entity_is_added_once_without_empty_properties() -> None:
    """Of two entities with one id the first stays; properties without a value are left out."""
    graph = Graph()
    reference = graph.add("#a", "File", name="first", size=0, error=None, parts=[], text="")
    assert graph.add("#a", "Dataset", name="second") == reference == {"@id": "#a"}
    assert graph.entities == {"#a": {"@id": "#a", "@type": "File", "name": "first", "size": 0}}


def test_facts_are_property_values_of_their_owner() -> None:
    """Each fact with a value is an entity, whose id is the owner's and the quoted name."""
    graph = Graph()
    assert graph.facts("#a", {"sm clock": 0, "device": None, "host": ""}) == refs(["#a/sm%20clock"])
    fact = {"@id": "#a/sm%20clock", "@type": "PropertyValue", "name": "sm clock", "value": 0}
    assert graph.entities == {"#a/sm%20clock": fact}


def test_a_list_of_one_is_written_as_its_item() -> None:
    """The document has the context and all entities in order; lists of one item are the item."""
    graph = Graph()
    graph.add("#b", "File", result=refs(["#a"]), object=refs(["#a", "#b"]), agent={"@id": "#a"})
    graph.add("#a", ["File", "HowTo"], name="x")
    raw = graph.render()
    assert raw.endswith(b"}\n")
    assert raw.startswith(b'{\n "@context": [')
    assert json.decode(raw) == {
        "@context": CONTEXT,
        "@graph": [
            {
                "@id": "#b",
                "@type": "File",
                "result": {"@id": "#a"},
                "object": refs(["#a", "#b"]),
                "agent": {"@id": "#a"},
            },
            {"@id": "#a", "@type": ["File", "HowTo"], "name": "x"},
        ],
    }
    assert graph.of_type("File") == refs(["#b"])


@pytest.mark.parametrize(
    ("path", "identifier"), [("a b/c", "a%20b/c"), ("é", "%C3%A9"), ("#x?", "%23x%3F")]
)
def test_the_id_of_a_file_is_ascii(path: str, identifier: str) -> None:
    """A path is quoted byte by byte, but for its slashes."""
    assert file_id(PurePosixPath(path)) == identifier


def test_the_contents_are_plain_files_besides_the_metadata(tmp_path: Path) -> None:
    """Size and SHA-256 are those of each file below the folder; links and metadata are left out."""
    for name in (METADATA, f"results/{METADATA}", "a b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to(tmp_path / "a b.txt")
    names = {"a%20b.txt": "a b.txt", f"results/{METADATA}": f"results/{METADATA}"}
    assert read_contents(tmp_path) == {
        identifier: Contents(size=len(name), sha256=sha256(name.encode()))
        for identifier, name in names.items()
    }


def test_ledgers_of_this_machine_come_first(tmp_path: Path) -> None:
    """The ledgers of a root are this machine's own, or without any the tracked ones."""
    layout = crate_layout(tmp_path)
    assert layout == Layout(tmp_path / "results")
    assert ledger_folder(layout) == layout.ledgers
    local = layout.ledgers / "local"
    local.mkdir(parents=True)
    assert ledger_folder(layout) == layout.ledgers
    (local / "000001.json").touch()
    assert ledger_folder(layout) == local
