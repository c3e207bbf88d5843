"""Predictions of models: recorded ones, and laws' answers for measured settings."""

from typing import Any

import polars as pl
import pytest
from conftest import make_plan, make_started
from msgspec import structs
from msgspec.structs import replace
from nearfree.config.model_studies import model_sweeps
from nearfree.core.predictors import PREDICTORS
from nearfree.decoders.ranks.modules import ATTENTION, DENSE
from nearfree.derive.predict.answers import RECORDED
from nearfree.derive.predict.model_predictions import release_of, releases_that_ran
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.tables.settings import SETTINGS
from nearfree.log.events import PredictionRecorded, RunFinished
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake, ensure_take, take_name
from whole_models import MOE, model_study, plan_of, small, write_events

from derive.modelled import (
    MODEL,
    SETTING,
    T,
    made,
    predicted_payload,
    record_predictions,
    write_model,
    write_tables,
)
from derive.tables.logs import make_take, make_visits, write_probe, write_study

pytestmark = pytest.mark.slow


def rows(layout: Layout, *payloads: Any) -> pl.DataFrame:
    """Return the predictions of models of a log, of which the models come first."""
    return made(layout, *payloads)(PREDICTIONS).filter(module="model")


def test_what_is_on_record_is_a_row(layout: Layout) -> None:
    """A recorded prediction is a row with all its fields, made from its event."""
    prediction = predicted_payload(
        low=2.0, high=5.0, margin=1.5, balance_flop_per_byte=8.0, basis="probed_gemm"
    )
    (table_rows,) = rows(layout, prediction).filter(predictor="modules_sum").to_dicts()
    assert (
        table_rows["n_max"],
        table_rows["n_max_extended"],
        table_rows["low"],
        table_rows["high"],
    ) == (3, 3, 2, 5)
    assert (table_rows["limiting_module"], table_rows["limiting_term"]) == (ATTENTION, "given")
    assert (table_rows["margin"], table_rows["basis"], table_rows["balance_flop_per_byte"]) == (
        1.5,
        "probed_gemm",
        8.0,
    )
    assert (table_rows["model"], table_rows["baseline"], table_rows["refusal"]) == (
        "small",
        1,
        None,
    )
    assert (table_rows["unbounded"], table_rows["constants"], table_rows["in_sample"]) == (
        False,
        None,
        False,
    )
    events = {
        e.event_id for take in read_scope(layout, "cpu") for e in take.events_of(PredictionRecorded)
    }
    assert len(table_rows["from_ids"]) == 2
    assert table_rows["from_ids"][0].startswith("settings:")
    assert table_rows["from_ids"][1] in events


def test_a_refusal_on_record_is_a_row(layout: Layout) -> None:
    """A recorded refusal is a row with its reason."""
    (table_rows,) = (
        rows(layout, predicted_payload(n_max=None)).filter(predictor="modules_sum").to_dicts()
    )
    assert (table_rows["n_max"], table_rows["refusal"]) == (None, "nothing was measured")


def recorded(layout: Layout) -> list[tuple[Any, ...]]:
    """Return the recorded predictions: predictor, basis, baseline, tolerance and N_max."""
    rows = write_tables(layout)(PREDICTIONS).filter(pl.col("predictor").is_in(RECORDED))
    return rows.select("predictor", "basis", "baseline", "epsilon", "n_max").rows()


def test_the_newest_of_the_same_counts(layout: Layout) -> None:
    """A repeated prediction replaces the earlier one; others stay."""
    write_probe(layout)
    record_predictions(
        layout, predicted_payload(n_max=3.0), predicted_payload("modules_minimum", n_max=7.0)
    )
    record_predictions(layout, predicted_payload(n_max=5.0), take=2)
    write_model(layout)
    assert recorded(layout) == [
        ("modules_minimum", None, 1, 0.2, 7.0),
        ("modules_sum", None, 1, 0.2, 5.0),
    ]


def test_a_clock_that_went_back_makes_no_take_older(layout: Layout) -> None:
    """Of a study's takes the larger number counts, even if its time is earlier."""
    write_probe(layout)
    record_predictions(layout, predicted_payload(n_max=5.0), take=2)
    record_predictions(layout, predicted_payload(n_max=3.0))
    write_model(layout)
    assert recorded(layout) == [("modules_sum", None, 1, 0.2, 5.0)]


@pytest.mark.parametrize(
    ("name", "value"), [("predictor", "modules_minimum"), ("basis", "probed_gemm"),
                        ("epsilon", 0.1), ("baseline", 2)]
)  # fmt: skip
def test_what_says_another_thing_stays(layout: Layout, name: str, value: object) -> None:
    """Another predictor, basis, tolerance or baseline is another prediction."""
    other: Any = {"n_max": 4.0, name: value}
    write_probe(layout)
    record_predictions(layout, predicted_payload(n_max=3.0))
    record_predictions(layout, predicted_payload(**other), take=2)
    write_model(layout)
    write_model(layout, study="later", baseline=2)
    assert {row[-1] for row in recorded(layout)} == {3.0, 4.0}


