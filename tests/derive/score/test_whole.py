"""Published steps of whole models, predicted with constants from other models' rows."""

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.derive.engine_step.form import CONSTANTS, StepConstants
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.score.whole import NO_OTHERS, StepFit, grouped, whole_score
from nearfree.derive.score.whole_steps import TimedStep, timed_steps
from nearfree.public.whole_models import FILE, WholeRow, read_rows

from derive.questions import LOG, ROOT

CONFIG = Config(ROOT / "config")
ANSWERER = Answerer(LOG, CONFIG, offline=True)
ROWS = read_rows(ROOT / "config" / FILE).rows


@cache
def some() -> tuple[TimedStep, ...]:
    """Return every ninth of the project's rows, answered."""
    return tuple(timed_steps(ROWS[::9], CONFIG, ANSWERER))


def row(**changes: object) -> WholeRow:
    """Return a row of Qwen3-32B on an H100."""
    base = WholeRow(line=2, model="Qwen3-32B", config="qwen3_32b", gpu="H100", engine="vllm",
                    batch=8, t_us=8000.0, precision="bf16", kv_dtype="auto", tp=8,
                    engine_version="0.12.0", context=1280, how="median ITL")  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def timed(**changes: object) -> TimedStep:
    """Return an answered row of Qwen3-32B."""
    (steps,) = timed_steps([row(**changes)], CONFIG, ANSWERER)
    return steps


def test_a_row_is_asked_as_it_was_served() -> None:
    """A row is asked with its own spread, batch, context, formats and nearest recorded release."""
    one = timed(engine_version="0.21.0", precision="fp8", dp=1)
    assert one.deployment is not None
    assert one.asked == "vllm==0.20.2"
    assert one.deployment.parallel.tp == 8
    assert (one.deployment.batch, one.deployment.context) == (8, 1280)
    assert one.deployment.main == ("float8", "float8")
    assert one.modules_us > 1000
    assert one.prompts is None


def test_a_head_is_what_the_row_names() -> None:
    """T includes the runs of the named head, else those of the model's own layer."""
    drafted: dict[str, object] = {
        "model": "Llama-3.1-8B", "config": "llama_3_1_8b", "tp": 1, "batch": 1, "positions": 4,
        "draft": "yes",
    }  # fmt: skip
    eagle, third, own = (
        timed(**drafted, head=head) for head in ("eagle_llama_3_1_8b", "eagle3_llama_3_1_8b", "")
    )
    assert eagle.modules_us == third.modules_us == own.modules_us
    taken = [drafter.draft.modules_us[0] for drafter in (eagle, own, third) if drafter.draft]
    assert len(taken) == 3
    assert taken[0] == taken[1] > taken[2] > 0
    assert timed(**drafted | {"positions": 1}, head="eagle_llama_3_1_8b").draft is None
    missing = timed(**drafted, head="no_such_head")
    assert "whole/heads/no_such_head.json" in str(missing.refusal)
    other = timed(**drafted | {"config": "qwen3_32b"}, head="eagle_llama_3_1_8b")
    assert "reads states of 4096 elements" in str(other.refusal)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"engine": "llama.cpp"}, "no kernels of llama.cpp on a GPU are known"),
    ({"config": ""}, "no file is named for Qwen3-32B"),
    ({"gpu": "RTX 3090 (220 W cap)"}, "does not run as its datasheet says"),
    ({"gpu": "H999"}, "unknown platform"),
    ({"precision": "gguf Q4_0"}, "in what formats 'gguf Q4_0' stores and computes is not known"),
    ({"tp": 7}, "7 does not divide"),
    ({"draft": "yes (MTP)", "positions": 4, "how": "mean TPOT", "isl": 1, "osl": 9},
     "how many a step with drafts gave is not published"),
])  # fmt: skip
def test_what_is_not_known_is_refused_by_reason(changes: dict[str, object], reason: str) -> None:
    """Each row that is not answered has its reason."""
    timed_forward = timed(**changes)
    assert timed_forward.deployment is None
    assert reason in (timed_forward.refusal or "")


