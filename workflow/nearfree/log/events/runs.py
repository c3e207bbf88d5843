"""Events of runs and of the log itself: starts, ends, recovered attempts, retractions."""

from typing import Literal

from msgspec import Struct

from nearfree.core.plan import Plan
from nearfree.log.events.payload import Payload


class Scheduler(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The batch job of a run, as the batch system names it."""

    system: str
    job_id: str | None = None
    restart: str | None = None
    node: str | None = None
    partition: str | None = None
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES: GPU numbers as the job counts them."""
    gpus: str | None = None
    """The job's GPUs, numbered as the batch system counts the node's."""


class RunStarted(Payload, frozen=True, kw_only=True):
    """The start of a run: command, plan, code, packages, environment and device."""

    type_name = "nearfree.run.started.v1"
    command: str
    plan: Plan
    plan_digest: str
    attempt: int
    commit: str | None
    dirty: bool | None
    code_digest: str
    python: str
    versions: dict[str, str]
    lock_sha256: str | None
    environment_sha256: str | None = None
    """SHA-256 over every installed distribution and its version."""
    host_label: str
    device: str | None = None
    driver: str | None = None
    clocks_mhz: dict[str, float] | None = None
    power_cap_w: float | None = None
    scheduler: Scheduler | None = None


class RunFinished(Payload, frozen=True, kw_only=True):
    """The end of a take; `partial` if it was closed before its plan was done."""

    type_name = "nearfree.run.finished.v1"
    outcome: Literal["complete", "partial"]
    wall_s: float
    timed_s: float | None = None


class RunFailed(Payload, frozen=True, kw_only=True):
    """The attempt ended in an error."""

    type_name = "nearfree.run.failed.v1"
    error: str
    remedy: str


class SegmentRecovered(Payload, frozen=True, kw_only=True):
    """The prefix of an interrupted attempt that a new attempt keeps."""

    type_name = "nearfree.segment.recovered.v1"
    segment: str
    kept_events: int
    kept_bytes: int
    ignored_bytes: int
    head: str
    torn: bool


class ObservationRetracted(Payload, frozen=True, kw_only=True):
    """An event, or a whole take, that must not be used any more, and why."""

    type_name = "nearfree.observation.retracted.v1"
    target: str
    reason: str
