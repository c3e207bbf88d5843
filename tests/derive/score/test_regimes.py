"""Answers of a regime, as scored: boundaries, bands and names."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from nearfree.derive.reference import groups
from nearfree.derive.reference.build import Curves
from nearfree.derive.reference.folds import (
    FOLD_KINDS,
    Fold,
    calibrated_bands,
    model_digests,
    needed_shifts,
    predictions_of,
)
from nearfree.derive.reference.left_out import SCORED_SCHEMA
from nearfree.derive.reference.record import rows_of_bands
from nearfree.derive.score import regimes
from nearfree.derive.score.regimes import answers
from nearfree.derive.truth.truth import last_pass

from derive.reference.made import CHIPS, EPSILON, curves, noisy, products
from derive.reference.test_folds import true

MODELS = (3072, 4096, 5120, 6144, 7168, 8192, 9216, 10240, 12288, 16384)


def keyed(every: list[Curves]) -> list[Curves]:
    """Return curves whose questions have consecutive keys."""
    return [
        Curves(
            replace(part.part, rows=part.part.rows.with_columns(pl.col("asked") + 100 * number)),
            part.latency_us, part.members, part.keys,
        )
        for number, part in enumerate(every)
    ]  # fmt: skip


OURS = keyed(
    curves(
        *products("h100", "h200", "b200", depths=MODELS),
        *products("h100", depths=MODELS[:4], backend_version="2.0"),
        bent=noisy(11, 0.15),
    )
)
EPSILONS = (0.1, EPSILON)


@pytest.fixture(autouse=True)
def known_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the constants that the curves follow instead of fits."""
    monkeypatch.setattr(groups, "fit", true)


def heavy(row: dict[str, Any]) -> bool:
    """Return whether a product's weights in 16 bits take 64 MB."""
    return 2.0 * float(row["d_model"]) * float(row["d_ff"]) >= 64e6


def answers_of(fold: Fold) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a regime's answers."""
    return answers(fold, OURS, CHIPS, EPSILONS, EPSILON)


@pytest.mark.parametrize("fold", FOLD_KINDS)
def test_a_curve_has_an_answer_at_each_tolerance(fold: Fold) -> None:
    """All but R3 answer every curve, R3 those with a twin; all are out of sample, by name.

    Products of less than 64 MB are learnt from alone.
    """
    answer_rows, ratios = answers_of(fold)
    rows = [row for measured in OURS for row in measured.part.rows.to_dicts() if heavy(row)]
    curve_ids = [row["asked"] for row in rows]
    assert 0 < len(curve_ids) < sum(measured.part.rows.height for measured in OURS)
    twins = {row["asked"] for row in rows
             if row["platform"] == "h100" and row["d_model"] in MODELS[:4]}  # fmt: skip
    assert sorted(answer_rows["asked"]) == sorted(2 * (list(twins) if fold == "R3" else curve_ids))
    assert answer_rows.schema == pl.Schema(SCORED_SCHEMA | {"regime": pl.String})
    assert set(answer_rows.select("epsilon", "regime", "in_sample", "predictor").rows()) == {
        (epsilon, fold, False, "work_model") for epsilon in EPSILONS
    }
    assert set(answer_rows["constants"]) == {f"{fold}: all but what is asked of"}
    assert (answer_rows["low"] <= answer_rows["n_max"]).all()
    assert (answer_rows["n_max"] <= answer_rows["high"]).all()
    assert ratios["asked"].n_unique() == answer_rows["asked"].n_unique()
    assert ratios.filter(pl.col("n") == 1)["ratio"].to_list() == pytest.approx(
        [1.0] * ratios["asked"].n_unique()
    )


def test_the_answer_follows_from_the_ratios() -> None:
    """N_max is the last N of the grid with a ratio within the tolerance."""
    answer_rows, ratios = answers_of("R1")
    assert ratios["n"].unique().sort().to_list() == [2**power for power in range(8)]
    for row in answer_rows.iter_rows(named=True):
        passes = ratios.filter(
            pl.col("asked") == row["asked"], pl.col("ratio") <= 1 + row["epsilon"]
        )
        assert row["n_max"] == passes["n"].max()


def test_bands_of_one_half_score_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with an even second byte has the band of odd ones, and vice versa."""
    wide = {0: 0.0, 1: 99.0}
    kind = rows_of_bands(OURS[0].part.rows)[0]
    monkeypatch.setattr(
        regimes,
        "calibrated_bands",
        lambda _told, _epsilon: {(kind, half): wide[half] for half in wide},
    )
    answer_rows, _ = answers_of("R2m")
    halves = {
        row: digest[1] % 2
        for measured in OURS
        for row, digest in zip(
            measured.part.rows["asked"], model_digests(measured.part.rows), strict=True
        )
    }
    assert set(halves.values()) == {0, 1}
    for row in answer_rows.iter_rows(named=True):
        ends = (row["low"], row["high"])
        if halves[row["asked"]] == 0:
            assert ends == (1, 128)
        else:
            assert ends == (row["n_max"], row["n_max"])


@pytest.mark.parametrize("fold", ["R0", "R1", "R2m"])
def test_intervals_meet_four_in_five_where_their_band_is_from(fold: Fold) -> None:
    """Four in five intervals meet the curves that their band was calibrated on."""
    predictions = list(predictions_of(fold, OURS, CHIPS, EPSILON))
    bands = calibrated_bands(predictions, EPSILON)
    for (_, half), band in bands.items():
        moved = [
            value
            for prediction, group_times, known in predictions
            for value, digest in zip(
                needed_shifts(prediction, group_times, known, EPSILON),
                model_digests(prediction.part.rows.filter(pl.Series(group_times))),
                strict=True,
            )
            if digest[1] % 2 == half
        ]
        assert len(moved) > 4
        assert np.mean(np.array(moved) <= band * (1 + 5e-4)) >= 0.8


def test_what_is_exact_is_hit() -> None:
    """Curves that follow the form are hit exactly, with intervals of no width."""
    exact = keyed(curves(*products("h100", "h200", "b200", depths=MODELS)))
    true_n: dict[int, float] = {}
    for curve in exact:
        ratio = curve.latency_us / curve.latency_us[:, :1]
        n_max = curve.part.features["n"][0, last_pass(ratio <= 1 + EPSILON)]
        of = zip(curve.part.rows.to_dicts(), n_max, strict=True)
        true_n |= {row["asked"]: last for row, last in of if heavy(row)}
    rows, _ = answers("R2m", exact, CHIPS, (EPSILON,), EPSILON)
    assert dict(rows.select("asked", "n_max").rows()) == true_n
    assert rows["low"].to_list() == rows["n_max"].to_list() == rows["high"].to_list()
    assert 1 < min(true_n.values()) < max(true_n.values()) < 128
