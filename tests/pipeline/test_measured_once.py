"""What is sealed is never measured again, and the rest is made from it, byte for byte."""

import os
import shutil

from pipeline.expected import AFTER_PROJECT, EVERYTHING, LEDGER
from workflow import make_project


def test_a_new_take_measures_that_platform_once(project):
    """`retake` makes one measuring job and what follows, once; the old take stays."""
    before = project.events()
    project.nearfree("retake", "cpu")
    assert project.jobs() == {**AFTER_PROJECT, "measure": 1, "ledger": 1}
    project.snakemake(LEDGER)
    assert before.items() < project.events().items()
    assert project.jobs() == AFTER_PROJECT
    assert "2-" in project.nearfree("log", "show", "cpu")
    project.snakemake()
    assert project.jobs() == {}


def test_a_new_probe_keeps_the_studies(project):
    """A retaken probe does not measure a study again."""
    project.nearfree("retake", "cpu", "hardware")
    before = project.events()
    project.snakemake(LEDGER)
    new = set(project.events()) - set(before)
    assert {name.split("/")[1] for name in new} == {"hardware"}


def test_an_added_batch_size_is_a_new_job_beside_the_old_seal(project):
    """A batch size more is another plan: measured beside the old one, which stays."""
    before = project.events()
    project.edit("config/studies.yaml", "batch: [1, 2]", "batch: [1, 2, 4]")
    assert project.jobs() == {**AFTER_PROJECT, "measure": 1, "ledger": 1}
    project.snakemake(LEDGER)
    assert before.items() < project.events().items()


def test_forcing_everything_measures_nothing(project):
    """`-F` runs every rule again: tables are the same byte for byte, and so is the log."""
    before, tables = project.events(), project.digests("results/tables")
    assert project.jobs("-F") == EVERYTHING
    names = [f"results/tables/{name}" for name in tables if name.endswith(".parquet")]
    project.snakemake("-F", LEDGER, *names)
    assert project.events() == before
    assert project.digests("results/tables") == tables


def test_touched_inputs_measure_nothing(project):
    """New times on every file of the log and the config change no byte of the log."""
    before = project.events()
    for folder in ("results/events", "results/state", "config"):
        for path in (project / folder).rglob("*"):
            os.utime(path)
    project.snakemake(LEDGER)
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


def test_a_fresh_clone_makes_the_same_bytes(built, tmp_path):
    """A clone that brings the log measures nothing and rebuilds the rest, byte for byte."""
    clone = make_project(tmp_path / "clone")
    shutil.copytree(built / "results/events", clone / "results/events")
    clone.snakemake()
    for name in ("events", "tables", "figures", "report"):
        assert clone.digests(f"results/{name}") == built.digests(f"results/{name}")


def test_a_deleted_receipt_is_written_again(project):
    """Without its receipts the workflow asks, and the seals answer."""
    before = project.events()
    shutil.rmtree(project / "results/state")
    project.snakemake(LEDGER)
    assert project.events() == before
