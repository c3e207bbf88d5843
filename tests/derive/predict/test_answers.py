"""Answers of every predictor: a number or a reason for each question, without latencies."""

import re
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.laws.laws import ANSWERS_SCHEMA
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.truth.truth import ASKED_COLUMNS
from nearfree.log.names import Layout

from derive.questions import ATTENTION, DENSE, LOG, MOE, ask
from derive.tables.logs import CONFIG
from derive.work_model.forms import GEMM, SHARED

CONFIGURED = Config(CONFIG)
ANSWERER = Answerer(LOG, CONFIGURED, offline=True)
BLIND = Answerer(LOG, CONFIGURED, offline=True, blind=True)
EPSILONS = (0.05, 0.2)
ODD: list[dict[str, Any]] = [{"module": "model", "backend": "vllm"}, {**MOE, "backend": "another"}]
CHANGES = st.fixed_dictionaries(
    {
        "platform": st.sampled_from(["h20", "h100", "mars", "cpu"]),
        "dtype": st.sampled_from(["bfloat16", "float8", "float32"]),
        "batch": st.sampled_from([1, 8]),
        "baseline": st.sampled_from([1, 64]),
    }
)


def answered(
    *questions: dict[str, Any], predictor: str = "work_model", by: Answerer = ANSWERER
) -> list[dict[str, Any]]:
    """Return a predictor's answers at the tolerance 0.2."""
    answers = by.answers(ask(*questions), [0.2], [predictor])
    return answers.sort("asked").to_dicts()


@given(st.lists(st.tuples(st.sampled_from([*SHARED, *ODD]), CHANGES), max_size=5), st.data())
@settings(deadline=None, max_examples=40)
def test_one_answer_each(
    drawn: list[tuple[dict[str, Any], dict[str, Any]]], data: st.DataObject
) -> None:
    """Each question, predictor and tolerance has one row, with a number or a reason."""
    predictors = data.draw(st.lists(st.sampled_from(PREDICTORS), unique=True))
    question_rows = ask(*({**question, **changes} for question, changes in drawn))
    answers = ANSWERER.answers(question_rows, EPSILONS, predictors)
    assert answers.columns == [*ANSWERS_SCHEMA, "in_sample"]
    assert sorted(answers.select("asked", "predictor", "epsilon").rows()) == sorted(
        (key, name, epsilon)
        for key in range(len(drawn)) for name in predictors for epsilon in EPSILONS
    )  # fmt: skip
    assert (answers["n_max"].is_null() == answers["refusal"].is_not_null()).all()
    assert not answers["n_max"].is_nan().any()
    assert not answers["in_sample"].is_null().any()
    timed = answers.filter(pl.col("predictor") == "work_model", pl.col("refusal").is_null())
    assert (timed["low"] <= timed["n_max"]).all()
    assert (timed["n_max"] <= timed["high"]).all()
    grids = timed.join(question_rows, on="asked")
    assert grids.select(pl.col("grid").list.contains(pl.col("n_max").cast(pl.Int64)).all()).item()


def test_nothing_that_is_asked_was_measured() -> None:
    """A question has no latency, so no answer depends on one."""
    question_rows = ask(*SHARED)
    assert set(question_rows.columns) == {"asked", *ASKED_COLUMNS}
    measured = question_rows.with_columns(
        latency_us=pl.lit(1.0), ratio=pl.lit(9.0), n_max=pl.lit(3)
    )
    for given_ in (question_rows.drop("setting_key"), measured.drop("n_max")):
        answers = ANSWERER.answers(given_, EPSILONS, PREDICTORS)
        assert answers.equals(ANSWERER.answers(question_rows, EPSILONS, PREDICTORS))


def test_what_was_calibrated_on_is_in_sample() -> None:
    """Only the work model on its calibration platforms is in sample."""
    names = ("a100", "h100", "h20", "h200", "b200", "mars")
    question_rows = ask(*({**GEMM, "platform": name} for name in names))
    answers = BLIND.answers(question_rows, [0.2], PREDICTORS)
    for (predictor,), rows in answers.group_by("predictor"):
        expected = names[:2] if predictor == "work_model" else ()
        in_sample = rows.filter("in_sample")["asked"].to_list()
        assert sorted(names[key] for key in in_sample) == sorted(expected)


def test_a_known_kernel_answers_in_its_regime() -> None:
    """A GPU of the tables is in sample, a sibling is not, and H20 is none: its balance is another.

    Each says on what it stands.
    """
    names = ("h100", "h20", "rtx_4090")
    rows = [row for name in names for row in answered({**GEMM, "platform": name})]
    assert [row["regime"] for row in rows] == ["R3", "R0", "R1"]
    assert [row["in_sample"] for row in rows] == [True, False, False]
    assert all(row["calibration"][0].startswith("public/kernels/1-") for row in rows)
    assert all(row["constants"].startswith(f"{row['regime']}: gemm by ") for row in rows)


