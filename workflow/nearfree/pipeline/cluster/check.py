"""Trying a cluster out: one second on a node of every platform, and what is wrong there."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from nearfree.errors import SchedulerError
from nearfree.hardware.identity import STREAM
from nearfree.hardware.platforms import Platform, as_alias, driver_names
from nearfree.log.codebase import package_digest
from nearfree.log.segment import lock
from nearfree.pipeline.cluster.jobs import require_slurm, slurm, submit, wait
from nearfree.pipeline.cluster.node import LOCK, Seen
from nearfree.pipeline.pipeline import Pipeline

_CLOCK_S = 60.0
"""How far a node's clock may be from this one's: a queue's delay is not in it, NTP's is."""

_NOT_THERE = "config.yaml names {1} for the environment {0}, which is not there"
_TO_MAKE = "the environment {0} is not made yet: the workflow makes it first"


class NodeReport(Struct, frozen=True, kw_only=True):
    """A platform's job: what its node saw, what is wrong, and what is worth knowing."""

    platform: str
    resources: str
    """Partition, constraint and GPU model that the job asked for."""
    seen: Seen | None
    wrong: tuple[str, ...]
    notes: tuple[str, ...] = ()


def check(pipeline: Pipeline, logs: Path, timeout_s: float) -> Iterator[NodeReport]:
    """Submit a job for every platform of `here`, and yield what came of it, in their order.

    Raises
    ------
    SchedulerError
        SLURM is not there.
    """
    require_slurm()
    logs.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=logs, prefix="check-") as name:
        folder = Path(name).absolute()
        held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(held, LOCK)
            yield from _check_platforms(pipeline, folder, timeout_s)
        finally:
            os.close(held)


def accounting() -> bool:
    """Return whether the cluster keeps accounts of jobs, which sacct needs."""
    for line in slurm("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "AccountingStorageType":
            return not value.strip().endswith("/none")
    return False


def _check_platforms(pipeline: Pipeline, folder: Path, timeout_s: float) -> Iterator[NodeReport]:
    config = pipeline.config
    made = {
        platform: {
            name: python
            for name, python in pipeline.interpreters(platform).items()
            if which(python)
        }
        for platform in config.site.here
    }
    jobs: dict[str, str] = {}
    refused: dict[str, str] = {}
    for platform in config.site.here:
        try:
            jobs[platform] = submit(
                platform,
                config.job_resources(platform, STREAM),
                folder,
                made[platform],
                kind=config.platform(platform).kind,
            )
        except SchedulerError as error:
            refused[platform] = error.what
    began_s = time.time()
    refused |= wait(jobs, folder, timeout_s)
    for platform in config.site.here:
        job = config.job_resources(platform, STREAM)
        wanted = " ".join(filter(None, (job.partition, job.constraint, job.gpu_model)))
        if platform in refused:
            yield NodeReport(
                platform=platform, resources=wanted, seen=None, wrong=(refused[platform],)
            )
            continue
        seen = msgspec.json.decode((folder / f"{platform}.json").read_bytes(), type=Seen)
        wrong = tuple(_wrong(config.platforms, platform, seen))
        wrong += tuple(
            _NOT_THERE.format(name, config.site.python[name])
            for name in pipeline.interpreters(platform).keys() - made[platform]
            if name in config.site.python
        )
        missing = sorted(pipeline.interpreters(platform).keys() - made[platform])
        notes = (
            *_notes(seen, began_s),
            *(_TO_MAKE.format(name) for name in missing if name not in config.site.python),
        )
        yield NodeReport(platform=platform, resources=wanted, seen=seen, wrong=wrong, notes=notes)


def _wrong(platforms: dict[str, Platform], name: str, seen: Seen) -> Iterator[str]:
    if seen.code_digest != package_digest():
        yield "it sees other code than this: is the project on a shared file system?"
    for environment, fault in seen.environments.items():
        if fault:
            yield f"environment {environment}: {fault}"
    platform = platforms[name]
    if platform.kind == "cpu":
        return
    if seen.visible is None and not seen.gpus:
        yield "the job got no GPU (no CUDA_VISIBLE_DEVICES, no nvidia-smi): gpus or partition?"
    for gpu in sorted(set(seen.gpus)):
        names = driver_names(name, platform)
        if names and as_alias(gpu) not in names:
            yield f"its GPU is {gpu!r}, the platform's is {platform.device_name!r}"


def _notes(seen: Seen, began_s: float) -> Iterator[str]:
    if not seen.locked:
        yield (
            "locks are not seen across nodes: two attempts of one take can run at once; "
            "the log stays whole, but work may be done twice"
        )
    if not began_s - _CLOCK_S <= seen.time_s <= time.time() + _CLOCK_S:
        yield f"its clock is {seen.time_s - time.time():+.0f} s off: the log's times will be"
