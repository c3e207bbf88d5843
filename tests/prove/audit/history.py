"""A log with a ledger after each kind of change, and what was derived at the first ledger."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from derive.tables.logs import CONFIG, copy_config, write_probe, write_public, write_study
from nearfree.cli import main
from nearfree.log.document import write_once
from nearfree.log.ledger import Ledger, read_chain, seals_root, write_ledger
from nearfree.log.names import Layout, TakeName
from nearfree.log.retract import retract
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.ledgers import NamedLedger, find_ledger
from nearfree.prove.audit.recompute import make_all

RECORDED = CONFIG.parent / "results/events"
RELEASE = "flash_attn_2_8_3"
REASON = "a backup ran \x1b[31m<script>"
STEPS = ("first", "retake", "tolerance", "retraction", "datasheet", "constants", "rules", "sample",
         "deployment")  # fmt: skip
"""What each ledger comes after, the first ledger first."""
DERIVED = ("tables", "figures", "report")


class History(NamedTuple):
    """A project's folder, its log, and the takes of its study, of which the second is retracted."""

    folder: Path
    layout: Layout
    first: TakeName
    second: TakeName

    @property
    def config(self) -> Path:
        """The config folder."""
        return self.folder / "config"

    @property
    def kept(self) -> Path:
        """The results that were derived when the first ledger was written."""
        return self.folder / "kept"

    def ledger(self, step: str) -> NamedLedger:
        """Return the ledger after a step."""
        return find_ledger(self.layout, str(STEPS.index(step) + 1))

    def copy(self, folder: Path) -> "History":
        """Return a copy of the log and the config, which a test may change."""
        for name in ("events", "ledger"):
            shutil.copytree(self.layout.root / name, folder / "results" / name)
        shutil.copytree(self.config, folder / "config")
        return History(folder, Layout(folder / "results"), self.first, self.second)

    def write(self, **changes: object) -> NamedLedger:
        """Write one more ledger with changed fields, whose root and chain are right."""
        chain = read_chain(self.layout.ledgers / "local")
        fields = {name: getattr(chain[-1], name) for name in Ledger.__struct_fields__}
        fields |= {"number": len(chain) + 1, "previous": chain[-1].hash, "hash": ""} | changes
        fields["root"] = seals_root(fields["seals"])
        ledger = Ledger(**fields)
        write_once(self.layout.ledgers / "local" / f"{ledger.number:06}.json", ledger)
        return find_ledger(self.layout, str(ledger.number))


def make_history(folder: Path) -> None:
    """Write the log step by step, a ledger after each, and keep the first ledger's results."""
    layout, config = Layout(folder / "results"), copy_config(folder / "config")
    local = layout.ledgers / "local"
    write_probe(layout)
    first = write_study(layout).name
    write_public(layout)
    write_ledger(layout, local, config)
    make_all(Pipeline(layout.root, config), figures=True)
    with pytest.raises(SystemExit):
        main(["report", "--results", str(layout.root), "--config", str(config)])
    for name in DERIVED:
        shutil.move(layout.root / name, folder / "kept" / name)
    second = write_study(layout, take=2, slower=3.0).name
    write_ledger(layout, local, config)
    _edit(config / "config.yaml", "0.15, ", "")
    write_ledger(layout, local, config)
    retract(layout, str(second), REASON)
    write_ledger(layout, local, config)
    _edit(config / "platforms.yaml", "bandwidth_gb_s: 4000\n", "bandwidth_gb_s: 3900\n")
    write_ledger(layout, local, config)
    shutil.copytree(RECORDED / "public/constants", layout.events / "public/constants")
    write_ledger(layout, local, config)
    shutil.copytree(RECORDED / "sources" / RELEASE, layout.events / "sources" / RELEASE)
    write_ledger(layout, local, config)
    retract(layout, f"{first.segment(1)}#2", REASON)
    write_ledger(layout, local, config)
    _edit(config / "deployments.yaml", "batch: [1]", "batch: [1, 2]")
    write_ledger(layout, local, config)
    assert len(read_chain(local)) == len(STEPS)


def read_history(folder: Path) -> History:
    """Return the history that a folder holds."""
    layout = Layout(folder / "results")
    first, second = (name for name in layout.takes("cpu") if name.stream == "dense_ffn")
    return History(folder, layout, first, second)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))