def test_attention_is_the_kernel_of_the_engine_s_option() -> None:
    """A row's option selects the kernel; without a T(N) of it the row is refused."""
    about: dict[str, object] = {"engine": "sglang", "engine_version": "0.5.9"}
    timed_forward, chosen = (timed(**about, attention_backend=name) for name in ("flashinfer", ""))
    assert timed_forward.deployment is not None
    assert chosen.deployment is not None
    assert timed_forward.deployment.attention.name == "flashinfer_fa2"
    assert chosen.deployment.attention.name == "vllm_fa3"
    assert timed_forward.modules_us != chosen.modules_us
    other = timed(**about, attention_backend="triton")
    assert other.deployment is None
    assert other.refusal == "no T(N) is known of the attention that triton names to sglang"
    served = [(row.model, row.attention_backend) for row in ROWS if row.attention_backend]
    assert served.count(("GLM-4.7-Flash", "triton")) == 9
    assert served.count(("Qwen3.5-397B-A17B", "flashinfer")) == 11
    assert len(served) == 20


def test_models_come_from_a_folder(tmp_path: Path) -> None:
    """With a folder, a row's model is MODEL/config.json in it, and nothing else."""
    folder = tmp_path / "Qwen3-32B"
    folder.mkdir()
    own = ROOT / "config" / "whole" / "models" / "qwen3_32b.json"
    (folder / "config.json").write_bytes(own.read_bytes())
    steps, other = timed_steps([row(), row(model="Other")], CONFIG, ANSWERER, tmp_path)
    assert steps.modules_us == timed().modules_us
    assert "no " in (other.refusal or "")


def test_a_cache_s_default_element_type() -> None:
    """Without a stated format a quantised model's cache has 8 bits on Blackwell, else 16."""
    deployments = {
        (gpu, kv): timed(gpu=gpu, kv_dtype=kv, precision="fp8").deployment
        for gpu in ("B200", "H100")
        for kv in ("unknown", "auto", "fp8")
    }
    formats = {key: item.formats.kv for key, item in deployments.items() if item}
    assert {key for key, kv in formats.items() if kv == "float8"} == {
        ("B200", "unknown"), ("B200", "fp8"), ("H100", "fp8"),
    }  # fmt: skip


def test_a_model_is_answered_without_its_rows() -> None:
    """A row's constants depend on other models' rows only."""
    steps = some()
    fit = StepFit(steps, ANSWERER.bandwidths_gb_s)
    mine = next(row for row in fit.used if row.row.config == "qwen3_235b_a22b_fp8")
    odd = [
        step._replace(row=replace(step.row, t_us=3 * step.row.t_us))
        if step.row.config == "qwen3_235b_a22b_fp8" else step
        for step in steps
    ]  # fmt: skip
    other = StepFit(odd, ANSWERER.bandwidths_gb_s)
    assert other.predicted_us(mine) == fit.predicted_us(mine)
    assert other.of("trtllm") != fit.of("trtllm")


def test_constants_are_found_again() -> None:
    """Rows that follow the form give back its constants."""
    wanted = StepConstants(layer_us=8.0, step_us=500.0, request_us=3.0, sum_wait_us=2.0)
    beta = ANSWERER.bandwidths_gb_s
    made = []
    for row in some():
        if row.deployment and row.row.engine == "trtllm":
            us = row.predicted_us(wanted, beta[row.deployment.platform] or 0.0)
            made.append(row._replace(row=replace(row.row, t_us=us)))
    step_fit = StepFit(made, beta).of("trtllm")
    assert step_fit is not None
    for constant in CONSTANTS:
        assert getattr(step_fit, constant.name) == pytest.approx(
            getattr(wanted, constant.name), rel=0.02
        )