def test_studies_that_share_a_setting_do_not_collide(layout: Layout) -> None:
    """Of two studies' predictions of a setting the newer by time counts."""
    write_probe(layout)
    record_predictions(layout, predicted_payload(n_max=3.0), take=2)
    record_predictions(layout, predicted_payload(n_max=5.0), study="later")
    write_model(layout)
    assert recorded(layout) == [("modules_sum", None, 1, 0.2, 5.0)]


def test_a_baseline_is_another_setting(layout: Layout) -> None:
    """Each measured baseline of a setting has its own predictions."""
    write_probe(layout)
    record_predictions(
        layout, predicted_payload(n_max=3.0), predicted_payload(n_max=4.0, baseline=2)
    )
    write_model(layout)
    write_model(layout, study="later", baseline=2)
    assert recorded(layout) == [
        ("modules_sum", None, 1, 0.2, 3.0),
        ("modules_sum", None, 2, 0.2, 4.0),
    ]


def test_laws_refuse_another_baseline(layout: Layout) -> None:
    """For a baseline that is neither 1 nor the paper's every law refuses."""
    write_probe(layout)
    write_model(layout, baseline=2)
    rows = write_tables(layout)(PREDICTIONS).filter(module="model")
    assert set(rows.select("predictor", "basis").rows()) == {
        (predictor, basis) for predictor in PREDICTORS for basis in ("probed_stream", "probed_gemm")
    }
    assert set(rows.select("baseline", "n_max", "unbounded", "refusal").rows()) == {
        (
            2,
            None,
            False,
            "models are asked from N = 1 and from the paper's baseline, not from N = 2",
        )
    }


def test_laws_speak_of_the_newest_release(layout: Layout) -> None:
    """A law uses the package version of the newest take."""
    model = small()
    sweeps = model_sweeps(model_study(backend="flash_attn", dtype="bfloat16"), model)
    plan = plan_of(model, sweeps)
    visits = [visit for sweep in sweeps for visit in make_visits(sweep.setting, T)]

    def work(take: OpenTake) -> None:
        for visit in visits:
            take.append(visit, sync=False)

    write_probe(layout)
    for number, release in ((2, "2.8.1"), (1, "2.7.4")):
        started = replace(make_started(plan), versions={"flash-attn": release})
        name = take_name("cpu", "flash", number, plan)
        ensure_take(layout, name, plan, lambda _, started=started: started, work)
    rows = write_tables(layout)(PREDICTIONS).filter(predictor="principle_resolved")
    assert set(rows["refusal"]) == {"attention: no rules of flash-attn 2.8.1 in the log"}


def test_what_was_never_measured_has_no_row(layout: Layout) -> None:
    """A setting or baseline that was not measured has no row."""
    unmeasured = model_sweeps(model_study(batch=[2]), MODEL)[0].setting
    table_rows = rows(
        layout,
        predicted_payload(),
        predicted_payload(setting=unmeasured),
        predicted_payload("modules_minimum", baseline=2),
    )
    prediction = table_rows.filter(pl.col("predictor").is_in(RECORDED))
    assert prediction["predictor"].to_list() == ["modules_sum"]


def experts(layout: Layout, *routings: str) -> pl.DataFrame:
    """Return the laws' rows for two measured routings."""
    model = small(MOE)
    sweeps = model_sweeps(model_study(MOE), model)
    visits = [
        visit
        for sweep in sweeps
        if sweep.setting.routing in routings
        for visit in make_visits(
            sweep.setting, {n: float(n) for n in sweep.positions}, baseline=sweep.baseline
        )
    ]
    write_probe(layout)
    write_events(layout, "experts", plan_of(model, sweeps), visits)
    return write_tables(layout)(PREDICTIONS).filter(module="model", basis="probed_gemm")


def test_a_law_speaks_of_the_measured_baseline(layout: Layout) -> None:
    """Balanced routing has the baseline E / (b k) = 4, skewed 1, each with one row a predictor."""
    expert_rows = experts(layout, "balanced", "skewed")
    for routing, baseline in (("balanced", 4), ("skewed", 1)):
        part = expert_rows.filter(routing=routing)
        assert part["predictor"].to_list() == sorted(PREDICTORS)
        assert set(part["baseline"]) == {baseline}


def test_a_law_speaks_of_what_was_measured(layout: Layout) -> None:
    """A planned setting without samples has no row."""
    assert set(experts(layout, "skewed")["routing"]) == {"skewed"}


