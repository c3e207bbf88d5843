"""Events of runs and of the log itself: starts, ends, recovered attempts, retractions."""

from typing import Literal

from msgspec import Struct

from nearfree.core.bounds import AtLeastZero, Text
from nearfree.core.plan import Plan
from nearfree.core.protocols import Natural, Positive
from nearfree.core.weights import Digest
from nearfree.log.events.payload import Payload


class Scheduler(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The batch job of a run, as the batch system names it."""

    system: Text
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
    command: Text
    plan: Plan
    plan_digest: Digest
    attempt: Positive
    commit: Text | None
    dirty: bool | None
    code_digest: Text
    python: Text
    versions: dict[Text, Text]
    lock_sha256: Digest | None
    environment_sha256: Digest | None = None
    """SHA-256 over every installed distribution and its version."""
    host_label: Text
    device: Text | None = None
    driver: Text | None = None
    clocks_mhz: dict[Text, AtLeastZero] | None = None
    power_cap_w: AtLeastZero | None = None
    scheduler: Scheduler | None = None


class RunFinished(Payload, frozen=True, kw_only=True):
    """The end of a take; `partial` if it was closed before its plan was done."""

    type_name = "nearfree.run.finished.v1"
    outcome: Literal["complete", "partial"]
    wall_s: AtLeastZero
    timed_s: AtLeastZero | None = None


class RunFailed(Payload, frozen=True, kw_only=True):
    """The attempt ended in an error."""

    type_name = "nearfree.run.failed.v1"
    error: Text
    remedy: str


class SegmentRecovered(Payload, frozen=True, kw_only=True):
    """The prefix of an interrupted attempt that a new attempt keeps."""

    type_name = "nearfree.segment.recovered.v1"
    segment: Text
    kept_events: Natural
    kept_bytes: Natural
    ignored_bytes: Natural
    head: str
    torn: bool


class ObservationRetracted(Payload, frozen=True, kw_only=True):
    """An event, or a whole take, that must not be used any more, and why."""

    type_name = "nearfree.observation.retracted.v1"
    target: Text
    reason: Text
