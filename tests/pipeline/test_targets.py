"""The targets of the workflow: everything, a platform, a study, a backend, and what is refused."""

from collections import defaultdict
from pathlib import Path

import pytest
from nearfree.core.scopes import IMPORTED
from nearfree.derive.stages import STAGES

from pipeline.expected import EVERYTHING
from workflow import make_project

pytestmark = pytest.mark.slow


def test_a_first_run_does_everything(tmp_path):
    """Without results every rule runs once for each scope."""
    assert make_project(tmp_path / "project").jobs() == EVERYTHING


def test_a_model_is_three_takes(tmp_path):
    """Its modules and the model itself are measured, and between them its boundary is foretold."""
    jobs = make_project(tmp_path / "project", "model").jobs()
    assert (jobs["measure"], jobs["foretell"]) == (2, 1)


def test_a_job_declares_what_its_stage_reads_and_writes(built):
    """Of tables, inputs and outputs are those of the stage's record, in each scope."""
    declared = defaultdict(set), defaultdict(set)
    for (rule, log), files in built.files("-F").items():
        for paths, side in zip(declared, files, strict=True):
            tables = [path.split("/")[2:] for path in side if path.endswith(".parquet")]
            paths[rule, log] |= {(scope, Path(name).stem) for scope, name in tables}
    reads, writes = declared
    for stage in STAGES.values():
        logs = {
            scope: next(log for rule, log in reads if rule == stage.name and scope in log)
            for scope in ("cpu", "public")
            if stage.has(scope)
        }
        for scope, log in logs.items():
            read = {path for path in stage.inputs(scope) if path[0] != IMPORTED}
            assert reads[stage.name, log] == read, stage.name
            assert writes[stage.name, log] == {(scope, table) for table in stage.tables}
    (report,) = (read for (rule, _), read in reads.items() if rule == "report")
    inputs = (STAGES["report"].inputs(scope) for scope in ("cpu", "public"))
    assert report == {path for read in inputs for path in read if path[0] != IMPORTED}


def test_a_second_run_has_nothing_to_do(built):
    """Without a change, nothing runs again."""
    assert built.jobs() == {}


def test_the_run_leaves_a_log_that_verifies(built):
    """Everything that the workflow writes is accounted for, without a finding."""
    assert "0 damaged, 0 notices" in built.nearfree("verify")


def test_every_platform_is_a_target(built):
    """`snakemake cpu` asks for all of that platform's tables, for its figures, and no more."""
    assert built.jobs("cpu") == {}
    jobs = built.jobs("-F", "cpu")
    assert {stage.name for stage in STAGES.values() if stage.tables and stage.has("cpu")} <= {*jobs}
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