@pytest.mark.slow
def test_scores_count_every_row() -> None:
    """Rows with an answer and rows with a reason make all; bands cover four in five of their own.

    Of rows of few models fewer are within the band that other models gave.
    """
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    score = whole_score(some(), fit)
    assert score.rows.height == len(some()) == score.answered + sum(score.refusals.values())
    (grouped_rows,) = grouped(score, ()).to_dicts()
    assert grouped_rows["settings"] == len(some())
    assert grouped_rows["answered"] == score.answered
    known = score.rows.drop_nulls("predicted_us")
    missed = (known["predicted_us"] / known["t_us"]).log().abs()
    within = missed <= known["engine"].replace_strict(fit.bands, return_dtype=pl.Float64)
    assert 0.7 <= (within.mean() or 0) <= 0.9  # type: ignore[operator]
    assert grouped_rows["interval_coverage"] < within.mean()
    by_model = grouped(score, ("model", "several"))
    assert by_model["settings"].sum() == len(some())
    worst = by_model["t_error_median"].drop_nulls()
    assert worst.to_list() == sorted(worst.to_list(), reverse=True)


def test_a_band_is_of_other_models() -> None:
    """A row that is far off widens the band of others, not its own; without others there is none.

    So it is where an engine's other models have rows of several positions alone.
    """
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    mine = [row for row in fit.used if row.row.config == "qwen3_235b_a22b_fp8"]
    engine = mine[0].row.engine
    far = [
        row._replace(row=replace(row.row, t_us=1000 * row.row.t_us))
        if row.row.config == "qwen3_235b_a22b_fp8" else row
        for row in some()
    ]  # fmt: skip
    other = StepFit(far, ANSWERER.bandwidths_gb_s)
    assert other.bands[engine] > fit.bands[engine]
    score_row = whole_score(mine, fit).rows
    (width,) = score_row["width"].unique()
    band = fit.band(engine, without="qwen3_235b_a22b_fp8")
    assert band is not None
    assert width == pytest.approx(np.exp(2 * band))
    alone = [row for row in some() if row.row.engine != engine] + mine * 6
    other_step = mine[0]._replace(row=replace(mine[0].row, config="other"))
    bare = whole_score([other_step], StepFit(alone, ANSWERER.bandwidths_gb_s)).rows
    assert bare["predicted_us"].null_count() == 0
    assert (bare["covered"].item(), bare["width"].item()) == (None, None)


def test_growth_is_of_one_series() -> None:
    """If T and the prediction grow alike, growth has no error."""
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    base = next(row for row in fit.used if row.row.engine == "trtllm")
    rows = [base._replace(row=replace(base.row, batch=b, t_us=1.0, source="a:b")) for b in (4, 64)]
    predicted_us = [fit.predicted_us(row) for row in rows]
    like = [
        e._replace(row=replace(e.row, t_us=2 * us))
        for e, us in zip(rows, predicted_us, strict=True)
    ]
    score = whole_score(like, fit)
    assert score.rows["t_ratio_error"].to_list() == [None, pytest.approx(0.0)]
    assert score.rows["t_error"].to_list() == pytest.approx([0.5, 0.5])


def test_an_engine_without_other_models_is_refused() -> None:
    """If no other model's rows give constants, the row is refused with the reason."""
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    alone = [
        row for row in some()
        if row.row.engine != "trtllm" or row.row.config in ("qwen3_235b_a22b_fp8", "")
    ]  # fmt: skip
    lone = StepFit(alone, ANSWERER.bandwidths_gb_s)
    mine = [module_stairs for module_stairs in alone if module_stairs.row.engine == "trtllm"]
    score = whole_score(mine, lone)
    assert score.refusals == {NO_OTHERS: len(mine)}
    assert StepFit(mine, ANSWERER.bandwidths_gb_s).bands == {}
    assert fit.bands.keys() == {"sglang", "trtllm", "vllm"}
    assert isinstance(score.rows, pl.DataFrame)
