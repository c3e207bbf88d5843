"""Many writers on one shared folder, and the ledgers that are made meanwhile."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from nearfree.log.ledger import current_seals, ledger_paths, read_chain, write_ledger
from nearfree.log.names import Layout
from nearfree.log.verify import verify

from log.faults import HERE, PATHS

WRITERS, TAKES = 64, 5


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a config folder."""
    folder = tmp_path_factory.mktemp("config")
    (folder / "config.yaml").write_text("here: [cpu]\n")
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Layout:
    """Return a root that many processes wrote to at once without an error."""
    root = tmp_path_factory.mktemp("shared") / "results"
    done = subprocess.run(
        [sys.executable, HERE / "writers.py", root, config, str(WRITERS), str(TAKES)],
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Layout(root)


def local(layout: Layout) -> Path:
    """Return the folder of this machine's own ledgers."""
    return layout.ledgers / "local"


def test_every_take_is_sealed(shared: Layout) -> None:
    """Each writer's takes are complete, and exactly one writer sealed the contested take."""
    assert len(shared.takes()) == WRITERS * TAKES + 1
    summary = verify(shared.root)
    assert (summary.damaged, summary.takes) == (False, WRITERS * TAKES + 1)


def test_ledgers_that_were_made_meanwhile_are_a_chain(shared: Layout) -> None:
    """Each ledger names the one before it, and lists all that it lists and something more."""
    chain = read_chain(local(shared))
    assert len(chain) > 2
    assert len(chain) == len(ledger_paths(local(shared)))
    for before, after in pairwise(chain):
        assert before.seals.items() < after.seals.items()


def test_ledgers_list_seals_as_they_are(shared: Layout) -> None:
    """A seal listed by a ledger while others were written is still the same seal."""
    seals = current_seals(shared)
    for ledger in read_chain(local(shared)):
        assert ledger.seals.items() <= seals.items()


def test_the_last_ledger_lists_every_take(shared: Layout, config: Path) -> None:
    """When the writers are done, the next ledger lists all that there is."""
    write_ledger(shared, local(shared), config)
    assert read_chain(local(shared))[-1].seals == current_seals(shared)
