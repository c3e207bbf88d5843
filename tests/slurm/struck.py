"""Running studies that are struck at random moments, and what was durable just before."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, json
from nearfree.log.events import Event, LatencyMeasured, RunStarted
from nearfree.log.names import TakeName
from nearfree.log.reader import read_segment
from nearfree.measure.rounds import whole_rounds

from slurm.cluster import Cluster
from slurm.jobs import Job
from slurm.site import Site

Fault = Callable[[Cluster, Job], None]
Points = Counter[tuple[bytes, int, int]]
_MOST_LINES = 800
"""A study of 400 rounds writes 1,600 events, so it still runs when its fault comes."""


class Struck(Struct, frozen=True, kw_only=True):
    """A take, the points that were durable just before its fault, and the job that was hit."""

    take: TakeName
    fault: Fault
    durable: Points
    job: Job


def points(events: Iterable[Event]) -> Points:
    """Count the (setting, N, round) among events."""
    visits = (event.data for event in events if isinstance(event.data, LatencyMeasured))
    return Counter((json.encode(visit.setting), visit.n, visit.round) for visit in visits)


def durable(site: Site, take: TakeName) -> Points:
    """Return the points of all complete rounds of an unsealed take."""
    counted: Points = Counter()
    for attempt in site.layout.attempts(take):
        segment = read_segment(site.layout.segment(take, attempt), take.segment(attempt))
        for event in segment.events[:1]:
            assert isinstance(event.data, RunStarted)
            counted += points(segment.events[: whole_rounds(segment, event.data.plan)])
    return counted


def strike(
    slurm: Cluster, site: Site, faults: Mapping[tuple[str, str], Fault], chance: random.Random
) -> list[Struck]:
    """Hit the job of each platform's study once, at a random moment of its first attempt."""
    moments = {fault: chance.randrange(_MOST_LINES) for fault in faults}
    strikes: list[Struck] = []
    looked = time.monotonic()
    until = looked + 60 + 60 * len(faults)
    while moments:
        assert time.monotonic() < until, f"nothing of {list(moments)}{site.logs()}"
        for (platform, study), least in list(moments.items()):
            for take in site.names(platform, study, sealed=False):
                if _lines(site, take) > least:
                    job = running(slurm, platform, study)
                    before = durable(site, take)
                    fault = faults[platform, study]
                    fault(slurm, job)
                    strikes.append(Struck(take=take, fault=fault, durable=before, job=job))
                    del moments[platform, study]
        if time.monotonic() > looked + 1:
            slurm.resume_drained()
            looked = time.monotonic()
        time.sleep(0.02)
    return strikes


def _lines(site: Site, take: TakeName) -> int:
    return site.layout.segment(take, 1).read_bytes().count(b"\n")


def running(slurm: Cluster, platform: str, study: str) -> Job:
    """Return the job that measures a study now."""
    what = f"rule_measure_wildcards_{platform}_{study}_"
    (job,) = (j for j in slurm.jobs() if j.state == "RUNNING" and j.comment.startswith(what))
    return job
