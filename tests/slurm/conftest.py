"""The cluster that a file of tests runs on; only one can be on a machine at a time."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.cluster import Cluster, lacking
from slurm.link import only_one


@pytest.fixture(scope="module")
def machine() -> Iterator[None]:
    """Hold the machine's one place for a cluster; without SLURM skip, or fail in CI."""
    reason = lacking()
    if reason and "CI" in os.environ:
        pytest.fail(f"these tests must run in CI: {reason}")
    if reason:
        pytest.skip(reason)
    with only_one():
        yield


@pytest.fixture(scope="module")
def slurm(machine: None) -> Iterator[Cluster]:
    """Return a cluster whose nodes are idle."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the path of a socket is limited
    cluster = Cluster(folder)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)
