"""The complete workflow on the cluster: its jobs, what the log records of them, and a rerun."""

import re
from pathlib import Path

import polars as pl
import pytest
from nearfree.log.events import RunStarted

from slurm.cluster import Cluster
from slurm.jobs import Job
from slurm.site import Site, make_site
from workflow import Project

pytestmark = pytest.mark.slow
PLACES = {
    "cpu": ("cpu", "cpu", ""),
    "fake_h20": ("gpu", "h20", "gpu:h20:1"),
    "fake_a800": ("a800", "a800", "gpu:1"),
    "fake_h800": ("gpu", "h800", "gpu:h800:1"),
}
"""Partition, node and GPU of every platform's jobs, as tests/configs/slurm/cluster.yaml asks."""
KEYS = {
    "settings": ("origin", "grid"),
    "latency": ("n", "rounds", "stream", "take", "plan8", "timer", "protocol", "cache", "origin"),
    "boundaries": ("epsilon", "origin"),
    "sensitivity": ("origin",),
    "predictions": ("predictor", "basis", "epsilon", "origin"),
    "validation": ("predictor", "basis", "epsilon", "origin"),
}
"""What of each table no time enters, besides the setting itself."""
NOT_OF_THE_SETTING = {"row_id", "platform", "origin", "grid", "from_ids"}


@pytest.fixture(scope="module")
def ran(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, list[Job]]:
    """Return a project after the complete workflow, and the jobs that it submitted."""
    site = make_site(tmp_path_factory.mktemp("whole") / "site")
    site.submit("--retries", "0")
    return site, slurm.jobs()


@pytest.fixture
def site(ran: tuple[Site, list[Job]]) -> Site:
    """Return that project; copy it before changing anything."""
    return ran[0]


@pytest.fixture
def jobs(ran: tuple[Site, list[Job]]) -> list[Job]:
    """Return the jobs of its workflow."""
    return ran[1]


def observing(jobs: list[Job]) -> dict[str, Job]:
    """Return the workflow's jobs by rule and platform."""
    words = re.compile(rf"rule_(\w+?)_wildcards_({'|'.join(PLACES)})_")
    return {" ".join(words.findall(job.comment)[0]): job for job in jobs}


def test_every_observation_was_a_job_in_its_place(jobs):
    """Each probe and study ran once, with the requested partition, node and GPU."""
    observed = observing(jobs)
    assert len(jobs) == len(observed)
    assert set(observed) == {f"{rule} {name}" for rule in ("probe", "measure") for name in PLACES}
    for name, job in observed.items():
        assert (job.state, job.restarts) == ("COMPLETED", 0)
        assert (job.partition, job.node, job.gpus) == PLACES[name.split()[1]]
        assert (job.cpus, job.memory_mb, job.minutes) == (1, 2000, 5)


def test_the_log_says_which_job_it_was(jobs, site):
    """Each run holds the job, node, partition and GPU that SLURM's own list holds."""
    submitted = observing(jobs)
    for platform, (partition, node, gpus) in PLACES.items():
        for rule, stream in (("probe", "hardware"), ("measure", "dense_ffn")):
            (take,) = site.takes(platform, stream)
            (started,) = (event.data for event in take.events_of(RunStarted))
            job = started.scheduler
            assert (job.system, job.job_id) == ("slurm", submitted[f"{rule} {platform}"].id)
            assert (job.partition, job.node) == (partition, node)
            assert job.gpus == job.devices == ("0" if gpus else None)
            assert started.environment_sha256
            report = (site / "results/report/index.html").read_text()
            assert f"attempt 1: slurm job {job.job_id} on {node} ({partition}" in report


def test_everything_light_ran_where_snakemake_ran(site):
    """Only probes and studies were submitted; tables, figures and report were local."""
    rules = re.findall(r"^(local)?rule (\w+):$", site.said, re.MULTILINE)
    assert {rule for local, rule in rules if not local} == {"probe", "measure"}
    assert ("local", "report") in rules


def test_the_log_verifies(site):
    """Everything on the shared disk is accounted for."""
    assert "0 damaged, 0 notices" in site.nearfree("verify")


def untimed(project: Project, platform: str, table: str) -> pl.DataFrame:
    """Return a platform's rows of a table without timed columns, sorted."""
    folder = project / "results/tables" / platform
    own = set(pl.read_parquet_schema(folder / "settings.parquet")) - NOT_OF_THE_SETTING
    frame = pl.read_parquet(folder / f"{table}.parquet")
    names = sorted((own & set(frame.columns)) | set(KEYS[table]))
    return frame.select(names).sort(names)


@pytest.mark.parametrize("table", KEYS)
def test_tables_are_those_of_a_local_run(site, built, table):
    """Schema, rows and keys are those of the same study measured without SLURM."""
    local = pl.read_parquet(built / f"results/tables/cpu/{table}.parquet")
    for platform in PLACES:
        remote = pl.read_parquet(site / f"results/tables/{platform}/{table}.parquet")
        assert remote.schema == local.schema
        assert untimed(site, platform, table).equals(untimed(built, "cpu", table))


def test_a_retake_submits_that_platform_s_jobs_alone(slurm, site, tmp_path):
    """A retake of one platform submits only its job."""
    site = Site(site.copy(tmp_path / "site").folder)
    before = site.events()
    known = {job.id for job in slurm.jobs()}
    site.nearfree("retake", "fake_h20")
    site.submit("--retries", "0")
    new = [job for job in slurm.jobs() if job.id not in known]
    assert list(observing(new)) == ["measure fake_h20"]
    assert [(job.state, job.node) for job in new] == [("COMPLETED", "h20")]
    assert before.items() < site.events().items()
    assert [take.name.take for take in site.takes("fake_h20", "dense_ffn")] == [1, 2]
    assert {Path(name).parts[0] for name in site.events().keys() - before.keys()} == {"fake_h20"}
