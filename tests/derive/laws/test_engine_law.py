"""The principle of an engine's forward, by rules: the last N with the same paths and passes."""

import pytest
from nearfree.derive.laws.engine_law import LAW_REFUSALS, LEAST_SEARCHED, principle_of_engine

from derive.engines import BUILT, rules

NOT_REPACKED = {"release": BUILT, "repack": False}


@pytest.mark.parametrize(
    ("kinds", "changes", "baseline", "n_max", "module"),
    [
        (("q4_1",), {}, 1, 1, "mul_mat q4_1"),
        (("q8_0",), {}, 2, 4, "mul_mat q8_0"),
        (("q8_0",), {"batch": 2}, 1, 2, "mul_mat q8_0"),
        (("q4_k",), NOT_REPACKED, 8, 16, "mul_mat q4_k"),
        (("q4_k",), NOT_REPACKED, 17, 32, "mul_mat q4_k"),
        (("q8_0", "q4_1"), {}, 2, 2, "mul_mat q4_1"),
        (("q4_1", "q8_0"), {}, 4, 4, "mul_mat q4_1"),
    ],
)
def test_n_max_is_the_last_n_alike(kinds, changes, baseline, n_max, module) -> None:
    """It stops at the type that changes first; of those that change together at the heaviest."""
    known = rules(*kinds, **changes)
    principle = principle_of_engine(known, baseline, 33)
    assert (principle["n_max"], principle["limiting_module"]) == (n_max, module)
    assert f"N = {n_max + 1}" in principle["limiting_term"]
    assert principle_of_engine(known, baseline, baseline) == principle, "looked for beyond the grid"
    package = "llama-cpp 0.3.36" if changes == NOT_REPACKED else "llama-cpp 3.22.1"
    assert principle["evidence"].startswith(package)
    assert "ggml/src/ggml-cpu/" in principle["evidence"]
    assert principle["evidence"].rpartition(":")[2].partition("-")[0].isdigit()


def test_a_new_path_is_told_with_the_one_that_it_replaces() -> None:
    """Where the path changes but not the number of passes, the term names both paths."""
    first = principle_of_engine(rules("q8_0"), 1, 33)
    assert first["limiting_term"].startswith(
        "sgemm by the rule sgemm in place of vector, 1 pass at"
    )
    assert "in place of" not in principle_of_engine(rules("q8_0"), 2, 33)["limiting_term"]


def test_nothing_up_to_where_is_looked_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that never changes is unbounded, with the extent of the search."""
    known = rules("q8_0")
    monkeypatch.setattr(type(known), "first_changes", lambda *_: {})
    principle = principle_of_engine(known, 1, 33)
    assert principle["n_max"] == float("inf")
    assert f"N = {LEAST_SEARCHED}" in principle["limiting_term"]


def test_refusals_name_a_predictor_that_answers() -> None:
    """The laws that do not speak of engines name a predictor that does."""
    assert set(LAW_REFUSALS) == {"idle_compute", "principle"}
    assert all("principle_resolved" in reason for reason in LAW_REFUSALS.values())
