"""The tables, and the jobs that make them, one per stage and scope."""

from collections.abc import Callable
from graphlib import TopologicalSorter
from importlib import import_module
from typing import Any

from msgspec import Struct

from nearfree.config.files import Config
from nearfree.derive.stages import STAGE_OF, STAGES, declared
from nearfree.derive.tables.schema import Table
from nearfree.errors import ConfigError
from nearfree.log.names import Layout

TABLES: dict[str, Table] = {name: declared(name) for name in STAGE_OF}
"""Every table by name, those of observations first."""
OBSERVED = tuple(STAGES["project"].tables)
"""The tables of observations, from which all others are derived."""


class Job(Struct, frozen=True, order=True):
    """One stage of one scope."""

    stage: str
    scope: str


def job_of(scope: str, table: str) -> Job:
    """Return the job that makes a scope's table."""
    return Job(STAGE_OF[table].name, scope)


def dependencies(job: Job) -> set[Job]:
    """Return the jobs whose tables a job reads."""
    return {job_of(scope, table) for scope, table in STAGES[job.stage].inputs(job.scope)}


def with_dependencies(job: Job) -> list[Job]:
    """Return a job and all jobs that it depends on, dependencies first."""
    graph, pending = {}, [job]
    while pending:
        earlier = pending.pop()
        graph[earlier] = dependencies(earlier)
        pending += graph[earlier]
    return list(TopologicalSorter(graph).static_order())


def make(layout: Layout, config: Config, job: Job) -> None:
    """Write a stage's tables of a scope.

    A stage that queries predictors gets the whole config, any other only its parameters' values.
    Raises ConfigError if the stage has no job of this scope.
    """
    stage, scope = STAGES[job.stage], job.scope
    if not stage.has(scope):
        raise ConfigError(
            f"the stage {stage.name} makes no table of {scope!r}",
            remedy=f"Name a scope of these: {', '.join(stage.scopes)}",
        )
    module, _, name = stage.make.rpartition(".")
    make_tables: Callable[..., None] = getattr(import_module(module), name)
    if stage.answers:
        make_tables(layout, scope, config)
    else:
        make_tables(
            layout, scope, **{name: _value(config, scope, name) for name in stage.parameters}
        )


def _value(config: Config, scope: str, parameter: str) -> Any:
    return (
        config.datasheets(scope) if parameter == "datasheets" else getattr(config.site, parameter)
    )
