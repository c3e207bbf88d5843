"""A platform's own constants: their fit to few curves, and the scores that use them."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import write_payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.plan import CalibratePlan
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.score.evaluation import evaluate
from nearfree.derive.score.narrowing import without_fitted
from nearfree.derive.truth.datasets import load_published
from nearfree.derive.work_model.calibrate import calibrate_own, chosen, factors
from nearfree.derive.work_model.constants import fitted, recorded_constants
from nearfree.derive.work_model.family import ratios_of
from nearfree.derive.work_model.fit import Measured
from nearfree.derive.work_model.own import (
    CHIP,
    MEMORY,
    Own,
    curves_used,
    own_ratios,
    recorded_own,
    scaled,
)
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated
from nearfree.log.names import Layout
from nearfree.log.take import take_name

from derive.curves import make_truth
from derive.questions import LOG
from derive.tables.logs import CONFIG
from derive.work_model.forms import COMPUTED, of_family
from derive.work_model.imported import STREAM, put_curves

CONFIGURED = Config(CONFIG)
PAPER, CONSTANTS = (LOG.events / "public" / name for name in ("near_free_parallelism", "constants"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a log with the paper's values, the constants, rules, and made-up curves."""
    layout = Layout(tmp_path_factory.mktemp("own") / "results")
    put_curves(layout)
    shutil.rmtree(layout.events / "sources")
    shutil.copytree(LOG.events / "sources", layout.events / "sources")
    for stream in (PAPER, CONSTANTS):
        shutil.copytree(stream, layout.events / "public" / stream.name)
    return layout


def own_of(layout: Layout) -> dict[str, dict[str, Own]]:
    """Return the own constants in a log."""
    return recorded_own(layout, recorded_constants(layout))


def fit_own(layout: Layout, platform: str, source: str) -> str:
    """Fit a platform's own constants; return the take."""
    seal = calibrate_own(
        layout, CONFIGURED.platforms, platform, source=source, epsilon=0.2, offline=True
    )
    return str(seal.name)


@pytest.fixture(scope="module")
def floor(shared: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return that log with the fitted launch floor of the paper's machine."""
    layout = Layout(tmp_path_factory.mktemp("floor") / "results")
    shutil.copytree(shared.root, layout.root)
    fit_own(layout, "h20", "published")
    return layout


def test_one_number_is_fitted_to_the_paper_s_layers(floor: Layout) -> None:
    """The event holds the number, what it was fitted to, and what was tried."""
    own = own_of(floor)["moe_triton"]["h20"]
    event: ConstantsCalibrated = own.event.data
    (constant,) = event.constants
    assert (constant.hypothesis, constant.name, constant.unit) == ("host", "host_us", "us")
    assert 100 < own.values["host_us"] < 250
    assert (event.platforms, event.curves, event.epsilon) == (("h20",), 32, 0.2)
    assert set(event.files) == {"lookup.csv", "rules.csv", "sensitivity.csv"}
    assert [int(text.split(": ")[1].split(" of ")[0]) for text in event.tried] == [24, 30]
    fit_own(floor, "h20", "published")
    assert len([name for name in floor.takes("public") if name.stream == "constants_own"]) == 1


def test_what_others_rest_on_is_unaffected(shared: Layout, floor: Layout) -> None:
    """The shared constants stay those of `nearfree calibrate`."""
    before, after = recorded_constants(shared), recorded_constants(floor)
    assert {k: e.hash for k, e in before.items()} == {k: e.hash for k, e in after.items()}


def test_scores_that_rest_on_own_constants_are_in_sample(floor: Layout) -> None:
    """Only scores of that platform's fused MoE layers change, and only with own constants."""
    _, known = load_published(floor, CONFIGURED.site.tolerances)
    hits = {}
    for own in (False, True):
        answering = Answerer(floor, CONFIGURED, offline=True, own=own)
        evaluation = evaluate(known, answering, CONFIGURED.site.tolerances, ["work_model"])
        rows = evaluation.scores
        assert rows.filter("in_sample")["module"].unique().to_list() == (["moe_ffn"] * own)
        assert any("host_us" in text for text in evaluation.constants["work_model"]) == own
        hits[own] = rows.group_by("module").agg(pl.col("hit").sum()).sort("module")["hit"].to_list()
        at = rows.filter(pl.col("epsilon") == 0.2)
        assert at["hit"].sum() == (50 if own else 49)
    assert hits[True][:2] == hits[False][:2]
    assert sum(hits[True]) >= 217


def test_three_curves_a_kernel(shared: Layout, tmp_path: Path) -> None:
    """Factors are fitted to at most three curves, which are named and left out of scores."""
    layout = Layout(tmp_path / "results")
    shutil.copytree(shared.root, layout.root)
    fit_own(layout, "h100", STREAM)
    own = own_of(layout)
    assert set(own) == {*COMPUTED}
    for name, of in own.items():
        event: ConstantsCalibrated = of["h100"].event.data
        assert event.curves == len(curves_used({name: of})) == 3
        assert {constant.name for constant in event.constants} == {"chip", "memory"}
        assert all(
            constant.low <= of["h100"].values[constant.name] <= constant.high
            for constant in (CHIP, MEMORY)
        )
        assert event.band == recorded_constants(layout)[name].data.band
    used = curves_used(own)
    known = make_truth(*[({}, {1: 1.0, 2: 3.0})] * (len(used) + 1))
    settings = known.settings.with_columns(pl.Series("event_id", [*used, "another#1"]))
    left = without_fitted(
        type(known)(settings=settings, boundaries=known.boundaries, ratios=known.ratios,
                    excluded=known.excluded), own,
    )  # fmt: skip
    assert left.settings["event_id"].to_list() == ["another#1"]
    assert left.boundaries["curve"].to_list() == [len(used)]
    assert left.excluded["event_id"].to_list() == used
    with pytest.raises(EvidenceError, match="calibrate --own"):
        without_fitted(known, {})


@pytest.mark.parametrize(
    ("platform", "source", "message"),
    [
        ("h100", "published", "published holds nothing of h100"),
        ("l40s", STREAM, "holds nothing of l40s"),
        ("h20", "nothing", "the log holds nothing of nothing"),
    ],
)
def test_nothing_to_fit_writes_nothing(
    shared: Layout, platform: str, source: str, message: str
) -> None:
    """Without boundaries or curves of the platform nothing is written."""
    with pytest.raises(EvidenceError, match=message):
        fit_own(shared, platform, source)
    assert not (shared.events / "public" / "constants_own").exists()


def test_there_must_be_constants_to_start_from(layout: Layout) -> None:
    """Own constants are refused without constants of other platforms."""
    with pytest.raises(EvidenceError, match="Run `nearfree calibrate` first"):
        fit_own(layout, "h20", "published")


def test_own_constants_of_older_ones_are_refused(floor: Layout, tmp_path: Path) -> None:
    """After a new calibration own constants are refused until they are fitted again."""
    layout = Layout(tmp_path / "results")
    shutil.copytree(floor.root, layout.root)
    old = recorded_constants(layout)
    plan = CalibratePlan(source="s", files={}, platforms=("a100",), epsilon=0.2, form=99)
    events = [event.data for event in old.values()]
    write_payloads(layout, take_name("public", "constants", 2, plan), plan, *events)
    with pytest.raises(EvidenceError, match="h20 rest on constants of moe_triton that are not"):
        own_of(layout)
    fit_own(layout, "h20", "published")
    assert set(own_of(layout)) == {"moe_triton"}


CONSTANTS_OF = recorded_constants(LOG)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(COMPUTED)), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_factors_of_one_change_nothing(name: str, chip: float, memory: float) -> None:
    """Each factor scales the constant in its name; the factor 1 leaves all constants unchanged."""
    for values in fitted(CONSTANTS_OF[name].data).values.values():
        assert scaled(values, {}) == scaled(values, {"chip": 1.0, "memory": 1.0}) == values
        scaled_values = scaled(values, {"chip": chip, "memory": memory})
        assert scaled_values["bandwidth_share"] == pytest.approx(values["bandwidth_share"] * memory)
        if "tile_us" in scaled_values:
            assert scaled_values["tile_us"] == pytest.approx(values["tile_us"] / chip)
        same = {"sharpness", "fixed_us", "routed_traffic", "narrow_k", "half_k"} & set(
            scaled_values
        )
        assert all(scaled_values[ratio] == values[ratio] for ratio in same)


