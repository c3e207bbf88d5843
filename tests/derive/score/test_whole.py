"""Published steps of whole models, answered by constants that other models' rows gave."""

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
    """Return every ninth row of the project's, timed."""
    return tuple(timed_steps(ROWS[::9], CONFIG, ANSWERER))


def row(**changes: object) -> WholeRow:
    """Return a row of Qwen3-32B on an H100."""
    base = WholeRow(line=2, model="Qwen3-32B", config="qwen3_32b", gpu="H100", engine="vllm",
                    batch=8, t_us=8000.0, precision="bf16", kv_dtype="auto", tp=8,
                    engine_version="0.12.0", context=1280, how="median ITL")  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def timed(**changes: object) -> TimedStep:
    """Return a row of Qwen3-32B as it is answered."""
    (found,) = timed_steps([row(**changes)], CONFIG, ANSWERER)
    return found


def test_a_row_is_asked_as_it_was_served() -> None:
    """Its spread, batch, context and formats; the release on record that is nearest to its own."""
    one = timed(engine_version="0.21.0", precision="fp8", dp=1)
    assert one.deployment is not None
    assert one.asked == "vllm==0.20.2"
    assert one.deployment.parallel.tp == 8
    assert (one.deployment.batch, one.deployment.context) == (8, 1280)
    assert one.deployment.main == ("float8", "float8")
    assert one.modules_us > 1000
    assert one.prompts is None


def test_a_head_is_what_the_row_names() -> None:
    """T holds the runs of that head where it is named, of the model's own layer where none is."""
    drafted: dict[str, object] = {
        "model": "Llama-3.1-8B", "config": "llama_3_1_8b", "tp": 1, "batch": 1, "positions": 4,
        "draft": "yes",
    }  # fmt: skip
    eagle, third, own = (
        timed(**drafted, head=head) for head in ("eagle_llama_3_1_8b", "eagle3_llama_3_1_8b", "")
    )
    assert eagle.modules_us == third.modules_us == own.modules_us
    taken = [each.draft.modules_us[0] for each in (eagle, own, third) if each.draft]
    assert len(taken) == 3
    assert taken[0] == taken[1] > taken[2] > 0
    assert timed(**drafted | {"positions": 1}, head="eagle_llama_3_1_8b").draft is None
    missing = timed(**drafted, head="no_such_head")
    assert "whole/heads/no_such_head.json" in str(missing.refusal)
    other = timed(**drafted | {"config": "qwen3_32b"}, head="eagle_llama_3_1_8b")
    assert "reads states of 4096 elements" in str(other.refusal)


@pytest.mark.parametrize(("changes", "said"), [
    ({"engine": "llama.cpp"}, "no kernels of llama.cpp on a GPU are known"),
    ({"config": ""}, "no file is named for Qwen3-32B"),
    ({"gpu": "RTX 3090 (220 W cap)"}, "does not run as its datasheet says"),
    ({"gpu": "H999"}, "unknown platform"),
    ({"precision": "gguf Q4_0"}, "in what formats 'gguf Q4_0' stores and computes is not known"),
    ({"tp": 7}, "7 does not divide"),
    ({"draft": "yes (MTP)", "positions": 4, "how": "mean TPOT", "isl": 1, "osl": 9},
     "how many a step with drafts gave is not published"),
])  # fmt: skip
def test_what_is_not_known_is_refused_by_reason(changes: dict[str, object], said: str) -> None:
    """No row is dropped in silence, and none answered for another setup."""
    found = timed(**changes)
    assert found.deployment is None
    assert said in (found.refusal or "")


def test_attention_is_what_the_engine_was_told() -> None:
    """A kernel that a row's option names is asked; one whose T(N) nobody knows refuses the row."""
    about: dict[str, object] = {"engine": "sglang", "engine_version": "0.5.9"}
    told, chosen = (timed(**about, attention_backend=name) for name in ("flashinfer", ""))
    assert told.deployment is not None
    assert chosen.deployment is not None
    assert told.deployment.attention.name == "flashinfer_fa2"
    assert chosen.deployment.attention.name == "vllm_fa3"
    assert told.modules_us != chosen.modules_us
    other = timed(**about, attention_backend="triton")
    assert other.deployment is None
    assert other.refusal == "no T(N) is known of the attention that triton names to sglang"
    served = [(row.model, row.attention_backend) for row in ROWS if row.attention_backend]
    assert served.count(("GLM-4.7-Flash", "triton")) == 9
    assert served.count(("Qwen3.5-397B-A17B", "flashinfer")) == 11
    assert len(served) == 20


def test_models_come_from_a_folder(tmp_path: Path) -> None:
    """With a folder a row's model is MODEL/config.json there, and nothing else."""
    folder = tmp_path / "Qwen3-32B"
    folder.mkdir()
    own = ROOT / "config" / "whole" / "models" / "qwen3_32b.json"
    (folder / "config.json").write_bytes(own.read_bytes())
    found, other = timed_steps([row(), row(model="Other")], CONFIG, ANSWERER, tmp_path)
    assert found.modules_us == timed().modules_us
    assert "no " in (other.refusal or "")


def test_caches_that_nobody_names() -> None:
    """On Blackwell a quantised model's cache has 8 bits where its source does not say; else 16."""
    said = {
        (gpu, kv): timed(gpu=gpu, kv_dtype=kv, precision="fp8").deployment
        for gpu in ("B200", "H100")
        for kv in ("unknown", "auto", "fp8")
    }
    formats = {key: each.formats.kv for key, each in said.items() if each}
    assert {key for key, kv in formats.items() if kv == "float8"} == {
        ("B200", "unknown"), ("B200", "fp8"), ("H100", "fp8"),
    }  # fmt: skip


