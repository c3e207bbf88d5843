"""A platform that is left out does not influence its own prediction."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.reference.left_out import LEFT_OUT, LeftOut
from nearfree.derive.score.evaluation import evaluate
from nearfree.derive.truth.truth import questions, truth
from nearfree.derive.work_model.fit import Measured
from nearfree.derive.work_model.gemm import GEMM as GEMM_FORM
from nearfree.derive.work_model.samples import joined, parts, spread
from nearfree.log.names import Layout
from nearfree.public.curves import ImportedCurves, read_curves

from derive.curves import IdleCompute
from derive.questions import FACTS, RESOLVER
from derive.work_model.forms import GEMM, of_family
from derive.work_model.imported import put_curves

PLATFORMS = ("a100", "h100")


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> ImportedCurves:
    """Return curves of two platforms that follow the forms."""
    layout = Layout(tmp_path_factory.mktemp("left") / "results")
    put_curves(layout)
    return read_curves(layout)


def left_out(curves: ImportedCurves) -> LeftOut:
    """Return the predictor that is fitted to those curves."""
    return LeftOut(curves, FACTS, RESOLVER, epsilon=0.2)


@pytest.mark.slow
def test_its_own_curves_do_not_count(curves: ImportedCurves) -> None:
    """A platform's curves change only the constants of the other platform."""
    first = left_out(curves)
    mine = curves.settings.filter(pl.col("platform") == "h100")["curve"]
    slower = pl.when(pl.col("curve").is_in(mine.implode())).then(pl.col("n").sqrt()).otherwise(1.0)
    other = left_out(
        ImportedCurves(curves.settings, curves.points.with_columns(pl.col("latency_us") * slower))
    )
    assert first.fitted("gemm", "h100") == other.fitted("gemm", "h100")
    assert first.fitted("gemm", "a100") != other.fitted("gemm", "a100")


def test_it_is_scored_beside_the_others(curves: ImportedCurves) -> None:
    """Curves that follow the forms are hit out of sample, with an interval and with ratios."""
    gemm = curves.settings.filter(pl.col("module") == "gemm")
    known = truth(gemm, curves.points.join(gemm, on="curve", how="semi"), [0.1, 0.2])
    evaluation = evaluate(known, IdleCompute(), [0.1, 0.2], ["idle_compute"], left_out(curves))
    rows = evaluation.scores.filter(pl.col("predictor") == LEFT_OUT)
    assert rows.height == known.boundaries.height
    assert rows["answered"].all()
    assert not rows["in_sample"].any()
    assert rows["hit"].mean() > 0.9
    assert rows["t_ratio_error"].max() < 0.02
    assert (rows["width"] >= 1).all()
    assert evaluation.constants[LEFT_OUT] == [
        "gemm on every platform but the one asked of, at most 40 curves each"
    ]


def test_a_lone_platform_has_no_others(curves: ImportedCurves) -> None:
    """With a single platform there is no answer."""
    lone = curves.settings.filter(pl.col("platform") == "h100", pl.col("module") == "gemm")
    points = curves.points.join(lone, on="curve", how="semi")
    question_rows = questions(truth(lone, points, [0.2]))
    answering = left_out(ImportedCurves(lone, points))
    assert answering.answers(question_rows, [0.2], [LEFT_OUT]).is_empty()
    assert answering.ratios(question_rows).is_empty()
    refused = question_rows.with_columns(pl.lit("float32").alias("dtype"))
    assert left_out(curves).answers(refused, [0.2], [LEFT_OUT]).is_empty()


def test_each_part_is_of_one_platform(curves: ImportedCurves) -> None:
    """Curves are divided by platform and family; each is in exactly one part."""
    samples_ = [(platform, family, sample) for platform, family, sample in
             parts(curves, FACTS, RESOLVER)]  # fmt: skip
    assert {platform for platform, _, _ in samples_} == set(PLATFORMS)
    every = pl.concat([sample.curves["curve"] for _, _, sample in samples_])
    assert every.is_unique().all()
    for platform, _, sample in samples_:
        assert set(sample.curves["platform"]) == {platform}
        assert sample.measured.counts.shape[0] == sample.curves.height
    sample = samples_[0][2]
    assert spread(sample, 2).counts.shape[0] == 2
    assert spread(sample, 1000).counts.shape[0] == sample.curves.height


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["gemm", "moe_triton", "attention_cached"]), st.integers(2, 7))
def test_joined_curves_are_the_curves(name: str, width: int) -> None:
    """A form gives joined curves the values of the single ones."""
    part = of_family(name)
    times = np.ones(part.counts.shape)
    full = Measured(features=part.features, latency_us=times, counts=part.counts)
    cut = Measured(
        features={k: _cut(v, width) for k, v in part.features.items()},
        latency_us=times[:, :width], counts=part.counts[:, :width],
    )  # fmt: skip
    both = joined([cut, full])
    family, rows = part.family, part.counts.shape[0]
    values = {constant.name: constant.start for constant in family.constants}
    latency_us, alone, short = (
        family.latency_us(curve.features, values, family.hypotheses[0])
        for curve in (both, full, cut)
    )
    assert np.array_equal(latency_us[rows:], alone)
    assert np.array_equal(latency_us[:rows, :width], short)
    assert both.counts[:rows].sum() == cut.counts.sum()


def _cut(value: object, width: int) -> object:
    if isinstance(value, list):
        return [tuple(_cut(curve, width) for curve in product) for product in value]
    return value[:, :width] if isinstance(value, np.ndarray) else value


def test_one_product_beside_two() -> None:
    """One product and a Dense FFN of two products are joined unchanged."""
    from derive.questions import DENSE
    from derive.work_model.forms import prepared

    measured = [
        Measured(features=part.features, latency_us=np.ones(part.counts.shape), counts=part.counts)
        for part in prepared(GEMM, DENSE)
    ]
    family = of_family("gemm").family
    values = {constant.name: constant.start for constant in family.constants}
    latency_us = family.latency_us(joined(measured).features, values, "tile_16")
    for place, curve in enumerate(measured):
        assert np.allclose(
            latency_us[place], family.latency_us(curve.features, values, "tile_16")[0]
        )


def test_constants_that_other_formats_tell_are_not_fitted(curves: ImportedCurves) -> None:
    """Curves in 16 bits do not determine the depth of a tile, so it is not fitted to them."""
    pairs = left_out(curves).fitted("gemm", "h100")
    assert pairs is not None
    assert all(
        {*of} == {constant.name for constant in GEMM_FORM.constants} - {"depth_us"}
        for of in pairs.values.values()
    )
