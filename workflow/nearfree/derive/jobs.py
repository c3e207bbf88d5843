"""Stages at work: the tables themselves, and the jobs that make them, one a stage and scope."""

from collections.abc import Callable
from graphlib import TopologicalSorter
from importlib import import_module
from typing import Any

from msgspec import Struct

from nearfree.config.files import Config
from nearfree.derive.stages import STAGE_OF, STAGES
from nearfree.derive.tables.schema import Table
from nearfree.errors import ConfigError
from nearfree.log.names import Layout

TABLES: dict[str, Table] = {
    name: getattr(import_module(stage.tables[name]), name.upper())
    for name, stage in STAGE_OF.items()
}
"""Every table by name, those of observations first."""
OBSERVED = tuple(STAGES["project"].tables)
"""The tables of what was observed, on which all others rest."""


class Job(Struct, frozen=True, order=True):
    """One stage of one scope."""

    stage: str
    scope: str


def job_of(scope: str, table: str) -> Job:
    """Return the job that makes a scope's table."""
    return Job(STAGE_OF[table].name, scope)


def before(job: Job) -> set[Job]:
    """Return the jobs whose tables a job reads."""
    return {job_of(scope, table) for scope, table in STAGES[job.stage].inputs(job.scope)}


def needed(job: Job) -> list[Job]:
    """Return a job and all that come before it, in an order in which they can be done."""
    graph, todo = {}, [job]
    while todo:
        earlier = todo.pop()
        graph[earlier] = before(earlier)
        todo += graph[earlier]
    return list(TopologicalSorter(graph).static_order())


def make(layout: Layout, config: Config, job: Job) -> None:
    """Write a stage's tables of a scope.

    What asks predictors is given the config, anything else the values of its parameters alone.

    Raises
    ------
    ConfigError
        The stage is not of such a scope.
    """
    stage, scope = STAGES[job.stage], job.scope
    if not stage.has(scope):
        raise ConfigError(
            f"the stage {stage.name} makes no table of {scope!r}",
            remedy=f"Name a scope of these: {', '.join(stage.scopes)}",
        )
    module, _, name = stage.make.rpartition(".")
    write: Callable[..., None] = getattr(import_module(module), name)
    if stage.answers:
        write(layout, scope, config)
    else:
        write(layout, scope, **{name: _value(config, scope, name) for name in stage.parameters})


def _value(config: Config, scope: str, parameter: str) -> Any:
    return (
        config.datasheets(scope) if parameter == "datasheets" else getattr(config.site, parameter)
    )
