"""T(N) of dense products whose padded rows an engine's rules give."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.derive.work_model.gemm import dense_questions, dense_sizes
from nearfree.derive.work_model.prepare import grids

from derive.questions import DENSE, FACTS, LOG, RESOLVER, ask

GRID = [1, 16, 17, 63, 64, 65, 128, 129]
FORMATS = {"dtype": "bfloat16", "weights": "int4"}
ENGINE = {"backend": "vllm_linear", "backend_version": "0.33.0"}


def frame(*questions: dict[str, Any]) -> pl.DataFrame:
    """Return questions with the facts of their platforms, all over one grid from N = 1."""
    question_rows = ask(
        *({**DENSE, "batch": 1, "gated": True, **question} for question in questions)
    )
    grid = pl.Series("grid", [GRID] * question_rows.height)
    return with_facts(question_rows.with_columns(grid, pl.lit(1).alias("baseline")), FACTS)


def ratios(*questions: dict[str, Any]) -> np.ndarray:
    """Return T(N) / T(1), [question, N]."""
    timed = TimedQuestions(frame(*questions), RESOLVER, recorded_constants(LOG))
    assert timed.refusals() == {}
    ratio_rows = timed.ratios().sort("asked", "n")
    return ratio_rows["ratio"].to_numpy().reshape(len(questions), len(GRID))


def test_the_products_of_a_gated_ffn_are_asked_as_they_run() -> None:
    """An engine merges gate and up into one product; torch's products have no rules to ask."""
    (row,) = frame({**FORMATS, **ENGINE, "platform": "h100"}).to_dicts()
    sides = [
        (dense_question.depth, dense_question.columns) for dense_question in dense_questions(row)
    ]
    assert sides == [(4096, 2 * 9216), (9216, 4096)]
    (plain,) = frame({**FORMATS, "platform": "h100"}).to_dicts()
    assert list(dense_questions(plain)) == []


def test_a_model_s_own_kernel_is_asked_in_the_place_of_the_release_s() -> None:
    """Without DeepGEMM CUTLASS runs, whose rows are read; the evidence is the place of its rule."""
    question = {"dtype": "float8_block", **ENGINE, "platform": "b200"}
    rows = frame(question, question)
    rows = rows.with_columns(pl.Series("dense_kernel", [None, "CUTLASS"], dtype=pl.String))
    timed = TimedQuestions(rows, RESOLVER, recorded_constants(LOG))
    evidence = timed.answers([0.2]).sort("asked")["evidence"].to_list()
    assert evidence[0].startswith("no rule, tiles of 16 to 128 rows assumed: vllm 0.33.0 runs Deep")
    assert evidence[1].startswith("csrc/quantization/w8a8/cutlass/c3x/scaled_mm_blockwise_sm100")


def test_marlin_s_second_pass_is_a_jump_that_goes_again() -> None:
    """By its rule Marlin reads weights twice at 65 rows and once at 128: T(N) falls again."""
    (ratio,) = ratios({**FORMATS, **ENGINE, "platform": "l40s"})
    at = dict(zip(GRID, ratio, strict=True))
    assert at[64] < 1.3
    assert at[65] > 1.5 * at[64]
    assert at[128] < at[65]


def test_machete_s_tile_of_128_rows_is_a_jump() -> None:
    """At 65 rows the tile doubles, and its compute exceeds the time of reading the weights."""
    ruled, library = ratios(
        {**FORMATS, **ENGINE, "platform": "h100"}, {**FORMATS, "platform": "h100"}
    )
    place = GRID.index(65)
    assert ruled[place] / ruled[place - 1] > 1.2
    assert ruled[place] / ruled[place - 1] > library[place] / library[place - 1]


@pytest.mark.parametrize(
    ("formats", "why"),
    [
        ({"dtype": "float8_block"}, "DeepGEMM"),
        ({"dtype": "bfloat16"}, "no rows of bfloat16 weights"),
    ],
)
def test_without_rows_tiles_are_hypotheses_and_the_evidence_says_why(
    formats: dict[str, str], why: str
) -> None:
    """T(N) is a library's; in place of a rule the evidence gives the reason."""
    both = [{**formats, **ENGINE, "platform": "h100"}, {**formats, "platform": "h100"}]
    ruled, library = ratios(*both)
    assert ruled.tolist() == library.tolist()
    timed = TimedQuestions(frame(*both), RESOLVER, recorded_constants(LOG))
    evidence = timed.answers([0.2]).sort("asked")["evidence"].to_list()
    assert evidence[0].startswith("no rule, tiles of 16 to 128 rows assumed")
    assert why in evidence[0]
    assert "0.33.0" not in evidence[1]


def test_an_answer_names_the_line_that_limits() -> None:
    """The limit names the rule's line and what changes there: passes over weights, or tile rows."""
    timed = TimedQuestions(
        frame(
            {**FORMATS, **ENGINE, "platform": "l40s"},
            {**FORMATS, **ENGINE, "platform": "h100"},
        ),
        RESOLVER,
        recorded_constants(LOG),
    )
    marlin, machete = timed.answers([0.3]).sort("asked").to_dicts()
    assert marlin["limiting_term"] == "passes over the weights 1 -> 2"
    assert "marlin/marlin.cu:" in marlin["evidence"]
    assert machete["limiting_term"].startswith("rows of a tile")
    assert "machete/generate.py:" in machete["evidence"]


def test_no_rule_is_asked_where_no_engine_is() -> None:
    """Without an engine, as in scores of tables, no rule is asked."""
    rows = frame({"platform": "h100"})
    n, _ = grids(rows)
    assert dense_sizes(rows, n, RESOLVER) == {}
