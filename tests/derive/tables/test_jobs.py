"""Records of stages: each stage reads and writes exactly the recorded tables."""

import shutil
from pathlib import Path

import pytest
from nearfree.config.files import Config
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.derive.jobs import TABLES, Job, dependencies, make
from nearfree.derive.stages import COMMANDS, STAGE_OF, STAGES
from nearfree.derive.tables import store
from nearfree.errors import ConfigError
from nearfree.log.codebase import closure
from nearfree.log.document import Manifest
from nearfree.log.names import Layout
from nearfree.show.figures.stage import charts
from nearfree.show.page.stage import scope_frames

from derive.tables.logs import CONFIG, few_deployments

Pairs = set[tuple[str, str]]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> tuple[Pairs, Pairs]:
    """Return the tables read and written from now on, with scopes."""
    read: Pairs = set()
    written: Pairs = set()
    check, replace = store.check_table, store.replace_with_manifest

    def reading(path: Path) -> bytes:
        if (path.parent.name, path.stem) not in written:
            read.add((path.parent.name, path.stem))
        return check(path)

    def writing(path: Path, raw: bytes, manifest: Manifest) -> None:
        written.add((path.parent.name, path.stem))
        replace(path, raw, manifest)

    monkeypatch.setattr(store, "check_table", reading)
    monkeypatch.setattr(store, "replace_with_manifest", writing)
    return read, written


JOBS = [
    Job(stage.name, scope)
    for stage in STAGES.values()
    for scope in ("cpu", PUBLIC)
    if stage.tables and stage.has(scope)
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.stage}-{job.scope}")
def test_a_stage_reads_and_writes_what_its_record_says(
    made: Layout, traced: tuple[Pairs, Pairs], tmp_path: Path, job: Job
) -> None:
    """A stage reads and writes the recorded tables, besides those it wrote itself."""
    layout = Layout(Path(shutil.copytree(made.root, tmp_path / "results")))
    make(layout, few_deployments(), job)
    read, written = traced
    assert read == set(STAGES[job.stage].inputs(job.scope))
    assert written == {(job.scope, table) for table in STAGES[job.stage].tables}


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["cpu", PUBLIC])
def test_figures_read_what_their_record_says(
    made: Layout, traced: tuple[Pairs, Pairs], scope: str
) -> None:
    """The figures of a scope without an import read exactly the recorded tables."""
    charts(made, scope, 0.2)
    inputs = STAGES["figures"].inputs(scope)
    assert traced[0] == {path for path in inputs if path[0] != IMPORTED}


def test_the_report_reads_each_scope_as_its_record_says(
    made: Layout, traced: tuple[Pairs, Pairs]
) -> None:
    """The report reads exactly the recorded tables of a platform."""
    scope_frames(made, "cpu")
    assert traced[0] == set(STAGES["report"].inputs("cpu"))


def test_every_table_is_made_by_one_stage() -> None:
    """Each table is written by one stage, under its own name."""
    assert sum(len(stage.tables) for stage in STAGES.values()) == len(STAGE_OF)
    assert {name: table.name for name, table in TABLES.items()} == {name: name for name in STAGE_OF}
    assert all(table.formula and closure(table.code) for table in TABLES.values())


def test_stages_stand_in_an_order_in_which_they_can_be_done() -> None:
    """A stage's inputs come from earlier stages, and its code exists."""
    order = list(STAGES)
    for stage in STAGES.values():
        assert all(closure(module) for module in stage.modules)
        for scope in ("cpu", PUBLIC):
            earlier = {job.stage for job in dependencies(Job(stage.name, scope))}
            assert all(order.index(name) < order.index(stage.name) for name in earlier)
    assert set(STAGES) <= set(COMMANDS)


@pytest.mark.parametrize(("stage", "scope"), [("outlook", "cpu"), ("accuracy", PUBLIC)])
def test_a_stage_of_another_scope_is_refused(tmp_path: Path, stage: str, scope: str) -> None:
    """A stage of one scope is refused for another."""
    with pytest.raises(ConfigError, match=f"the stage {stage} makes no table of '{scope}'"):
        make(Layout(tmp_path), Config(CONFIG), Job(stage, scope))
