"""The noise ceiling: which curve is the twin of another, and its score."""

from typing import Any

import pytest
from nearfree.derive.score.evaluation import TWIN, evaluate, twin_answers, twin_ratios, twins

from derive.curves import Curve, IdleCompute, make_truth

FLAT = {1: 10.0, 2: 10.0, 4: 10.0, 8: 30.0}
SHORT = {1: 10.0, 2: 30.0, 4: 30.0, 8: 30.0}


def curve(version: str, times: dict[int, float] = FLAT, **changes: Any) -> Curve:
    """Return a curve of a version."""
    return {"backend": "vllm", "backend_version": version} | changes, times


def pairs(*curves: Curve) -> dict[int, int]:
    """Return the twin of each curve that has one."""
    return dict(twins(make_truth(*curves)).rows())


def test_the_version_before_else_the_one_after() -> None:
    """The twin is the version before, else the one after, in version order."""
    pair_rows = pairs(curve("0.10.0"), curve("0.9.1"), curve("0.11.0"))
    assert pair_rows == {1: 0, 0: 1, 2: 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"platform": "a100"},
        {"dtype": "float16"},
        {"d_ff": 999},
        {"batch": 2},
        {"backend": "sglang"},
        {"kernel": "other"},
        {"distribution": "power_law_1.2"},
        {"backend_version": "1.0"},
        {"backend_version": None},
    ],
)
def test_what_differs_has_no_twin(changes: dict[str, Any]) -> None:
    """Another platform, dtype, shape or kernel regime, or the same version, is no twin."""
    same = curve("1.0"), curve("2.0")
    assert pairs(*same) == {0: 1, 1: 0}
    assert pairs(curve("1.0"), curve("2.0", **changes)) == {}


def test_any_engine_is_a_product_s_twin() -> None:
    """A product's twin may be of another engine or kernel."""
    gemm: dict[str, Any] = {"module": "gemm"}
    pair_rows = pairs(
        curve("1.0", **gemm, kernel="a"), curve("1.0", **gemm, backend="sglang", kernel="b")
    )
    assert pair_rows == {0: 1, 1: 0}


def test_a_twin_predicts_its_own_boundary() -> None:
    """The twin's N_max and T(N) are scored like a prediction."""
    truth = make_truth(curve("1.0"), curve("2.0", SHORT), curve("2.0", SHORT, d_ff=7))
    both = twins(truth)
    assert twin_answers(truth, both).select("asked", "n_max").rows() == [(0, 1.0), (1, 4.0)]
    assert twin_ratios(truth, both).filter(asked=0)["ratio"].to_list() == [1.0, 3.0, 3.0, 3.0]
    evaluation = evaluate(truth, IdleCompute(), [0.2], [TWIN]).scores.sort("curve")
    assert evaluation["curve"].to_list() == [0, 1]
    assert evaluation["hit"].to_list() == [False, False]
    assert evaluation["t_ratio_error"].to_list() == pytest.approx([2.0, 2 / 3])


def test_twins_that_agree_reach_the_ceiling() -> None:
    """Equal curves of two versions hit each other without error."""
    evaluation = evaluate(make_truth(curve("1"), curve("2")), IdleCompute(), [0.2], [TWIN]).scores
    assert evaluation["hit"].all()
    assert evaluation["t_ratio_error"].to_list() == [0.0, 0.0]


def test_ratios_need_the_same_baseline() -> None:
    """A twin with another baseline is left out."""
    truth = make_truth(curve("1"), curve("2", {2: 1.0, 4: 1.0}))
    assert twin_ratios(truth, twins(truth)).is_empty()
    assert twin_answers(truth, twins(truth)).height == 2