@settings(deadline=None, max_examples=20)
@given(st.floats(1.0, 400.0))
def test_a_launch_floor_hides_what_is_fixed(host_us: float) -> None:
    """A floor above every T(N) makes every ratio 1; without a floor nothing changes."""
    part, known = of_family("moe_triton"), fitted(CONSTANTS_OF["moe_triton"].data)
    ratio = own_ratios(part.family, known, {"host_us": host_us}, part.features)
    assert (ratio[:, 0] == 1.0).all()
    (values,) = known.values.values()
    most = (part.family.latency_us(part.features, values, "rules") - values["fixed_us"]).max(axis=1)
    assert (ratio[most <= host_us] == 1.0).all()
    without = own_ratios(part.family, known, {}, part.features)
    assert np.allclose(without, ratios_of(part.family, known, part.features))


@pytest.mark.parametrize("name", ["gemm", "moe_triton"])
def test_a_platform_s_own_factors_are_found(name: str) -> None:
    """With its factors a platform with other compute and bandwidth is predicted better."""
    part, known = of_family(name), fitted(CONSTANTS_OF[name].data)
    real = {"chip": 1.4, "memory": 0.8}
    hypothesis = part.family.hypotheses[0]
    alone = type(known)(family=name, values={hypothesis: known.values[hypothesis]}, band=0.0)
    family = type(part.family)(
        name=name, meaning="", modules=part.family.modules,
        constants=part.family.constants, hypotheses=(hypothesis,),
        latency_us=part.family.latency_us, limit=part.family.limit,
    )  # fmt: skip
    times = family.latency_us(part.features, scaled(alone.values[hypothesis], real), hypothesis)
    factor_values = factors(
        family, alone, Measured(features=part.features, latency_us=times, counts=part.counts), 0.2
    )
    true = np.log(times / times[:, :1])
    misses = [
        np.abs(np.log(own_ratios(family, alone, own, part.features)) - true).mean()
        for own in (factor_values, {})
    ]
    assert misses[0] < misses[1] / 2


KERNELS = st.tuples(st.sampled_from("ab"), st.sampled_from(["k", None]), st.text("xyz", max_size=3))


@given(st.lists(KERNELS, min_size=1, max_size=30))
def test_at_most_three_of_each(rows: list[tuple[str, str | None, str]]) -> None:
    """Each kernel gives its first, middle and last setting by key."""
    curves = pl.DataFrame(
        [("gemm", backend, kernel, key, "1") for backend, kernel, key in rows],
        schema=["module", "backend", "kernel", "setting_key", "backend_version"], orient="row",
        schema_overrides={"kernel": pl.String},
    )  # fmt: skip
    picked = curves[chosen(curves)]
    for kernel in set(rows):
        mine = sorted(row[2] for row in rows if row[:2] == kernel[:2])
        got = [row[3] for row in picked.rows() if row[1:3] == kernel[:2]]
        assert min(got) == mine[0]
        assert max(got) == mine[-1]
        assert len(got) == min(3, len(mine))
