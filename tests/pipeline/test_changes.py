"""Which files a change of config, code or log makes again."""

import pytest

from pipeline.expected import AFTER_PROJECT, AFTER_RULES


def test_a_tolerance_recomputes_boundaries_and_measures_nothing(project):
    """Another tolerance touches boundaries and predictions, and what follows from them.

    Predictions, too: the work model says another N_max at each tolerance.
    """
    project.edit("config/config.yaml", "[0.05, 0.10,", "[0.05, 0.08, 0.10,")
    jobs = {"boundaries": 2, **AFTER_RULES}
    del jobs["engine_steps"]
    assert project.jobs() == jobs


def test_another_headline_tolerance_predicts_nothing_anew(project):
    """The reported tolerance is a matter of verdicts, claims, figures and the report."""
    project.edit("config/config.yaml", "epsilon: 0.2", "epsilon: 0.3")
    jobs = {**AFTER_RULES, "boundaries": 2, "kernels": 1}
    del jobs["predictions"], jobs["schedules"], jobs["engine_steps"]
    assert project.jobs() == jobs


def test_a_platform_fact_recomputes_what_uses_it(project):
    """A datasheet of a GPU is used by the public tables, and by all that is predicted.

    Of the CPU no observation is projected anew. Kernels of one GPU may speak of another's.
    """
    project.edit("config/platforms.yaml", "bandwidth_gb_s: 4000", "bandwidth_gb_s: 4001")
    after = {**AFTER_RULES, "project": 1, "boundaries": 1}
    del after["engine_steps"]  # rows of an engine rest on no datasheet
    assert project.jobs() == after


def test_a_changed_figure_redraws_only(project):
    """A figure's code touches figures and report."""
    project.edit("workflow/nearfree/show/figures/latency.py", "size=32", "size=33")
    assert project.jobs() == {"figures": 2, "report": 1, "ledger": 1}


def test_changed_formula_code_recomputes_predictions(project):
    """A formula's code touches predictions and what follows, and curves that forms speak of."""
    path = "workflow/nearfree/core/modules/dense_ffn.py"
    project.edit(path, "(setting) / (2 * setting.batch)", "(setting) / 2 / setting.batch")
    assert project.jobs() == {**AFTER_RULES, "kernels": 1}


def test_changed_code_of_a_reader_recomputes_answers(project):
    """How a package's rules are asked touches all that asks, though no import leads to it."""
    path = "workflow/nearfree/sources/backends/flash_attn.py"
    project.edit(path, "from collections.abc", "# asked in another way\nfrom collections.abc")
    assert project.jobs() == AFTER_RULES


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("deployments.yaml", "batch: [1]", "batch: [1, 8]"),
        ("models/qwen3_8b.json", '"num_hidden_layers": 36', '"num_hidden_layers": 9'),
    ],
)
def test_another_deployment_is_predicted_anew(project, name, old, new):
    """A deployment, or a model's file, changes only predictions of models."""
    project.edit(f"config/{name}", old, new)
    after = {"outlook": 1, "schedules": 1, "claims": 1, "figures": 1, "report": 1, "ledger": 1}
    assert project.jobs() == after


def test_a_changed_schema_recomputes_its_table(project):
    """A column of validation touches validation and what follows; figures show it, too."""
    path = "workflow/nearfree/derive/score/validation.py"
    project.edit(path, "why there is no prediction", "why a prediction is missing")
    after = {"validation": 2, "claims": 2, "figures": 2, "report": 1, "ledger": 1}
    assert project.jobs() == after


def test_a_retraction_recomputes_what_follows(project):
    """A retracted event is left out of the tables, and nothing is measured."""
    shown = project.nearfree("log", "show", "cpu").split()
    take = next(word for word in shown if word.startswith("cpu/dense_ffn/"))
    project.nearfree("log", "retract", f"{take}.1#3", "--reason", "the lid was closed")
    assert project.jobs() == {**AFTER_PROJECT, "ledger": 1}
