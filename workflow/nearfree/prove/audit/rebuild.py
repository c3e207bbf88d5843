"""All derived tables and figures, recomputed from a log alone in the order of the workflow."""

import os
from collections.abc import Iterable
from pathlib import Path

from nearfree.derive.jobs import Job, make
from nearfree.derive.stages import STAGES
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import no_collection
from nearfree.log.seal import read_seal
from nearfree.pipeline.pipeline import Pipeline
from nearfree.show.figures.stage import draw


def jobs(pipeline: Pipeline) -> list[Job]:
    """Return the workflow's deriving jobs, each after those that it needs."""
    return [
        Job(stage.name, scope)
        for stage in STAGES.values()
        if stage.tables
        for scope in pipeline.scopes_of(stage)
    ]


@no_collection()
def make_all(pipeline: Pipeline, *, figures: bool) -> None:
    """Make every table of a root, and optionally its figures, from its log and config."""
    for job in jobs(pipeline):
        make(pipeline.layout, pipeline.config, job)
    if figures:
        imported = bool(pipeline.imported)
        for scope in pipeline.scopes:
            draw(pipeline.layout, scope, pipeline.site.epsilon, imported=imported)


def scratch_root(log: Layout, into: Path, takes: Iterable[TakeName] | None = None) -> Layout:
    """Return a new results root that holds links to a log's sealed takes, and nothing else.

    Parameters
    ----------
    into
        A folder that is empty or does not exist.
    takes
        The takes to link (default: all).

    Raises
    ------
    DamageError
        A seal cannot be read.
    """
    scratch = Layout(into)
    for take in log.takes() if takes is None else takes:
        seal = read_seal(log, take)
        paths = [log.segment(take, part.attempt) for part in seal.segments]
        for path in (*paths, log.seal(take)):
            link = scratch.events / path.relative_to(log.events)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(path.resolve(), link)  # noqa: PTH211 (the short form reads backwards)
    return scratch
