"""Table `predictions`: each row has a number with its facts, or a refusal."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import polars as pl
import pytest
from conftest import make_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.precision import ELEMENT_BYTES, Dtype
from nearfree.core.predictors import LAWS, PREDICTORS
from nearfree.core.setting import Module, Setting
from nearfree.derive.granularity.facts import probed_facts
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.predictions import PREDICTIONS, predict
from nearfree.derive.tables.platforms import PLATFORMS, config_id, platform_rows
from nearfree.derive.tables.settings import SETTINGS, setting_row
from nearfree.log.names import Layout

from derive.tables.logs import CONFIG, SHAPE, make_probed, make_take

CONSTANTS = Path(__file__).parents[3] / "results/events/public/constants"
SHEETS = Config(CONFIG).platforms
PROBES = [make_take(make_probed(peak=80.0)), make_take(make_probed(peak=160.0), take=2)]


def facts() -> pl.DataFrame:
    """Return the facts of all datasheets, and of two probes of this machine."""
    known = {event.event_id for probe in PROBES for event in probe.events}
    known |= {config_id(name, sheet) for name, sheet in SHEETS.items()}
    return PLATFORMS.build(PLATFORMS.frame(platform_rows(SHEETS, PROBES, "cpu")), known)


FACTS = facts()


def settings_table(*rows: tuple[str, Setting]) -> pl.DataFrame:
    """Return the table of settings of some platforms."""
    data = [
        {"platform": p, "origin": "measured", **setting_row(s), "baseline": 1,
         "grid": [1, 2, 4], "from_ids": ["e#1"]}
        for p, s in rows
    ]  # fmt: skip
    return SETTINGS.build(SETTINGS.frame(data), {"e#1"})


def predicted(*rows: tuple[str, Setting]) -> pl.DataFrame:
    """Return the predictions for settings, checked against their schema."""
    table = settings_table(*rows)
    known = {*table["row_id"], *FACTS["row_id"]}
    return PREDICTIONS.build(answered(table), known)


def answered(table: pl.DataFrame, epsilons: tuple[float, ...] = (0.2,)) -> pl.DataFrame:
    """Return the predictors' answers on settings, without rules or constants."""
    with TemporaryDirectory() as folder:
        answerer = Answerer(Layout(Path(folder)), Config(CONFIG), offline=True, log_alone=True)
        return predict(table, FACTS, SHEETS, answerer, epsilons)


def dense(dtype: str = "bfloat16", batch: int = 1) -> Setting:
    """Return a dense setting."""
    return make_setting(**SHAPE, dtype=dtype, batch=batch)


@pytest.mark.parametrize("predictor", LAWS)
@pytest.mark.parametrize(
    ("platform", "batch", "n_max"), [("h20", 1, 37.0), ("h20", 4, 9.25), ("h800", 8, 36.9)]
)
def test_the_lookup_table_of_the_paper(
    predictor: str, platform: str, batch: int, n_max: float
) -> None:
    """The dense rows of the paper's deployment table follow from the datasheets."""
    rows = predicted((platform, dense(batch=batch))).row(
        by_predicate=pl.col("predictor") == predictor, named=True
    )
    assert rows["n_max"] == pytest.approx(n_max, abs=0.05)
    assert (rows["basis"], rows["limiting_module"]) == ("datasheet", "dense_ffn")
    assert "paper sec." in rows["evidence"]
    assert rows["refusal"] is None


def test_every_basis_has_its_prediction() -> None:
    """A probed platform has a prediction for each method of beta, from the newest probe."""
    prediction_rows = predicted(("cpu", dense("float32", batch=2)))
    rows = {(r["predictor"], r["basis"]): r["n_max"] for r in prediction_rows.to_dicts()}
    assert rows == {
        (predictor, basis): n_max if predictor in LAWS else None
        for predictor in PREDICTORS
        for basis, n_max in (("probed_stream", 16.0), ("probed_gemm", 32.0))
    }


def test_a_prediction_names_its_setting_and_its_facts() -> None:
    """A prediction's ids are its setting's row and its facts' row."""
    table = settings_table(("h20", dense()))
    answer_row = answered(table)
    (fact,) = FACTS.filter(platform="h20", dtype="bfloat16")["row_id"]
    assert answer_row["from_ids"].to_list() == [[table["row_id"][0], fact]] * len(PREDICTORS)


