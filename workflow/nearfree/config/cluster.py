"""cluster.yaml: the resources of a platform's SLURM jobs. A site edits that one file."""

import re
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from nearfree.core.names import Name
from nearfree.hardware.platforms import Count
from nearfree.units import MB_PER_GB

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:-]*$(?!\n)", max_length=200)]
"""A SLURM name or a list of names; it can be neither an option nor a shell expression."""
Feature = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_\[(][A-Za-z0-9_.,:*&|()\[\]-]*$(?!\n)", max_length=200)
]
"""Features of nodes, with SLURM's operators."""
_PLAIN = re.compile(r"[A-Za-z0-9_.]+")
"""GPU types that Snakemake's plugin accepts; SLURM has others, such as a100-sxm4."""


class JobResources(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Where a platform's jobs run, and their resources; the entry `default` gives missing fields.

    With `gpus` 0 a job requests no GPU. `gpu_model` is the type in SLURM's Gres. `memory_gb` and
    `minutes` are those of the first attempt; the second gets twice as much, the third three times,
    up to `memory_gb_max` and `minutes_max`. `exclusive` keeps other jobs off the node, because
    they would disturb timings on its CPU.
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
        """Return these resources, with unset fields taken from another."""
        fields = {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}
        return structs.replace(other, **fields)

    def resources(self, attempt: int) -> dict[str, Any]:
        """Return the resources of an attempt, by their names in Snakemake's SLURM plugin."""
        plugin_type = self.gpu_model is None or _PLAIN.fullmatch(self.gpu_model)
        options = ["--exclusive"] if self.exclusive else []
        if self.gpus and not plugin_type:
            options.append(f"--gpus-per-node={self.gpu_model}:{self.gpus}")
        memory_gb = _grown(self.memory_gb, attempt, self.memory_gb_max)
        return {
            "slurm_partition": self.partition,
            "constraint": self.constraint,
            "slurm_account": self.account,
            "qos": self.qos,
            "gpu": self.gpus or None if plugin_type else None,
            "gpu_model": self.gpu_model if self.gpus and plugin_type else None,
            "cpus_per_task": self.cpus,
            "mem_mb": memory_gb * MB_PER_GB if memory_gb else None,
            "runtime": _grown(self.minutes, attempt, self.minutes_max),
            "slurm_extra": " ".join(options) or None,
        }


def _grown(first: int | None, attempt: int, limit: int | None) -> int | None:
    """Return a resource of an attempt: a multiple of the first attempt's, up to the limit."""
    return first and min(first * attempt, limit or first * attempt)


RESOURCES = tuple(JobResources().resources(1))
"""The names of the resources of a job."""


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: resources by platform, by study where it needs others, and defaults."""

    default: JobResources = JobResources()
    platforms: dict[Name, JobResources] = {}
    studies: dict[Name, JobResources] = {}

    def job_resources(self, kind: str, platform: str, study: str) -> JobResources:
        """Return the resources of a study on a platform.

        The study's entry overrides the platform's, which overrides `default`.

        Parameters
        ----------
        kind
            The platform's kind; jobs of any other kind than `cpu` request one GPU by default.
        platform, study
            Their names.
        """
        resources = JobResources(
            gpus=0 if kind == "cpu" else 1,
            cpus=4,
            memory_gb=16,
            minutes=60,
            exclusive=kind == "cpu",
        )
        for entry in (self.default, self.platforms.get(platform), self.studies.get(study)):
            resources = entry.over(resources) if entry else resources
        return resources
