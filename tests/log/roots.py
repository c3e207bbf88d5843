"""Whole results roots for the tests of `verify`."""

from pathlib import Path

from conftest import write_take
from nearfree.log.document import (
    FolderManifest,
    Manifest,
    manifest_path,
    render,
    replace,
    write_folder_manifest,
)
from nearfree.log.ledger import write_ledger
from nearfree.log.line import sha256
from nearfree.log.names import Layout


def make_table(path: Path, raw: bytes = b"PAR1 some columns PAR1") -> Path:
    """Write a table file, any bytes, and the manifest that names it."""
    replace(path, raw)
    manifest = Manifest(table=path.stem, rows=3, sha256=sha256(raw), made_from={"cpu": "0" * 64})
    replace(manifest_path(path), render(manifest))
    return path


def write_sound_root(layout: Layout) -> Layout:
    """Write two takes, both ledgers, the ledger's receipt, a table, a figure and a report."""
    config = layout.root.parent / "config"
    config.mkdir()
    (config / "config.yaml").write_text("here: [cpu]\n")
    for take in (1, 2):
        write_take(layout, take=take)
    for folder in (layout.ledgers, layout.ledgers / "local"):
        newest = write_ledger(layout, folder, config)
    replace(layout.state / "ledger.json", newest.read_bytes())
    make_table(layout.table("cpu", "latency"))
    figure = replace(layout.root / "figures" / "cpu" / "latency.svg", b"<svg/>")
    listed = FolderManifest(files={figure.name: sha256(figure.read_bytes())})
    replace(figure.with_name("figures.json"), render(listed))
    replace(layout.root / "report" / "index.html", b"<html/>")
    write_folder_manifest(layout.root / "report")
    return layout
