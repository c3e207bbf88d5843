"""Fixtures of the audit's tests: a results root with all tables and figures, and its config."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from derive.tables.logs import CONFIG, copy_config, write_probe, write_public, write_study
from nearfree.log.names import Layout
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.recompute import make_all
from once import made_once
from prove.audit.history import History, make_history, read_history

CONSTANTS = CONFIG.parent / "results/events/public/constants"


class Made(NamedTuple):
    """A results root and the config folder that it was made under."""

    layout: Layout
    config: Path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a read-only root: two takes of this machine, one of another, the paper's values."""

    def make(folder: Path) -> None:
        layout = Layout(folder / "results")
        config = copy_config(folder / "config")
        for scope in ("cpu", "h20"):
            write_probe(layout, scope)
            write_study(layout, scope)
        write_study(layout, take=2, slower=1.1)
        write_public(layout)
        shutil.copytree(CONSTANTS, layout.events / "public" / "constants")
        make_all(Pipeline(layout.root, config), figures=True)

    folder = made_once(tmp_path_factory, "audited", make)
    return Made(Layout(folder / "results"), folder / "config")


@pytest.fixture
def made(shared: Made, tmp_path: Path) -> Made:
    """Return a copy of that root, which a test may change."""
    root = Path(shutil.copytree(shared.layout.root, tmp_path / "results"))
    return Made(Layout(root), shared.config)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Return a read-only log with a ledger after each step of its history."""
    return read_history(made_once(tmp_path_factory, "history", make_history))