@pytest.mark.parametrize("element_type", ELEMENT_BYTES)
def test_the_width_of_an_element_counts(element_type: str) -> None:
    """N_max uses the bytes of the setting's dtype, and its phi."""
    rows = predicted(("h20", dense(element_type)))
    rho = SHEETS["h20"].balance(element_type)
    expected = rho * ELEMENT_BYTES[element_type] / 2 if rho else None
    assert rows.filter(pl.col("predictor").is_in(LAWS))["n_max"].unique().to_list() == [expected]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("h20", {"module": "moe_ffn", "experts": 8, "top_k": 2}, "moe_ffn setting lacks routing"),
    ("h20", {"module": "attention", "heads": 1, "kv_heads": 1, "head_dim": 8},
     "attention setting lacks context"),
    ("h20", {"module": "model"}, "model"),
    ("h20", {"dtype": "float32"}, "h20 for float32"),
    ("mars", {}, "no facts of mars"),
    ("cpu", {"dtype": "float16"}, "cpu for float16"),
]  # fmt: skip


@pytest.mark.parametrize(("platform", "changes", "missing"), REFUSED)
def test_what_is_missing_is_named(platform: str, changes: dict[str, Any], missing: str) -> None:
    """A setting without a law or facts is refused by what is missing."""
    rows = predicted((platform, make_setting(**{**SHAPE, "dtype": "bfloat16", **changes})))
    assert set(rows["predictor"]) == set(PREDICTORS)
    assert rows["n_max"].is_null().all()
    laws = rows.filter(pl.col("predictor").is_in(LAWS))
    assert all(missing in refusal for refusal in laws["refusal"])
    assert rows["refusal"].is_not_null().all()


def test_a_cpu_has_no_sms() -> None:
    """The work model refuses a probed CPU, which has no SMs."""
    newest = FACTS.filter(basis="probed_stream", take=2)
    assert newest["sm_count"].drop_nulls().len() == newest.height
    facts = probed_facts(newest, SHEETS)
    assert facts["sm_count"].null_count() == facts.height == newest.height
    rows = predicted(("cpu", dense("bfloat16"))).filter(predictor="work_model")
    assert rows["refusal"].is_not_null().all()


def test_a_law_says_the_same_at_each_tolerance() -> None:
    """Each tolerance has a row, with equal answers of a law."""
    answer_row = answered(settings_table(("h20", dense())), (0.1, 0.2)).filter(
        predictor="principle"
    )
    assert answer_row.select("epsilon", "n_max").rows() == [(0.1, 37.0), (0.2, 37.0)]


def test_what_is_unbounded_has_a_flag_and_no_number() -> None:
    """An unbounded prediction has a flag and no number."""
    shape = {"heads": 1, "kv_heads": 1, "head_dim": 128, "context": 16}
    setting = make_setting(module="attention", backend="flash_attn_2", dtype="bfloat16", **shape)
    rows = predicted(("h20", setting)).filter(predictor="idle_compute")
    assert rows.select("n_max", "unbounded", "refusal").rows() == [(None, True, None)]


def test_calibrated_constants_are_evidence(tmp_path: Path) -> None:
    """The work model's answer is made from the event of its constants."""
    shutil.copytree(CONSTANTS, tmp_path / "events" / "public" / "constants")
    answerer = Answerer(Layout(tmp_path), Config(CONFIG), offline=True, log_alone=True)
    table = settings_table(("h20", dense()), ("h100", dense()))
    rows = predict(table, FACTS, SHEETS, answerer, [0.2]).filter(predictor="work_model")
    assert dict(rows.select("platform", "in_sample").rows()) == {"h20": False, "h100": True}
    for row in rows.to_dicts():
        assert row["n_max"] in (1.0, 2.0, 4.0)
        assert row["from_ids"][-1].startswith("public/constants/")


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*list(SHEETS)[:4], "mars"]),
            st.sampled_from(get_args(Module)),
            st.sampled_from([d for d in get_args(Dtype) if d != "auto"]),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
@settings(deadline=None, max_examples=12)
def test_never_nothing_without_a_refusal(rows: list[tuple[str, str, str, int]]) -> None:
    """Each setting and predictor has a number or a refusal."""
    prediction_rows = predicted(
        *(
            (platform, Setting(module=module, backend="x", dtype=dtype, batch=batch))  # type: ignore[arg-type]
            for platform, module, dtype, batch in rows
        )
    )
    assert prediction_rows.select("platform", "setting_key").n_unique() == len(rows)
    assert prediction_rows.height % len(PREDICTORS) == 0
    answered_ = prediction_rows["n_max"].is_not_null() | prediction_rows["unbounded"]
    assert (answered_ == prediction_rows["refusal"].is_null()).all()
    assert (answered_ == prediction_rows["evidence"].is_not_null()).all()


def test_each_origin_of_a_setting_has_its_own_prediction() -> None:
    """A setting that is measured and published has a prediction over each grid."""
    one = settings_table(("h20", dense()))
    both = pl.concat([one, one.with_columns(pl.lit("published").alias("origin"))])
    assert answered(both).height == 2 * answered(one).height == 2 * len(PREDICTORS)


def test_no_settings_make_an_empty_table() -> None:
    """Without settings the table is empty, with its schema."""
    assert predicted().is_empty()
