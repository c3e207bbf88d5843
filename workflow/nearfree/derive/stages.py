"""The stages that make tables: what each writes, what it waits for, and how it is run."""

from graphlib import TopologicalSorter

from msgspec import Struct

from nearfree.config.files import Config
from nearfree.derive.claims.table import CLAIMS
from nearfree.derive.outlook.outlook_stage import TABLES as OUTLOOK
from nearfree.derive.outlook.schedules import SCHEDULES
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.accuracy import ACCURACY, DRIFT
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.score.scores import SCORES
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.derive.tables.tuned import TUNED
from nearfree.derive.tables.work import WORK
from nearfree.log.names import Layout
from nearfree.public.published import SCOPE as PUBLIC

STAGES = {
    "project": (PLATFORMS, SETTINGS, LATENCY, WORK, TIME_SHARES, GRANULARITY, TUNED),
    "boundaries": (BOUNDARIES, SENSITIVITY),
    "predictions": (PREDICTIONS,),
    "validation": (VALIDATION, COMPOSITION, SCORES),
    "accuracy": (ACCURACY, DRIFT),
    "outlook": OUTLOOK,
    "schedules": (SCHEDULES,),
    "claims": (CLAIMS,),
}
"""The tables of each stage, in an order in which every stage has what it reads."""
OBSERVED = STAGES["project"]
"""The tables of what was observed, on which all others rest."""
TABLES = {table.name: table for tables in STAGES.values() for table in tables}
"""Every table by name, those of observations first."""


class Job(Struct, frozen=True, order=True):
    """One stage of one scope."""

    stage: str
    scope: str


def job_of(scope: str, table: str) -> Job:
    """Return the job that makes a scope's table."""
    return next(Job(stage, scope) for stage, made in STAGES.items() if TABLES[table] in made)


def before(job: Job) -> set[Job]:
    """Return the jobs whose tables a job reads."""
    scope = job.scope
    match job.stage:
        case "project" | "accuracy":
            return set()
        case "boundaries" | "predictions":
            return {Job("project", scope)}
        case "validation":
            return {Job("boundaries", scope), Job("predictions", scope)}
        case "outlook" | "schedules":
            return {Job("project", PUBLIC)}
    return {Job("validation", scope), *([Job("outlook", PUBLIC)] if scope == PUBLIC else [])}


def needed(job: Job) -> list[Job]:
    """Return a job and all that come before it, in an order in which they can be done."""
    graph, todo = {}, [job]
    while todo:
        each = todo.pop()
        graph[each] = before(each)
        todo += graph[each]
    return list(TopologicalSorter(graph).static_order())


def make(layout: Layout, config: Config, job: Job) -> None:
    """Write a stage's tables of a scope."""
    from nearfree.derive.claims.stage import write_claims
    from nearfree.derive.outlook.outlook_stage import write_outlook, write_schedules
    from nearfree.derive.tables.bound import bound
    from nearfree.derive.tables.project import project
    from nearfree.derive.writers import write_accuracy, write_predictions, write_validation

    scope, tolerances, epsilon = job.scope, config.site.tolerances, config.site.epsilon
    match job.stage:
        case "project":
            project(layout, scope, config.datasheets(scope))
        case "boundaries":
            bound(layout, scope, tolerances, epsilon=epsilon)
        case "predictions":
            write_predictions(layout, scope, config, tolerances)
        case "validation":
            write_validation(layout, scope)
        case "accuracy":
            write_accuracy(layout, config, epsilon)
        case "outlook":
            write_outlook(layout, config, epsilon)
        case "schedules":
            write_schedules(layout, config)
        case "claims":
            write_claims(layout, scope, config)