def test_a_model_is_answered_without_its_rows() -> None:
    """Constants of a row change with other models' rows, and never with its own model's."""
    steps = some()
    fit = StepFit(steps, ANSWERER.bandwidths_gb_s)
    mine = next(each for each in fit.used if each.row.config == "qwen3_235b_a22b_fp8")
    odd = [
        each._replace(row=replace(each.row, t_us=3 * each.row.t_us))
        if each.row.config == "qwen3_235b_a22b_fp8" else each
        for each in steps
    ]  # fmt: skip
    other = StepFit(odd, ANSWERER.bandwidths_gb_s)
    assert other.predicted_us(mine) == fit.predicted_us(mine)
    assert other.of("trtllm") != fit.of("trtllm")


def test_constants_are_found_again() -> None:
    """Rows that follow the form by some constants give these back, whatever model they are of."""
    wanted = StepConstants(layer_us=8.0, step_us=500.0, request_us=3.0)
    beta = ANSWERER.bandwidths_gb_s
    made = []
    for each in some():
        if each.deployment and each.row.engine == "trtllm":
            us = each.predicted_us(wanted, beta[each.deployment.platform] or 0.0)
            made.append(each._replace(row=replace(each.row, t_us=us)))
    found = StepFit(made, beta).of("trtllm")
    assert found is not None
    for each in CONSTANTS:
        assert getattr(found, each.name) == pytest.approx(getattr(wanted, each.name), rel=0.02)


@pytest.mark.slow
def test_scores_count_every_row() -> None:
    """Rows with an answer and rows with a reason make all; bands cover four in five of their own.

    Of rows of few models fewer are within the band that other models gave.
    """
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    score = whole_score(some(), fit)
    assert score.rows.height == len(some()) == score.answered + sum(score.refusals.values())
    (whole,) = grouped(score, ()).to_dicts()
    assert whole["settings"] == len(some())
    assert whole["answered"] == score.answered
    known = score.rows.drop_nulls("predicted_us")
    missed = (known["predicted_us"] / known["t_us"]).log().abs()
    within = missed <= known["engine"].replace_strict(fit.bands, return_dtype=pl.Float64)
    assert 0.7 <= (within.mean() or 0) <= 0.9  # type: ignore[operator]
    assert whole["interval_coverage"] < within.mean()
    by_model = grouped(score, ("model", "several"))
    assert by_model["settings"].sum() == len(some())
    worst = by_model["t_error_median"].drop_nulls()
    assert worst.to_list() == sorted(worst.to_list(), reverse=True)


def test_a_band_is_of_other_models() -> None:
    """A row that is far off widens the band of others, not its own; without others there is none.

    So it is where an engine's other models have rows of several positions alone.
    """
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    mine = [each for each in fit.used if each.row.config == "qwen3_235b_a22b_fp8"]
    engine = mine[0].row.engine
    far = [
        each._replace(row=replace(each.row, t_us=1000 * each.row.t_us))
        if each.row.config == "qwen3_235b_a22b_fp8" else each
        for each in some()
    ]  # fmt: skip
    other = StepFit(far, ANSWERER.bandwidths_gb_s)
    assert other.bands[engine] > fit.bands[engine]
    told = whole_score(mine, fit).rows
    (width,) = told["width"].unique()
    band = fit.band(engine, without="qwen3_235b_a22b_fp8")
    assert band is not None
    assert width == pytest.approx(np.exp(2 * band))
    alone = [each for each in some() if each.row.engine != engine] + mine * 6
    asked = mine[0]._replace(row=replace(mine[0].row, config="other"))
    bare = whole_score([asked], StepFit(alone, ANSWERER.bandwidths_gb_s)).rows
    assert bare["predicted_us"].null_count() == 0
    assert (bare["covered"].item(), bare["width"].item()) == (None, None)


def test_growth_is_of_one_series() -> None:
    """Where T and the prediction grow alike from the fewest rows on, growth has no error."""
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    base = next(each for each in fit.used if each.row.engine == "trtllm")
    rows = [base._replace(row=replace(base.row, batch=b, t_us=1.0, source="a:b")) for b in (4, 64)]
    said = [fit.predicted_us(each) for each in rows]
    like = [e._replace(row=replace(e.row, t_us=2 * us)) for e, us in zip(rows, said, strict=True)]
    score = whole_score(like, fit)
    assert score.growth["t_ratio_error"].to_list() == pytest.approx([0.0])
    assert score.rows["t_error"].to_list() == pytest.approx([0.5, 0.5])


def test_an_engine_without_other_models_is_refused() -> None:
    """Where no other model's rows give constants, nothing is said, and why."""
    fit = StepFit(some(), ANSWERER.bandwidths_gb_s)
    alone = [
        each for each in some()
        if each.row.engine != "trtllm" or each.row.config in ("qwen3_235b_a22b_fp8", "")
    ]  # fmt: skip
    lone = StepFit(alone, ANSWERER.bandwidths_gb_s)
    mine = [each for each in alone if each.row.engine == "trtllm"]
    score = whole_score(mine, lone)
    assert score.refusals == {NO_OTHERS: len(mine)}
    assert StepFit(mine, ANSWERER.bandwidths_gb_s).bands == {}
    assert fit.bands.keys() == {"sglang", "trtllm", "vllm"}
    assert isinstance(score.rows, pl.DataFrame)
