"""Tampering: a changed, removed or added file anywhere below a results root is found and named."""

import os
import random
import shutil
from pathlib import Path

import pytest
from derive.tables.logs import (
    CONFIG,
    SHEETS,
    make_results,
)
from nearfree.log.document import (
    FolderManifest,
    read_document,
    render,
    replace,
    write_folder_manifest,
)
from nearfree.log.ledger import write_ledger
from nearfree.log.names import Layout
from nearfree.show.figures.gallery import read_gallery
from nearfree.show.figures.listing import LIST, FigureList
from nearfree.show.figures.stage import draw
from nearfree.show.page.stage import write_report
from once import commit, made_once

from log.faults import damage, flip

pytestmark = pytest.mark.slow

FLIPS = int(os.environ.get("NEARFREE_FLIPS", "15"))
"""How many bits a commit draws."""
SCOPES = ["cpu", "public"]
FOLDERS = ("events", "ledger", "tables", "figures", "report")
KINDS = {".html", ".js", ".json", ".jsonl", ".parquet", ".svg"}


@pytest.fixture(scope="module")
def root(published: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sound root with a log, a ledger, tables, figures and a report over them."""

    def make(folder: Path) -> None:
        layout = make_results(Layout(folder), published, takes=1)
        for scope in SCOPES:
            draw(layout, scope, 0.2)
        write_report(layout, SCOPES, SHEETS, 0.2, read_gallery(layout, CONFIG, SCOPES))
        newest = write_ledger(layout, layout.ledgers / "local", CONFIG)
        replace(layout.state / "ledger.json", newest.read_bytes())

    root = made_once(tmp_path_factory, "sound", make)
    assert damage(root) == []
    return root


def files(root: Path) -> list[Path]:
    """Return every file that the rule is about."""
    every = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*")))
    return [path for path in every if path.is_file()]


def named(root: Path, path: Path) -> bool:
    """Return whether a finding of `verify` names the damaged file."""
    name = path.relative_to(root).as_posix()
    return any(finding.path == name or f"/{name}" in finding.message for finding in damage(root))


def test_the_root_holds_every_kind_of_file(root: Path) -> None:
    """The random choices below can fall on each kind of file in each folder."""
    assert {path.suffix for path in files(root)} == KINDS
    assert {path.relative_to(root).parts[0] for path in files(root)} == {*FOLDERS}


def test_any_flipped_bit_is_named(root: Path) -> None:
    """One bit of one file is changed: the file is found by name, however often it is tried."""
    rolled = random.Random(commit())  # noqa: S311 (the same choices for one commit)
    unnamed = []
    for _ in range(FLIPS):
        path = rolled.choice(files(root))
        raw = path.read_bytes()
        bit = rolled.randrange(8 * len(raw))
        path.write_bytes(flip(raw, bit))
        if not named(root, path):
            unnamed.append((path.name, bit))
        path.write_bytes(raw)
    assert unnamed == []
    assert damage(root) == []


def test_any_cut_or_longer_file_is_named(root: Path) -> None:
    """A file that lost its last byte is found; one with a byte more is, but for a segment."""
    unnamed = []
    for path in files(root):
        raw = path.read_bytes()
        longer = [raw + b"\n"] if path.suffix != ".jsonl" else []
        for other in [raw[:-1], *longer]:
            path.write_bytes(other)
            if not named(root, path):
                unnamed.append((path.name, len(other) - len(raw)))
        path.write_bytes(raw)
    assert unnamed == []


def test_any_removed_file_is_named(root: Path, tmp_path: Path) -> None:
    """A file that is gone is missed by name."""
    unnamed = []
    for path in files(root):
        aside = path.rename(tmp_path / path.name)
        if not named(root, path):
            unnamed.append(path.relative_to(root).as_posix())
        aside.rename(path)
    assert unnamed == []


def test_any_added_file_is_named(root: Path) -> None:
    """An added file is found in any folder."""
    folders = sorted({path.parent for path in files(root)})
    assert len(folders) > len(FOLDERS)
    for folder in folders:
        for name in ("extra.svg", "notes.txt"):
            (folder / name).write_text("<svg/>")
            assert named(root, folder / name)
            (folder / name).unlink()


def test_a_list_of_figures_cannot_vouch_for_files_elsewhere(root: Path) -> None:
    """A validly hashed list that names a file outside the figures is refused."""
    path = root / "figures/cpu" / LIST
    raw = path.read_bytes()
    made = read_document(path, FigureList)
    stray = made.files | {"../../ledger/local/000001.json": "0" * 64}
    path.write_bytes(render(FigureList(files=stray, figures=(), made_from={})))
    assert named(root, path)
    path.write_bytes(raw)


def test_a_manifest_says_every_file_but_itself(root: Path, tmp_path: Path) -> None:
    """The manifest of a folder holds its files by their path from there, and not itself."""
    folder = shutil.copytree(root / "report", tmp_path / "report")
    manifest = write_folder_manifest(folder)
    expected = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    names = set(read_document(manifest, FolderManifest).files)
    assert names == expected - {"manifest.json"}
    assert (
        write_folder_manifest(folder).read_bytes() == (root / "report" / manifest.name).read_bytes()
    )
