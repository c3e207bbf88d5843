"""The workflow as a user runs it: what a change runs again, and what is never measured twice."""

import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from nearfree.core.scopes import IMPORTED
from nearfree.derive.stages import STAGES
from nearfree.derive.work_model import constants
from nearfree.pipeline import pipeline
from nearfree.pipeline.pipeline import Pipeline
from nearfree.public import aiconfigurator
from nearfree.sources.record import stream_name

from workflow import ROOT, Project, make_project

EVERYTHING = {
    "probe": 1,
    "measure": 1,
    "publish": 1,
    "project": 2,
    "boundaries": 2,
    "predictions": 2,
    "validation": 2,
    "outlook": 1,
    "schedules": 1,
    "claims": 2,
    "figures": 2,
    "report": 1,
    "ledger": 1,
}
LEDGER = "results/state/ledger.json"
"""The target that needs every receipt and no table."""
AFTER_PROJECT = {
    "project": 1,
    "boundaries": 1,
    "predictions": 1,
    "validation": 1,
    "claims": 1,
    "figures": 1,
    "report": 1,
}

AFTER_RULES = {
    "predictions": 2,
    "validation": 2,
    "outlook": 1,
    "schedules": 1,
    "claims": 2,
    "figures": 2,
    "report": 1,
    "ledger": 1,
}
"""What follows from rules, constants or a formula, in the scopes of this machine and the paper."""


@pytest.fixture
def project(built: Project, tmp_path) -> Project:
    """Return a copy of the built project to change."""
    return built.copy(tmp_path / "project")


def test_a_first_run_does_everything(tmp_path):
    """Without results every rule runs once for each scope."""
    assert make_project(tmp_path / "project").jobs() == EVERYTHING


def test_a_job_declares_what_its_stage_reads_and_writes(built):
    """Of tables, inputs and outputs are those of the stage's record, in each scope."""
    declared = defaultdict(set), defaultdict(set)
    for (rule, log), files in built.files("-F").items():
        for found, side in zip(declared, files, strict=True):
            tables = [each.split("/")[2:] for each in side if each.endswith(".parquet")]
            found[rule, log] |= {(scope, Path(name).stem) for scope, name in tables}
    reads, writes = declared
    for stage in STAGES.values():
        logs = {
            scope: next(log for rule, log in reads if rule == stage.name and scope in log)
            for scope in ("cpu", "public")
            if stage.has(scope)
        }
        for scope, log in logs.items():
            read = {each for each in stage.inputs(scope) if each[0] != IMPORTED}
            assert reads[stage.name, log] == read, stage.name
            assert writes[stage.name, log] == {(scope, table) for table in stage.tables}
    (report,) = (read for (rule, _), read in reads.items() if rule == "report")
    inputs = (STAGES["report"].inputs(scope) for scope in ("cpu", "public"))
    assert report == {each for read in inputs for each in read if each[0] != IMPORTED}


def test_a_second_run_has_nothing_to_do(built):
    """Without a change, nothing runs again."""
    assert built.jobs() == {}


def test_the_run_leaves_a_log_that_verifies(built):
    """Everything that the workflow writes is accounted for, without a finding."""
    assert "0 damaged, 0 notices" in built.nearfree("verify")


def test_every_platform_is_a_target(built):
    """`snakemake cpu` asks for that platform's tables and figures only."""
    assert built.jobs("cpu") == {}
    jobs = built.jobs("-F", "cpu")
    assert "report" not in jobs
    assert jobs["figures"] == 1


@pytest.mark.parametrize("target", ["cpu/dense_ffn", "cpu/torch"])
def test_a_study_and_a_backend_are_targets(built, target):
    """`snakemake cpu/STUDY` and `cpu/BACKEND` ask for their sealed takes and nothing derived."""
    assert built.jobs(target) == {}
    assert built.jobs("-F", target) == {"probe": 1, "measure": 1, target: 1}


