"""Fixtures of the crate's tests: a small results root, its crate, and copies of both."""

import shutil
from pathlib import Path

import pytest
from derive.tables.logs import CONFIG, make_tables, write_probe, write_public, write_study
from nearfree.config.files import Config
from nearfree.log.ledger import write_ledger
from nearfree.log.names import Layout
from nearfree.prove.crate.write import write_crate
from nearfree.show.figures.stage import draw
from once import made_once
from prove.crate.validator import make_cache

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a root with a log, its tables and figures, and a ledger."""

    def make(folder: Path) -> None:
        layout = Layout(folder)
        write_probe(layout)
        write_study(layout)
        write_public(layout)
        for scope in ("cpu", "public"):
            config = Config(CONFIG)
            make_tables(layout, scope, config.site.tolerances, deployed=config)
        draw(layout, "cpu", 0.2)
        write_ledger(layout, layout.ledgers / "local", CONFIG)

    return Layout(made_once(tmp_path_factory, "crated", make))


@pytest.fixture(scope="session")
def written(made: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the crate of that root, to be read only."""
    out = tmp_path_factory.mktemp("written") / "crate"
    write_crate(made, PROJECT, CONFIG, out)
    return out


@pytest.fixture
def crate(written: Path, tmp_path: Path) -> Path:
    """Return a copy of the crate."""
    return Path(shutil.copytree(written, tmp_path / "crate"))


@pytest.fixture
def root(made: Layout, tmp_path: Path) -> Layout:
    """Return a copy of the root."""
    return Layout(Path(shutil.copytree(made.root, tmp_path / "results")))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the validator's cache."""
    return make_cache(tmp_path_factory.mktemp("cache") / "http")
