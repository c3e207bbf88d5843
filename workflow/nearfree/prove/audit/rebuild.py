"""Everything that is derived, made again from a log alone, as the workflow's rules make it."""

import os
from collections.abc import Iterable
from pathlib import Path

from nearfree.derive.stages import STAGES, Job, make
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import no_collection
from nearfree.log.seal import read_seal
from nearfree.pipeline.pipeline import Pipeline
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.show.figures.stage import draw


def jobs(pipeline: Pipeline) -> list[Job]:
    """Return what the workflow's rules do after everything was observed, in such an order."""
    scopes = {
        "project": [*pipeline.sources, *pipeline.scopes],
        "accuracy": pipeline.imported,
        "outlook": [PUBLIC],
        "schedules": [PUBLIC],
    }
    return [Job(stage, s) for stage in STAGES for s in scopes.get(stage, pipeline.scopes)]


@no_collection()
def make_all(pipeline: Pipeline, *, figures: bool) -> None:
    """Make every table of a root, and its figures if they are wanted, from its log and config."""
    for job in jobs(pipeline):
        make(pipeline.layout, pipeline.config, job)
    if figures:
        imported = bool(pipeline.imported)
        for scope in pipeline.scopes:
            draw(pipeline.layout, scope, pipeline.site.epsilon, imported=imported)


def scratch_root(log: Layout, into: Path, takes: Iterable[TakeName] | None = None) -> Layout:
    """Return another results root that holds a log's sealed takes, by links, and nothing else.

    Parameters
    ----------
    into
        A folder, empty or not yet there.
    takes
        Those that it is to hold; all if nothing is said.

    Raises
    ------
    DamageError
        A seal is not one.
    """
    found = Layout(into)
    for take in log.takes() if takes is None else takes:
        seal = read_seal(log, take)
        paths = [log.segment(take, part.attempt) for part in seal.segments]
        for path in (*paths, log.seal(take)):
            there = found.events / path.relative_to(log.events)
            there.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(path.resolve(), there)  # noqa: PTH211 (the short form reads backwards)
    return found