def test_a_retaken_study_is_all_that_its_target_runs(project):
    """After a retake the study's target measures it again, and waits for no table."""
    project.nearfree("retake", "cpu", "--backend", "torch")
    assert project.jobs("cpu/dense_ffn") == {"measure": 1, "cpu/dense_ffn": 1}


def test_a_platform_without_evidence_says_so(project):
    """A target of a platform that is neither here nor recorded fails with the reason."""
    done = project.run("snakemake", "--cores", "2", "h200")
    assert done.returncode != 0
    assert "the log holds nothing sealed for h200" in done.stdout + done.stderr


def test_a_tolerance_recomputes_boundaries_and_measures_nothing(project):
    """Another tolerance touches boundaries and predictions, and what follows from them.

    Predictions, too: the work model says another N_max at each tolerance.
    """
    project.edit("config/config.yaml", "[0.05, 0.10,", "[0.05, 0.08, 0.10,")
    assert project.jobs() == {"boundaries": 2, **AFTER_RULES}


def test_another_headline_tolerance_predicts_nothing_anew(project):
    """The reported tolerance is a matter of verdicts, claims, figures and the report."""
    project.edit("config/config.yaml", "epsilon: 0.2", "epsilon: 0.3")
    jobs = {**AFTER_RULES, "boundaries": 2}
    del jobs["predictions"], jobs["schedules"]
    assert project.jobs() == jobs


def test_a_new_take_measures_that_platform_once(project):
    """`retake` makes one measuring job and what follows; the old take stays."""
    before = project.events()
    project.nearfree("retake", "cpu")
    assert project.jobs() == {**AFTER_PROJECT, "measure": 1, "ledger": 1}
    project.snakemake()
    after = project.events()
    assert before.items() < after.items()
    assert project.jobs() == {}
    assert "2-" in project.nearfree("log", "show", "cpu")


def test_a_new_probe_keeps_the_studies(project):
    """A retaken probe does not measure a study again."""
    project.nearfree("retake", "cpu", "hardware")
    before = project.events()
    project.snakemake(LEDGER)
    new = set(project.events()) - set(before)
    assert {name.split("/")[1] for name in new} == {"hardware"}


def test_a_platform_fact_recomputes_the_scope_that_uses_it(project):
    """A datasheet of a GPU is used by the public tables, not by those of the CPU."""
    project.edit("config/platforms.yaml", "bandwidth_gb_s: 4000", "bandwidth_gb_s: 4001")
    # figures of the CPU show the published panel beside the measured one
    after = {**AFTER_PROJECT, "outlook": 1, "schedules": 1, "figures": 2, "ledger": 1}
    assert project.jobs() == after


def test_an_added_batch_size_is_a_new_job_beside_the_old_seal(project):
    """A batch size more is another plan: measured beside the old one, which stays."""
    before = project.events()
    project.edit("config/studies.yaml", "batch: [1, 2]", "batch: [1, 2, 4]")
    assert project.jobs() == {**AFTER_PROJECT, "measure": 1, "ledger": 1}
    project.snakemake(LEDGER)
    assert before.items() < project.events().items()


def test_a_changed_figure_redraws_only(project):
    """A figure's code touches figures and report."""
    project.edit("workflow/nearfree/show/figures/latency.py", "size=32", "size=33")
    assert project.jobs() == {"figures": 2, "report": 1, "ledger": 1}


def test_changed_formula_code_recomputes_predictions(project):
    """A formula's code touches predictions and what follows."""
    path = "workflow/nearfree/core/modules/dense_ffn.py"
    project.edit(path, "(setting) / (2 * setting.batch)", "(setting) / 2 / setting.batch")
    assert project.jobs() == AFTER_RULES