def test_other_formats_are_answered_out_of_sample() -> None:
    """Answers with carried constants say so, and are out of sample in twice the band."""
    for formats in ({"dtype": "float8"}, {"dtype": "bfloat16", "weights": "int8"}):
        (answer_row,) = answered({**GEMM, **formats, "platform": "h100"}, by=BLIND)
        assert not answer_row["in_sample"]
        assert answer_row["constants"].startswith(
            "gemm on a100, h100; bfloat16's constants carried to "
        )
        assert answer_row["constants"].endswith(", in 2 times the band")
    timed = BLIND.timed(ask(GEMM, {**GEMM, "dtype": "float8"}))
    plain, eight = sorted(timed.curves(), key=lambda row: row.asked)
    assert (eight.band, eight.in_sample) == (2 * plain.band, [False])


def test_bytes_and_peak_of_a_format_decide() -> None:
    """Weights alone in 8 bits leave the peak, so that N_max is half of that in 16 bits.

    With twice the peak, too, it is more, but no more than in 16 bits: results keep their bytes.
    """
    plain, eight, stored = (
        row["n_max"]
        for formats in ({}, {"dtype": "float8"}, {"weights": "int8"})
        for row in answered({**GEMM, "platform": "h200", **formats})
    )
    assert stored == plain / 2 < eight <= plain


def test_what_limits_a_known_layer() -> None:
    """Balanced experts of vLLM 0.9.1 on H20 are limited by a larger block."""
    (answer_row,) = answered({**MOE, "backend": "vllm_0_9_1"}, by=BLIND)
    assert answer_row["limiting_term"] == "BLOCK_SIZE_M 16 -> 64"
    assert (answer_row["limiting_module"], answer_row["n_max"]) == ("moe_ffn", 256.0)
    assert answer_row["constants"] == "moe_triton on a100, h100"
    assert answer_row["calibration"][0].startswith("public/constants/1-")
    assert re.match(r"vllm/model_executor/.*fused_moe.py:\d+-\d+ ", answer_row["evidence"])


@pytest.mark.parametrize(
    ("question", "term"),
    [
        (DENSE, "compute of padded rows against the weights' traffic"),
        ({**MOE, "backend": "trtllm"}, "padded expert blocks and traffic between L2 and SMs"),
        ({**ATTENTION, "context": 0, "batch": 64}, "waves of query tiles"),
        ({**ATTENTION, "context": 65536}, "padded query tiles over the cache"),
        ({**ATTENTION, "backend": "flashinfer", "context": 65536}, "query tile 16 -> 64"),
    ],
)
def test_what_limits_each_form(question: dict[str, Any], term: str) -> None:
    """The term is the part that grows after N_max, or the rule's step there."""
    assert answered(question)[0]["limiting_term"] == term


def test_larger_tolerances_never_answer_less() -> None:
    """N_max and its interval do not decrease with the tolerance."""
    epsilons = [0.05, 0.1, 0.15, 0.2, 0.3]
    answers = ANSWERER.answers(ask(*SHARED), epsilons, ["work_model"]).sort("asked", "epsilon")
    for name in ("n_max", "low", "high"):
        rises = answers.select(pl.col(name).diff().over("asked").fill_null(0) >= 0)
        assert rises.to_series().all()


def test_ratios_start_at_1() -> None:
    """Each answered question has T(N) / T(baseline) for each N, 1 at the baseline."""
    question_rows = ask(*SHARED, *ODD)
    ratios = ANSWERER.ratios(question_rows)
    assert sorted(ratios["asked"].unique()) == list(range(len(SHARED)))
    grids = question_rows.explode("grid").filter(pl.col("asked") < len(SHARED))
    assert sorted(ratios.select("asked", "n").rows()) == grids.select("asked", "grid").rows()
    first = question_rows.join(ratios, left_on=["asked", "baseline"], right_on=["asked", "n"])
    assert first["ratio"].to_list() == [1.0] * len(SHARED)
    assert ANSWERER.ratios(ask(*ODD)).is_empty()


def test_an_answer_is_the_boundary_of_its_ratios() -> None:
    """N_max is the last N whose ratio is within the tolerance."""
    ratios = ANSWERER.ratios(ask(*SHARED)).filter(pl.col("ratio") <= 1.2)
    last = ratios.group_by("asked").agg(pl.col("n").max()).sort("asked")["n"]
    assert [row["n_max"] for row in answered(*SHARED)] == last.to_list()


def test_without_constants_the_work_model_refuses(layout: Layout) -> None:
    """Without constants the reason names the family."""
    answerer = Answerer(layout, CONFIGURED, offline=True).answers(
        ask(DENSE), EPSILONS, ["work_model", "idle_compute"]
    )
    refused = answerer.filter(predictor="work_model")
    assert refused["refusal"].to_list() == ["no constants of gemm in the log"] * 2
    assert answerer.filter(predictor="idle_compute")["refusal"].null_count() == 2


def test_nothing_asked(layout: Layout) -> None:
    """No question, or no predictor, gives no answer."""
    assert ANSWERER.answers(ask(), EPSILONS, PREDICTORS).is_empty()
    assert ANSWERER.answers(ask(DENSE), EPSILONS, []).is_empty()
