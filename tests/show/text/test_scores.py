"""Scores as text, with what is missing, infinite or left out."""

import polars as pl
import pytest
from derive.curves import IdleCompute, make_answers, make_truth
from nearfree.derive.score.evaluation import EVERY, evaluate
from nearfree.derive.score.scores import groups, score
from nearfree.derive.truth.truth import NO_BASELINE
from nearfree.show.text.scores import head, table

MOE = {"module": "moe_ffn", "experts": 64, "top_k": 8, "routing": "balanced"}
KNOWN = make_truth(({}, {1: 10.0, 2: 30.0}), (MOE, {1: 1.0}), (MOE, {2: 1.0}))


def test_what_is_left_out_is_named() -> None:
    """Curves without a boundary are counted by reason, with one example each."""
    scores = evaluate(KNOWN, IdleCompute(), [0.2], EVERY)
    lines = list(head("mine.csv", KNOWN, scores, [0.2]))
    assert lines[-1] == f"excluded    2 curves: {NO_BASELINE} (first: e#1)"
    assert "calibrated  work_model: none fitted" in lines
    assert "coverage    4 of 4 answered; 0 boundaries undecided" in lines


def test_without_constants_the_text_says_so() -> None:
    """The text says that laws use no calibrated constants."""
    scores = evaluate(KNOWN, IdleCompute(), [0.2], ["principle"])
    assert any("no answer uses a calibrated" in line for line in head("x", KNOWN, scores, [0.2]))


@pytest.mark.parametrize(
    ("n_max", "high", "error", "width"),
    [
        (float("inf"), float("inf"), "inf", "inf"),
        (1.0, 2.0, "0.000", "2.000"),
        (None, 2.0, "-", "-"),
    ],
)
def test_infinite_is_not_missing(n_max: float | None, high: float, error: str, width: str) -> None:
    """An unbounded error is printed as such, a missing number as a dash."""
    answers = make_answers({"n_max": n_max, "low": 1.0, "high": high})
    rows = groups(score(KNOWN, answers, ["principle"]), ["predictor"])
    heading, line, *_ = table(rows, ["predictor"])
    cells = dict(zip(heading.replace("first exit", "exit").replace("T err", "T").split(),
                     line.split(), strict=True))  # fmt: skip
    assert (cells["|log2|"], cells["width"]) == (error, width)


def test_columns_line_up() -> None:
    """Cells of the table are aligned under their headings."""
    scores = evaluate(KNOWN, IdleCompute(), [0.2], EVERY)
    rows = groups(scores.scores.with_columns(pl.lit("a long name").alias("kernel")),
                  ["predictor", "kernel", "in_sample"])  # fmt: skip
    heading, *lines = table(rows, ["predictor", "kernel", "in_sample"])
    ends = {len(line) for line in lines[: len(rows)]}
    assert ends == {len(heading)}