def test_another_deployment_is_predicted_anew(project):
    """A deployment, or the file of a model, touches what is predicted of models alone."""
    after = {"outlook": 1, "schedules": 1, "claims": 1, "figures": 1, "report": 1, "ledger": 1}
    project.edit("config/deployments.yaml", "batch: [1]", "batch: [1, 8]")
    assert project.jobs() == after
    project.snakemake()
    project.edit("config/models/qwen3_8b.json", '"num_hidden_layers": 36', '"num_hidden_layers": 9')
    assert project.jobs() == {**after, "ledger": 1}


def test_a_changed_schema_recomputes_its_table(project):
    """A column of validation touches validation and what follows; figures show it, too."""
    path = "workflow/nearfree/derive/score/validation.py"
    project.edit(path, "which hardware facts", "which facts of the hardware")
    after = {"validation": 2, "claims": 2, "figures": 2, "report": 1, "ledger": 1}
    assert project.jobs() == after


def test_forcing_everything_measures_nothing(project):
    """`-F` runs every rule again and leaves every byte of the log as it was."""
    before = project.events()
    tables = project.digests("results/tables")
    assert project.jobs("-F") == EVERYTHING
    project.snakemake("-F")
    assert project.events() == before
    assert project.digests("results/tables") == tables


def test_touched_inputs_measure_nothing(project):
    """New times on every file of the log and the config change no byte of the log."""
    before = project.events()
    for folder in ("results/events", "results/state", "config"):
        for path in (project / folder).rglob("*"):
            os.utime(path)
    project.snakemake()
    assert project.events() == before


def test_a_changed_rule_text_measures_nothing(project):
    """Another shell text of the measuring rule runs it, and it returns at once."""
    before = project.events()
    project.edit(
        "rules/observe.smk", '" {params.python} -m nearfree', '" {params.python}  -m nearfree'
    )
    assert project.jobs()["measure"] == 1
    project.snakemake(LEDGER)
    assert project.events() == before


def test_a_fresh_clone_with_the_log_measures_nothing(project, tmp_path):
    """A clone that brings the log rebuilds the rest from it, byte for byte the same."""
    clone = make_project(tmp_path / "clone")
    shutil.copytree(project / "results/events", clone / "results/events")
    clone.snakemake()
    assert clone.events() == project.events()
    assert clone.digests("results/tables") == project.digests("results/tables")
    assert clone.digests("results/figures") == project.digests("results/figures")
    assert clone.digests("results/report") == project.digests("results/report")


def test_a_deleted_receipt_is_written_again(project):
    """Without its receipts the workflow asks, and the seals answer."""
    before = project.events()
    shutil.rmtree(project / "results/state")
    project.snakemake(LEDGER)
    assert project.events() == before


def test_a_retraction_recomputes_what_follows(project):
    """A retracted event is left out of the tables, and nothing is measured."""
    shown = project.nearfree("log", "show", "cpu").split()
    take = next(word for word in shown if word.startswith("cpu/dense_ffn/"))
    project.nearfree("log", "retract", f"{take}.1#3", "--reason", "the lid was closed")
    assert project.jobs() == {**AFTER_PROJECT, "ledger": 1}


def test_a_config_mistake_ends_in_one_line(project):
    """A mistake in config/ is found before anything runs: one line, exit code 2."""
    project.edit("config/studies.yaml", "batch: [1, 2]", "batch: [1, -2]")
    done = project.run("snakemake", "--cores", "2", "-n")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "profile" not in line]
    assert len(lines) == 1, done.stderr
    assert "config/studies.yaml" in lines[0]
    assert "batch" in lines[0]
    assert "Traceback" not in done.stdout + done.stderr


def test_a_damaged_segment_stops_the_tables_with_one_message(project):
    """A changed byte in the log is named, with what to do, and nothing is overwritten."""
    segment = next((project / "results/events/cpu/dense_ffn").glob("*.jsonl"))
    raw = bytearray(segment.read_bytes())
    raw[700] ^= 1
    segment.write_bytes(raw)
    tables = project.digests("results/tables")
    done = project.run("nearfree", "tables", "project", "cpu")
    assert done.returncode == 2
    assert segment.name in done.stderr
    assert "Traceback" not in done.stderr
    assert project.digests("results/tables") == tables


