"""cluster.yaml: what a SLURM job of each platform asks for. A site edits that one file."""

import re
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from nearfree.core.names import Name
from nearfree.hardware.platforms import Count
from nearfree.units import MB_PER_GB

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:-]*$(?!\n)", max_length=200)]
"""A name as SLURM writes names, or a list of them; never an option, nothing for a shell."""
Feature = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_\[(][A-Za-z0-9_.,:*&|()\[\]-]*$(?!\n)", max_length=200)
]
"""Features of nodes, with SLURM's operators."""
_PLAIN = re.compile(r"[A-Za-z0-9_.]+")
"""Types of GPUs that Snakemake's plugin takes; SLURM has others, such as a100-sxm4."""


class JobResources(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Where a platform's jobs run, and with what; what is left out, the entry `default` says.

    `gpus` 0 asks for no GPU, `gpu_model` is the type in SLURM's Gres. `memory_gb` and `minutes`
    are those of a first attempt; the second gets twice as much, the third three times, up to
    `memory_gb_max` and `minutes_max`.
    `exclusive` keeps other jobs away from the node, whose noise a CPU's timing would hold.
    """

    partition: Word | None = None
    constraint: Feature | None = None
    account: Word | None = None
    qos: Word | None = None
    gpus: Annotated[int, Meta(ge=0, lt=1000)] | None = None
    gpu_model: Word | None = None
    cpus: Count | None = None
    memory_gb: Count | None = None
    memory_gb_max: Count | None = None
    minutes: Count | None = None
    minutes_max: Count | None = None
    exclusive: bool | None = None

    def over(self, other: "JobResources") -> "JobResources":
        """Return these resources, with what they leave open taken from another."""
        fields = {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}
        return structs.replace(other, **fields)

    def resources(self, attempt: int) -> dict[str, Any]:
        """Return the resources of an attempt, by the names that Snakemake's plugin knows."""
        plain = self.gpu_model is None or _PLAIN.fullmatch(self.gpu_model)
        other = None if plain or not self.gpus else f"--gpus-per-node={self.gpu_model}:{self.gpus}"
        extra = " ".join(filter(None, ("--exclusive" if self.exclusive else None, other)))
        memory_gb = _grown(self.memory_gb, attempt, self.memory_gb_max)
        return {
            "slurm_partition": self.partition,
            "constraint": self.constraint,
            "slurm_account": self.account,
            "qos": self.qos,
            "gpu": self.gpus or None if plain else None,
            "gpu_model": self.gpu_model if self.gpus and plain else None,
            "cpus_per_task": self.cpus,
            "mem_mb": memory_gb * MB_PER_GB if memory_gb else None,
            "runtime": _grown(self.minutes, attempt, self.minutes_max),
            "slurm_extra": extra or None,
        }


def _grown(first: int | None, attempt: int, most: int | None) -> int | None:
    return first and min(first * attempt, most or first * attempt)


RESOURCES = tuple(JobResources().resources(1))
"""The names of the resources that a job asks for."""


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file: an entry a platform, studies that need more, and what holds otherwise."""

    default: JobResources = JobResources()
    platforms: dict[Name, JobResources] = {}
    studies: dict[Name, JobResources] = {}

    def job_resources(self, kind: str, platform: str, study: str) -> JobResources:
        """Return what a study asks for on a platform: the study's word first, the default's last.

        Parameters
        ----------
        kind
            The platform's: one that is no CPU asks for a GPU where nothing else is said.
        """
        plain = JobResources(
            gpus=0 if kind == "cpu" else 1,
            cpus=4,
            memory_gb=16,
            minutes=60,
            exclusive=kind == "cpu",
        )
        resources = plain
        for entry in (self.default, self.platforms.get(platform), self.studies.get(study)):
            resources = entry.over(resources) if entry else resources
        return resources
