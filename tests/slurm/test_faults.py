"""Jobs that SLURM kills or loses: no acknowledged point is lost or counted twice."""

import os
import random
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from nearfree.log.events import LatencyMeasured, RunFailed, RunStarted
from nearfree.log.evidence import Take, read_take
from nearfree.log.reader import read_segment

from slurm.cluster import Cluster
from slurm.faults import AGAIN, ANEW, FAULTS, lose_sight, restart_slurmd, terminate
from slurm.site import FAKES, Site, make_site
from slurm.struck import Fault, Struck, points, strike

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("NEARFREE_KILLS", "3"))
"""At how many moments each fault strikes, at least."""
STUDIES = {
    f"{fault.__name__}_{number}": fault
    for fault, number in product(FAULTS, range(-(-KILLS // len(FAKES))))
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return a site where every platform has a study for each fault and moment."""
    site = make_site(tmp_path_factory.mktemp("faults") / "site")
    site.edit("config/config.yaml", "sets: [default]", "sets: [long]")
    site.copies("long", *STUDIES)
    return site


@pytest.fixture(scope="module")
def struck(slurm: Cluster, site: Site) -> list[Struck]:
    """Return what struck which job, all jobs having come to their end."""
    studies = list(product(FAKES, STUDIES))
    run = site.start(*(f"{platform}/{study}" for platform, study in studies))
    faults = {(platform, study): STUDIES[study] for platform, study in studies}
    chance = random.Random("faults")  # noqa: S311 (moments, no secret)
    try:
        strikes = strike(slurm, site, faults, chance)
    except BaseException:
        run.kill()
        run.wait()
        raise
    until = time.monotonic() + 60 + 60 * len(studies)
    while run.poll() is None and time.monotonic() < until:
        slurm.resume_drained()
        time.sleep(1)
    output = site.end(run, 1)
    assert run.returncode == 0, output + site.logs()
    return strikes


def ended(
    site: Site, struck: list[Struck], *faults: Fault
) -> Iterator[tuple[Struck, Take, list[Any]]]:
    """Yield what the faults struck, the sealed take of each, and its runs."""
    for attempt in struck:
        if attempt.fault in faults:
            take = read_take(site.layout, attempt.take)
            yield attempt, take, [event.data for event in take.events_of(RunStarted)]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_take_is_sealed_whole_and_once(site, struck, fault):
    """After any fault at any moment every acknowledged point is kept exactly once."""
    ended_takes = list(ended(site, struck, fault))
    assert len(ended_takes) >= KILLS
    for attempt, take, (first, *_) in ended_takes:
        believed = points(take.events)
        assert take.seal.outcome == "complete"
        assert attempt.durable <= believed, "an acknowledged point was lost"
        assert set(believed.values()) == {1}, "a point was counted twice"
        assert believed.total() == first.plan.points_a_round * first.plan.protocol.rounds


@pytest.mark.parametrize("fault", [*AGAIN, *ANEW])
def test_the_log_tells_every_attempt_its_job_and_its_node(slurm, site, struck, fault):
    """SLURM's own requeue keeps the number of the job; a job that failed is followed by another."""
    for attempt, take, runs in ended(site, struck, fault):
        assert [run.attempt for run in runs] == [1, 2]
        assert [part.attempt for part in take.seal.segments] == [1, 2]
        assert {run.scheduler.node for run in runs} == {attempt.job.node}
        assert [run.scheduler.restart for run in runs] == ["0", "1" if fault in AGAIN else "0"]
        jobs = [run.scheduler.job_id for run in runs]
        assert jobs[0] == attempt.job.id
        assert (jobs[1] == jobs[0]) == (fault in AGAIN)
        assert slurm.job(jobs[0]).restarts == (fault in AGAIN)


def test_a_job_that_lives_on_measures_alone(slurm, site, struck):
    """The one that SLURM started beside it waited for its lock, and found the take sealed."""
    for attempt, take, (run, *others) in ended(site, struck, restart_slurmd, lose_sight):
        assert not others
        assert [part.attempt for part in take.seal.segments] == [1]
        assert run.scheduler.job_id == attempt.job.id
        assert slurm.job(attempt.job.id).restarts == (attempt.fault is lose_sight)


def test_a_job_that_is_told_to_stop_says_so(site, struck):
    """A job that gets SIGTERM ends after a complete round and records the reason."""
    for attempt, _, _ in ended(site, struck, terminate):
        segment = read_segment(site.layout.segment(attempt.take, 1), attempt.take.segment(1))
        *_, before, last = (event.data for event in segment.events)
        assert isinstance(last, RunFailed)
        assert "SIGTERM" in last.error
        assert isinstance(before, LatencyMeasured)
        assert before.order == before.round_points - 1


def test_the_log_verifies(site, struck):
    """After all faults `verify` finds no damage."""
    assert " 0 damaged" in site.nearfree("verify")