@pytest.fixture
def with_rules(project: Project) -> Project:
    """Ask for one release, whose rules the repository has on record."""
    recorded = "results/events/sources/flashinfer_python_0_6_13"
    shutil.copytree(ROOT / recorded, project / recorded)
    (project / "config/sources.yaml").write_text("releases:\n  - flashinfer-python==0.6.13\n")
    return project


def test_rules_on_record_need_no_network(with_rules, monkeypatch):
    """A recorded release is not fetched again; its tables are made, and the report shows them.

    What it says can change every prediction, so those follow.
    """
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NEARFREE_CACHE", str(with_rules / "no" / "cache"))
    assert with_rules.jobs() == {"extract": 1, "project": 1, **AFTER_RULES}
    before = with_rules.events()
    with_rules.snakemake()
    assert with_rules.events() == before
    assert with_rules.jobs() == {}
    assert "flashinfer-python 0.6.13" in (with_rules / "results/report/index.html").read_text()
    assert "0 damaged, 0 notices" in with_rules.nearfree("verify")


def test_adopted_constants_are_used(project):
    """Constants in the log are evidence of every prediction, and their event is cited."""
    recorded = "results/events/public/constants"
    shutil.copytree(ROOT / recorded, project / recorded)
    jobs = project.jobs()
    # the scope of the paper holds them, so its tables are made again from its seals
    assert jobs == {**AFTER_RULES, "project": 1, "boundaries": 1}
    project.snakemake()
    assert project.jobs() == {}
    page = (project / "results/report/index.html").read_text()
    assert "calibrated on a100, h100" in page
    assert "public/constants/" in page


IMPORTED_SEAL = "results/events/imported/aiconfigurator_core_0_12_0/1-00000000.seal.json"


def test_imported_curves_are_not_a_platform(project):
    """What was imported by hand changes nothing of the workflow before the config asks for it."""
    seal = next((project / "results/events/public").rglob("*.seal.json"))
    (project / IMPORTED_SEAL).parent.mkdir(parents=True)
    shutil.copy(seal, project / IMPORTED_SEAL)
    assert project.jobs() == {}


def test_an_import_is_a_job_where_the_config_asks_for_it(project):
    """The import, the table of its scores, and what shows them; nothing is measured."""
    project.edit("config/config.yaml", "imports: []", "imports: [aiconfigurator==0.12.0]")
    jobs = project.jobs()
    assert jobs == {"import_curves": 1, "accuracy": 1, "figures": 1, "report": 1, "ledger": 1}


def test_the_names_that_rules_use_are_those_of_the_log():
    """The stream of constants and the package have one name each."""
    assert constants.STREAM == pipeline.CONSTANTS
    asked = Pipeline(ROOT / "results", ROOT / "config")
    assert asked.imports == {}
    assert asked.imported == []
    assert "imported" not in asked.platforms
    stream = stream_name(aiconfigurator.PACKAGE, "0.12.0")
    assert stream == "aiconfigurator_core_0_12_0"


@pytest.mark.slow
def test_a_release_that_is_not_on_record_is_extracted(with_rules, monkeypatch):
    """One more release is one more job; without a network it fails and says so."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NEARFREE_CACHE", str(with_rules / "no" / "cache"))
    with (with_rules / "config/sources.yaml").open("a") as file:
        file.write("  - vllm==0.20.2\n")
    assert with_rules.jobs()["extract"] == 2
    done = with_rules.run("snakemake", "--cores", "2")
    assert done.returncode != 0
    logs = "".join(path.read_text() for path in (with_rules / "logs/extract").iterdir())
    assert "vllm" in logs
    assert "--offline" in logs
