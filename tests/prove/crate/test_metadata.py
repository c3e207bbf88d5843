"""Verification of a crate's metadata and of the files that they describe."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import json
from nearfree.errors import DamageError
from nearfree.log.line import sha256
from nearfree.prove.crate.check import check_crate
from nearfree.prove.crate.graph import METADATA


def write(folder: Path, *entities: dict[str, Any], **files: str) -> None:
    """Write metadata of some entities, and files by name."""
    for name, text in files.items():
        (folder / name).write_text(text)
    document = {"@context": ["x"], "@graph": entities}
    (folder / METADATA).write_bytes(json.encode(document))


def described(name: str, text: str, kind: object = "File") -> dict[str, Any]:
    """Return the entity of a file with a text."""
    return {"@id": name, "@type": kind, "sha256": sha256(text.encode())}


def found(folder: Path) -> list[tuple[str, str]]:
    """Return path and message of each finding, in order."""
    return [(finding.path, finding.message) for finding in check_crate(folder)]


def no_log(folder: Path) -> tuple[str, str]:
    """Return the finding that a crate has no log."""
    return "results", f"{folder}/results holds no events/ folder. Name a results folder"


def test_a_folder_without_metadata_is_no_crate(tmp_path: Path) -> None:
    """Without metadata, or with a link in their place, a folder is refused by the file's name."""
    (tmp_path / "elsewhere").write_text('{"@context": [1], "@graph": []}')
    for make in (lambda: None, lambda: (tmp_path / METADATA).symlink_to(tmp_path / "elsewhere")):
        make()
        with pytest.raises(DamageError) as caught:
            check_crate(tmp_path)
        assert caught.value.what == f"{tmp_path / METADATA} is not there"


@pytest.mark.parametrize(
    "entity",
    [{"@id": "a"}, {"@type": "File"}, {"@id": 1, "@type": "File"}, {"@id": "a", "@type": []},
     {"@id": "a", "@type": ["File", 1]}, {"@id": "a", "@type": {}}],
)  # fmt: skip
def test_an_entity_has_an_id_and_types(tmp_path: Path, entity: dict[str, Any]) -> None:
    """An entity without a text as its id, or without texts as its types, is told by its number."""
    write(tmp_path, described("a", ""), entity, {})
    with pytest.raises(DamageError, match="entity 1 has no id or type"):
        check_crate(tmp_path)


def test_files_are_those_described(tmp_path: Path) -> None:
    """Files that are not described come first, then described ones that are gone or changed."""
    write(
        tmp_path,
        described("gone", "x"),
        described("a", "old", kind=["File", "HowTo"]),
        described("b", "same"),
        described("no_file", "x", kind="Dataset"),
        {"@id": "c", "@type": "File"},
        z="", y="", a="new", b="same", c="text",
    )  # fmt: skip
    other = "has other bytes than described: SHA-256 "
    assert found(tmp_path) == [
        ("y", "is not described"),
        ("z", "is not described"),
        ("gone", "is not there"),
        ("a", other + sha256(b"new")[:16]),
        ("c", other + sha256(b"text")[:16]),
        no_log(tmp_path),
    ]


def test_links_and_empty_folders_are_told_before_the_log(tmp_path: Path) -> None:
    """What is no plain file is told by its id, with all files, and the log is not looked at."""
    write(tmp_path, described("a", "x"), a="x")
    assert found(tmp_path) == [no_log(tmp_path)]
    (tmp_path / "a link").symlink_to(tmp_path / "a")
    (tmp_path / "z").write_text("")
    (tmp_path / "empty").mkdir()
    irregular = [(name, "is a link or no plain file") for name in ("a%20link", "empty")]
    assert found(tmp_path) == [*irregular, ("z", "is not described")]
