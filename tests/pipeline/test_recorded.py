"""Rules, constants and imports that the log holds: used without a network."""

import shutil

import pytest
from nearfree.core.scopes import IMPORTED
from nearfree.derive.engine_step import recorded
from nearfree.derive.reference import record
from nearfree.derive.stages import STAGES
from nearfree.derive.work_model import constants
from nearfree.log.evidence import RETRACTED
from nearfree.log.names import Layout, TakeName
from nearfree.log.retract import retract
from nearfree.pipeline import pipeline
from nearfree.pipeline.pipeline import Pipeline
from nearfree.public import aiconfigurator
from nearfree.sources.record import stream_name

from pipeline.expected import AFTER_RULES, LEDGER
from workflow import ROOT

PUBLIC = "results/events/public"
RELEASE = "aiconfigurator==0.12.0"
IMPORTED_SEAL = "results/events/imported/aiconfigurator_core_0_12_0/1-00000000.seal.json"


def test_rules_on_record_need_no_network(with_rules, no_network):
    """A recorded release is not fetched again; its tables are made, and what they can change."""
    assert with_rules.jobs() == {"extract": 1, "project": 1, **AFTER_RULES}
    before = with_rules.events()
    with_rules.snakemake(LEDGER)
    assert with_rules.events() == before


@pytest.mark.slow
def test_what_is_on_record_is_shown(answering, no_network):
    """The report shows rules and names what constants were calibrated on, and their event.

    Made without a network, nothing is left to do, and all verifies.
    """
    assert answering.jobs() == {}
    page = (answering / "results/report/index.html").read_text()
    assert "flashinfer-python 0.6.13" in page
    assert "calibrated on a100, h100" in page
    assert "public/constants/" in page
    assert "0 damaged, 0 notices" in answering.nearfree("verify")


@pytest.mark.parametrize("stream", ["constants", "kernels"])
def test_what_is_adopted_is_used(project, stream):
    """Constants and curves in the log are evidence of every prediction."""
    shutil.copytree(ROOT / PUBLIC / stream, project / PUBLIC / stream)
    jobs = project.jobs()
    # the scope of the paper holds them, so its tables are made again from its seals
    assert jobs == {**AFTER_RULES, "project": 1, "boundaries": 1, "kernels": 1}


def test_a_retraction_of_a_constant_is_evidence(tmp_path):
    """What a retraction takes from answers is an input of all that asks for answers."""
    layout = Layout(tmp_path)
    shutil.copytree(ROOT / PUBLIC / "constants", layout.events / "public" / "constants")
    before = Pipeline(tmp_path, ROOT / "config").answer_inputs()
    take = retract(layout, str(layout.takes("public")[0]), "fitted to a slow machine").name
    assert Pipeline(tmp_path, ROOT / "config").answer_inputs() == [*before, str(layout.seal(take))]


def put_import(project, name=IMPORTED_SEAL):
    """Write a file in the place of an import's seal."""
    seal = next((project / "results/events/public").rglob("*.seal.json"))
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(seal, project / name)


def test_imported_curves_are_not_a_platform(project):
    """What was imported by hand changes nothing of the workflow before the config asks for it."""
    put_import(project)
    assert project.jobs() == {}


LEDGER_LOG = "logs/ledger.log"
SCORED = {"accuracy": 1, "figures": 1, "report": 1, "ledger": 1}


def test_an_import_is_a_job_where_the_config_asks_for_it(project):
    """The import, the table of its scores, and what shows them; nothing is measured.

    The mark of another results root says nothing of a root that holds no such take.
    """
    project.edit("config/config.yaml", "imports: []", "imports: [aiconfigurator==0.12.0]")
    assert project.jobs() == {"import_curves": 1, **SCORED}
    mark = project / "logs/import/aiconfigurator_core_0_12_0.done"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert project.jobs() == {"import_curves": 1, **SCORED}
    put_import(project)
    mark.touch()
    assert project.jobs() == SCORED
    put_import(project, beside := "results/events/imported/curves_mine/1-00000000.seal.json")
    for rule, log in (("accuracy", "logs/tables/imported-accuracy.log"), ("ledger", LEDGER_LOG)):
        read, _ = project.files()[rule, log]
        assert beside in read  # else no ledger would vouch for what is made of it
        assert IMPORTED_SEAL not in read


def test_imports_beside_those_of_the_config_are_evidence(tmp_path):
    """Scores rest on all imports: takes made by hand, and retractions, are inputs of theirs.

    The take that the workflow's own import makes has its mark, before it is there and after.
    """
    (config := tmp_path / "config").mkdir()
    shutil.copytree(ROOT / "config", config, dirs_exist_ok=True)
    text = (config / "config.yaml").read_text()
    (config / "config.yaml").write_text(text.replace("imports: []", f"imports: [{RELEASE}]"))
    layout = Layout(tmp_path / "results")

    def inputs():
        return set(Pipeline(layout.root, config).inputs(STAGES["accuracy"], IMPORTED))

    before = inputs()
    own, again, retracted = (
        TakeName(IMPORTED, stream, take, "0" * 8)
        for stream, take in (
            ("aiconfigurator_core_0_12_0", 1),
            ("aiconfigurator_core_0_12_0", 2),
            (RETRACTED, 1),
        )
    )
    for take in (own, again, retracted, other := TakeName(IMPORTED, "curves_mine", 1, "0" * 8)):
        layout.seal(take).parent.mkdir(parents=True, exist_ok=True)
        layout.seal(take).touch()
    assert inputs() - before == {str(layout.seal(take)) for take in (again, retracted, other)}


def test_the_names_that_rules_use_are_those_of_the_log():
    """The streams that answers rest on and the package have one name each."""
    streams = {constants.STREAM, constants.COLLECTIVE_STREAM, record.STREAM, recorded.STREAM}
    assert set(pipeline.CALIBRATED) == streams
    recorded_names = Pipeline(ROOT / "results", ROOT / "config")
    assert recorded_names.imports == {}
    assert recorded_names.imported == []
    assert "imported" not in recorded_names.platforms
    stream = stream_name(aiconfigurator.PACKAGE, "0.12.0")
    assert stream == "aiconfigurator_core_0_12_0"


@pytest.mark.slow
def test_a_release_that_is_not_on_record_is_extracted(with_rules, no_network):
    """One more release is one more job; without a network it fails and says so."""
    with (with_rules / "config/sources.yaml").open("a") as file:
        file.write("  - vllm==0.20.2\n")
    assert with_rules.jobs()["extract"] == 2
    done = with_rules.run("snakemake", "--cores", "2")
    assert done.returncode != 0
    logs = "".join(path.read_text() for path in (with_rules / "logs/extract").iterdir())
    assert "vllm" in logs
    assert "--offline" in logs
