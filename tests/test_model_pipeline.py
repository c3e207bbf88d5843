"""A model through the workflow: modules first, then predictions, then the model."""

import json
from pathlib import Path

import polars as pl
import pytest
from nearfree.log.events import LatencyMeasured, PredictionRecorded
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from once import made_once

from workflow import Project, make_project

pytestmark = pytest.mark.slow
LEDGER = "results/state/ledger.json"


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose workflow has measured a tiny model."""

    def make(folder: Path) -> None:
        project = make_project(folder, "model")
        project.snakemake()

    return Project(made_once(tmp_path_factory, "model", make))


@pytest.fixture
def project(modelled: Project, tmp_path: Path) -> Project:
    """Return a copy to change."""
    return modelled.copy(tmp_path / "project")


def test_predictions_are_on_record_before_the_first_sample(modelled: Project) -> None:
    """The workflow records what is foretold before it measures the model."""
    takes = {take.name.stream: take for take in read_scope(Layout(modelled / "results"), "cpu")}
    predictions = takes["tiny_foretold"].events_of(PredictionRecorded)
    apart, of_model = (takes[name].events_of(LatencyMeasured) for name in ("tiny_modules", "tiny"))
    assert max(e.time for e in apart) <= min(e.time for e in predictions)
    assert max(e.time for e in predictions) < min(e.time for e in of_model)


def test_the_tables_hold_shares_and_composition(modelled: Project) -> None:
    """Predictions are compared with measurements, and each refusal has a reason."""
    folder = modelled / "results" / "tables" / "cpu"
    shares = pl.read_parquet(folder / "time_shares.parquet")
    assert {"attention", "MoE FFN", "router", "LM head", "between"} <= set(shares["role"])
    composed = pl.read_parquet(folder / "composition.parquet")
    ways = composed.filter(pl.col("predictor").str.starts_with("modules_"))
    assert ways["foretold"].all()
    assert ways.filter(pl.col("routing") == "balanced")["predicted"].null_count() == 0
    assert ways.filter(pl.col("routing") == "router")["refusal"].str.contains("router").all()


def test_everything_verifies_and_nothing_is_left_to_do(modelled: Project) -> None:
    """A second run has no job, and the log and tables verify."""
    assert modelled.jobs() == {}
    assert "0 damaged, 0 notices" in modelled.nearfree("verify")


def test_another_prediction_measures_nothing(project: Project) -> None:
    """Foretelling again leaves the modules' and the model's takes as they are."""
    before = project.events()
    project.nearfree("retake", "cpu", "tiny_foretold")
    jobs = project.jobs()
    assert jobs["foretell"] == 1
    project.snakemake(LEDGER)
    new = set(project.events()) - set(before)
    assert before.items() < project.events().items()
    assert {name.split("/")[1] for name in new} == {"tiny_foretold"}


def test_a_model_that_changed_is_another_take(project: Project) -> None:
    """Another number of layers is another model: measured beside the old one, which stays."""
    before = project.events()
    path = project / "config/models/tiny_moe.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "transformers_version": "5.0"}))
    assert "measure" not in project.jobs()  # nothing that a forward depends on
    path.write_text(json.dumps({**document, "num_hidden_layers": 1}))
    assert project.jobs()["measure"] == 1  # the modules are the same, of which there are fewer
    project.snakemake(LEDGER)
    assert before.items() < project.events().items()