def test_laws_are_asked_on_each_basis(layout: Layout) -> None:
    """Each law and the work model has a row for each basis of facts, with its rho."""
    table_rows = rows(layout).filter(pl.col("predictor").is_in(PREDICTORS))
    assert set(table_rows.select("predictor", "basis", "balance_flop_per_byte").rows()) == {
        (predictor, basis, rho)
        for predictor in PREDICTORS
        for basis, rho in (("probed_stream", 8.0), ("probed_gemm", 16.0))
    }
    for row in table_rows.to_dicts():
        said_so = row["n_max"] is not None or row["unbounded"]
        assert said_so == (row["refusal"] is None)
        assert row["from_ids"][0].startswith("settings:")
        assert row["from_ids"][1].startswith("platforms:")


def test_a_law_of_a_dense_model(layout: Layout) -> None:
    """The idle-compute law says rho s / 2 b of a dense model's FFN: 16 and 32 in float32."""
    table_rows = rows(layout).filter(predictor="idle_compute")
    assert dict(table_rows.select("basis", "n_max").rows()) == {
        "probed_stream": 16.0,
        "probed_gemm": 32.0,
    }
    assert set(table_rows["limiting_module"]) == {DENSE}


def test_without_facts_a_law_refuses(layout: Layout) -> None:
    """A platform without a probe has a refusal per law; recorded predictions stay."""
    record_predictions(layout)
    write_model(layout)
    rows = write_tables(layout)(PREDICTIONS).filter(module="model")
    assert rows.filter(pl.col("predictor").is_in(RECORDED))["n_max"].to_list() == [3.0]
    laws = rows.filter(pl.col("predictor").is_in(PREDICTORS))
    assert laws["predictor"].to_list() == sorted(PREDICTORS)
    assert set(laws.select("basis", "n_max").rows()) == {(None, None)}
    assert "no phi of cpu for float32" in laws.filter(predictor="idle_compute")["refusal"].item()


def test_without_facts_of_its_dtype_a_law_refuses(layout: Layout) -> None:
    """A platform probed in other element types has one refusal per law."""
    write_probe(layout)
    write_model(layout, setting=replace(SETTING, dtype="float16"))
    rows = write_tables(layout)(PREDICTIONS).filter(module="model")
    assert rows["predictor"].to_list() == sorted(PREDICTORS)
    assert set(rows.select("basis", "n_max").rows()) == {(None, None)}
    assert "cpu for float16" in rows.filter(predictor="idle_compute")["refusal"].item()


def test_modules_beside_a_model_are_predicted_as_ever(layout: Layout) -> None:
    """Rows of a modules' study do not depend on models in the scope."""
    alone, both = Layout(layout.root / "alone"), Layout(layout.root / "both")
    for layout_ in (alone, both):
        write_probe(layout_)
        write_study(layout_)
    write_model(both)
    table_rows = [
        write_tables(layout_)(PREDICTIONS).filter(module="dense_ffn") for layout_ in (alone, both)
    ]
    assert table_rows[0].drop("from_ids").equals(table_rows[1].drop("from_ids"))


@pytest.mark.parametrize("without", [False, True])
def test_a_setting_of_a_model_is_predicted_once(layout: Layout, *, without: bool) -> None:
    """A model's setting has one row per predictor and basis."""
    write_probe(layout)
    if not without:
        record_predictions(layout)
    write_model(layout)
    read = write_tables(layout)
    table_rows = read(PREDICTIONS).filter(module="model")
    assert table_rows.height == 2 * len(PREDICTORS) + (not without)
    assert table_rows.select("predictor", "basis").n_unique() == table_rows.height
    assert read(SETTINGS).filter(module="model").height == 1
    assert set(table_rows["dtype"]) == {SETTING.dtype}


VERSIONS = {"vllm": "0.20.2", "flash-attn": "2.8.3", "flashinfer-python": "0.5.3", "torch": "2.11"}


def test_a_backend_is_of_the_package_that_was_installed() -> None:
    """Each backend names its package in any spelling; torch has no release."""
    assert release_of("vllm", VERSIONS) == "0.20.2"
    assert release_of("flash_attn", VERSIONS) == "2.8.3"
    assert release_of("flashinfer_fa3", VERSIONS) == "0.5.3"
    assert release_of("torch_sdpa", VERSIONS) is None
    assert release_of("sglang", VERSIONS) is None


def test_a_backend_of_the_paper_s_tables_names_its_own() -> None:
    """A backend without an adapter has no version of a run."""
    assert release_of("vllm_0_9_1", VERSIONS) is None


def test_a_setting_has_the_release_of_its_own_take() -> None:
    """The version is that of the first take with the setting."""
    started = structs.replace(make_started(make_plan()), versions=VERSIONS)
    take = make_take(started, RunFinished(outcome="complete", wall_s=1.0))
    settings = pl.DataFrame(
        {
            "row_id": ["settings:1", "settings:2"],
            "backend": ["vllm", "vllm"],
            "from_ids": [[f"{take.name}.1#7"], ["public/other/1-00000000.1#2"]],
        }
    )
    releases = releases_that_ran(settings, [take])
    assert releases.rows() == [("settings:1", "0.20.2"), ("settings:2", None)]
