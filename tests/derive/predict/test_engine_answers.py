"""Forwards of engines in the tables `predictions` and `validation`."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from engine_takes import SETTING, loaded, write_engine
from msgspec import structs
from nearfree.config.files import Config
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.engine_answers import timed_forward
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.engine_steps import curve_steps
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.store import read_table
from nearfree.derive.truth.datasets import load_measured
from nearfree.derive.work_model.engine import ATTENTION, BETWEEN, FORWARD, PASS
from nearfree.log.names import Layout

from derive.engines import GRID, curve, engine_log, forward, rules
from derive.tables.logs import CONFIG, make_tables, write_probe

CONSTANTS = {
    f"of 16: {PASS}": 3.0,
    f"of 4: {PASS}": 1.5,
    f"of 3: {PASS}": 1.4,
    f"of 2: {PASS}": 1.3,
    f"of 1: {PASS}": 1.2,
    ATTENTION: 2.0,
    BETWEEN: 10.0,
    FORWARD: 100.0,
}
FORWARDS = (forward("q8_0"), forward("q8_0", context=1024), forward("q4_1", batch=2, context=1024))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Layout, list[str]]:
    """Return a log of three forwards with its tables, and the keys of their settings."""
    layout = Layout(tmp_path_factory.mktemp("engines"))
    write_probe(layout)
    keys = engine_log(layout, FORWARDS, CONSTANTS)
    make_tables(layout, "cpu")
    return layout, keys


def answer_of(layout: Layout, key: str, predictor: str) -> dict[str, Any]:
    """Return a predictor's answer on a setting at 20 %, equal for each basis."""
    rows = read_table(layout, "cpu", PREDICTIONS).filter(
        setting_key=key, predictor=predictor, epsilon=0.2
    )
    first, *others = rows.drop("row_id", "basis", "from_ids", "balance_flop_per_byte").to_dicts()
    assert all(other == first for other in others)
    return first | {"from_ids": rows["from_ids"][0].to_list()}


def test_the_principle_answers_by_the_rules_of_the_release(measured) -> None:
    """The answer has N_max, the limiting type, file and lines, and the take that ran."""
    layout, keys = measured
    answer = answer_of(layout, keys[0], "principle_resolved")
    assert (answer["n_max"], answer["limiting_module"]) == (1.0, "mul_mat q8_0")
    assert "ggml/src/ggml-cpu/llamafile/sgemm.cpp:" in answer["evidence"]
    assert any(event_id.startswith("cpu/engines/1-") for event_id in answer["from_ids"])
    assert answer["refusal"] is None


def test_laws_without_a_word_on_engines_refuse(measured) -> None:
    """Laws refuse engines and name the predictors that answer."""
    layout, keys = measured
    for predictor in ("idle_compute", "principle"):
        answer = answer_of(layout, keys[0], predictor)
        assert answer["n_max"] is None
        assert "principle_resolved" in answer["refusal"]


def test_the_work_model_is_right_about_curves_of_its_form(measured) -> None:
    """A covered curve is out of sample and predicted exactly."""
    layout, keys = measured
    answer = answer_of(layout, keys[0], "work_model")
    assert (answer["in_sample"], answer["refusal"]) == (False, None)
    assert "L=1024" in answer["constants"]
    rows = read_table(layout, "cpu", VALIDATION).filter(predictor="work_model")
    assert set(rows["setting_key"]) == {*keys}
    assert rows["hit"].all()


def test_at_the_grid_s_end_nothing_limits() -> None:
    """If every N passes, no module, term, lines or margin is named."""
    engine_rules, curves = rules("q8_0"), [curve(rules("q8_0", context=256), CONSTANTS)]
    names = ("limiting_module", "limiting_term", "evidence", "margin")
    for grid, epsilon in (((1,), 0.2), (GRID, 1e9)):
        answer = timed_forward(engine_rules, grid, "cpu", curves).answer(epsilon)
        assert answer["n_max"] == grid[-1]
        assert [answer[name] for name in names] == [None] * len(names)
    limited = timed_forward(engine_rules, GRID, "cpu", curves).answer(0.2)
    assert limited["n_max"] < GRID[-1]
    assert limited["margin"] > 1
    assert None not in [limited[name] for name in ("limiting_module", "limiting_term")]


def test_what_is_alone_is_in_sample(measured) -> None:
    """A curve with weights of a unique type is fitted to itself and marked."""
    layout, keys = measured
    assert answer_of(layout, keys[2], "work_model")["in_sample"]
    assert not answer_of(layout, keys[1], "work_model")["in_sample"]


def test_a_log_without_the_release_s_rules_refuses_with_a_remedy(tmp_path: Path) -> None:
    """Both predictors name the missing rules and the command."""
    layout = Layout(tmp_path)
    write_probe(layout)
    (key,) = engine_log(layout, FORWARDS[:1], CONSTANTS, ruled=False)
    make_tables(layout, "cpu")
    for predictor in ("principle_resolved", "work_model"):
        refusal = answer_of(layout, key, predictor)["refusal"]
        assert "nearfree rules extract llama-cpp==3.22.1" in refusal


def test_every_question_has_an_answer_of_each_predictor(measured) -> None:
    """Each setting, predictor, tolerance and basis has a number or a refusal."""
    layout, keys = measured
    rows = read_table(layout, "cpu", PREDICTIONS).filter(pl.col("setting_key").is_in(keys))
    tolerances, bases = rows["epsilon"].n_unique(), rows["basis"].n_unique()
    assert rows.height == len(keys) * len(PREDICTORS) * tolerances * bases
    assert (rows["n_max"].is_null() == rows["refusal"].is_not_null()).all()


def test_curves_as_the_model_says_have_no_unnamed_step(measured) -> None:
    """Each curve of an engine says whether the model was fitted to it."""
    layout, keys = measured
    config = Config(CONFIG)
    _, known = load_measured(layout, config, [0.2])
    steps = curve_steps(known, Answerer(layout, config, offline=True, log_alone=True))
    assert len(steps) == len(keys)
    assert sorted(step.in_sample for step in steps) == [False, False, True]
    assert [step.steps for step in steps] == [[], [], []]
    assert {step.curve.partition(",")[0] for step in steps} == {"small1 q4_k_m", "small2 q4_k_m"}


def test_a_serving_engine_s_forward_is_refused_by_each_predictor(tmp_path: Path) -> None:
    """Each predictor refuses a serving engine's forward, since its rules are unknown."""
    layout = Layout(tmp_path)
    write_probe(layout)
    served = structs.replace(SETTING, backend="vllm", release="0.20.2")
    ran = loaded(engine="vllm", release="0.20.2", matrices=(), system_info="attention FLASH_ATTN")
    write_engine(layout, served, ran=[ran])
    make_tables(layout, "cpu")
    rows = read_table(layout, "cpu", PREDICTIONS)
    assert set(rows["predictor"]) == {*PREDICTORS}
    assert rows["refusal"].is_not_null().all()
    refusals = rows.filter(predictor="principle_resolved")["refusal"].unique().to_list()
    assert refusals == ["no rules of vllm's own forward are read. Ask about llama_cpp"]
