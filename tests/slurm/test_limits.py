"""Too little memory, and a shared disk that is full: what was measured stays, and goes on."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nearfree.log.events import RunStarted

from slurm.cluster import Cluster
from slurm.site import FAKES, Site, make_site
from slurm.struck import durable, points

pytestmark = pytest.mark.slow
PLATFORM = FAKES[0]


@pytest.fixture(scope="module")
def probed(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return a site with one probed platform."""
    site = make_site(tmp_path_factory.mktemp("limits") / "site")
    site.edit("config/config.yaml", "sets: [default]", "sets: [long]")
    site.snakemake(f"{PLATFORM}/hardware")
    return site


@pytest.fixture
def site(probed: Site, tmp_path: Path) -> Site:
    """Return a copy of it to measure in."""
    return Site(probed.copy(tmp_path / "site").folder)


def test_a_job_killed_for_memory_gets_twice_as_much_the_next_time(slurm, site):
    """SLURM kills the first attempt for memory; the second asks for twice as much and is sealed."""
    site.edit("config/cluster.yaml", "memory_gb: 2", "memory_gb: 1")
    site.edit("config/studies.yaml", "{d_model: 256, d_ff: 512}", "{d_model: 4096, d_ff: 24576}")
    site.edit("config/studies.yaml", "rounds: 400, forwards: 5", "rounds: 10, forwards: 1")
    known = {job.id for job in slurm.jobs()}
    site.submit(f"{PLATFORM}/long")
    killed, done = (job for job in slurm.jobs() if job.id not in known)
    assert (killed.memory_mb, killed.minutes) == (1000, 5)
    assert (done.memory_mb, done.minutes) == (2000, 10)
    assert killed.state in {"OUT_OF_MEMORY", "FAILED", "CANCELLED"}
    log = (slurm.folder / f"{killed.node}.log").read_text()
    assert re.search(rf"{killed.id}.* exceeded (?:job )?memory limit", log, re.IGNORECASE)
    (take,) = site.takes(PLATFORM, "long")
    assert {run.data.scheduler.job_id for run in take.events_of(RunStarted)} <= {killed.id, done.id}


@pytest.fixture
def small_disk(site: Site) -> Iterator[Path]:
    """Put the results on a disk of their own, with room for some rounds."""
    results = site / "results"
    moved = results.rename(site / "kept")
    results.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", results], check=True)
    try:
        subprocess.run(["cp", "-a", f"{moved}/.", results], check=True)
        yield results
    finally:
        subprocess.run(["umount", results], check=True)


def test_a_full_disk_loses_nothing_acknowledged(slurm, site, small_disk):
    """The job says that the disk is full; after space is freed the same command goes on."""
    site.edit("config/studies.yaml", "rounds: 400", "rounds: 100")
    run = site.start("--retries", "0", f"{PLATFORM}/long")
    site.end(run)
    assert run.returncode != 0
    assert "was not written in full: No space left on device" in site.logs()
    (name,) = site.names(PLATFORM, "long", sealed=False)
    before = durable(site, name)
    assert before
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    site.submit("--retries", "0", f"{PLATFORM}/long")
    (take,) = site.takes(PLATFORM, "long")
    believed = points(take.events)
    assert before <= believed
    assert set(believed.values()) == {1}
    started: Any = take.started.data
    assert believed.total() == 4 * started.plan.protocol.rounds
    assert started.attempt == 2
    assert " 0 damaged" in site.nearfree("verify")
