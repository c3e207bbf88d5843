"""Curve files: the predictors' T(N) of all that a platform's studies measure."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from msgspec import structs
from nearfree.config.files import Config
from nearfree.config.model_studies import uses
from nearfree.config.plans import Plans
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.curve_files import curve_file
from nearfree.errors import ConfigError
from nearfree.hardware.simulated import CurveFile
from nearfree.log.names import Layout

from derive.questions import LOG, ask
from derive.tables.logs import CONFIG

STUDIES = """
ffn: {module: dense_ffn, backend: torch, platforms: [h20, cpu], batch: [1, 4],
      shape: {d_model: 4096, d_ff: 9216}, positions: [1, 8, 64], protocol: {name: adaptive}}
wider: {module: dense_ffn, backend: torch, platforms: [h20], batch: [1],
        shape: {d_model: 4096, d_ff: 9216}, positions: [1, 16], protocol: {name: paper}}
experts: {module: moe_ffn, backend: vllm, platforms: [h20], routing: [balanced], top_k: [8],
          shape: {d_model: 2048, d_ff: 768, experts: 128}, positions: [16, 32, 256],
          protocol: {name: adaptive}}
attention: {module: attention, backend: flash_attn, api: kvcache, platforms: [h20],
            context: [4096], shape: {heads: 32, kv_heads: 8, head_dim: 128},
            positions: [1, 16, 128], protocol: {name: adaptive}}
sdpa: {module: attention, backend: torch_sdpa, platforms: [h20], context: [4096],
       shape: {heads: 32, kv_heads: 8, head_dim: 128}, positions: [1], protocol: {name: adaptive}}
dense: {module: model, model: qwen3_8b, backend: flash_attn, platforms: [h20], context: [4096],
        positions: [1, 8, 64], protocol: {name: paper}}
sparse: {module: model, model: qwen3_30b_a3b, backend: flash_attn, moe: vllm, platforms: [h20],
         context: [4096], routing: [skewed, router], positions: [1, 8], protocol: {name: paper}}
unruled: {module: model, model: qwen3_8b, backend: torch_sdpa, platforms: [h20], context: [4096],
          positions: [1, 8], protocol: {name: paper}}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Return the shipped config with other studies."""
    folder = tmp_path_factory.mktemp("curves") / "config"
    shutil.copytree(CONFIG, folder, ignore=shutil.ignore_patterns("takes.yaml", "schema"))
    (folder / "studies.yaml").write_text(STUDIES)
    return Config(folder)


@pytest.fixture(scope="module")
def answerer(config: Config) -> Answerer:
    """Return the predictors with this repository's rules and constants."""
    return Answerer(LOG, config, offline=True, log_alone=True)


@pytest.fixture(scope="module")
def file(config: Config, answerer: Answerer) -> CurveFile:
    """Return the curve file of h20."""
    return curve_file(config, "h20", answerer)


def test_every_setting_is_there_once_with_all_its_n(config: Config, file: CurveFile) -> None:
    """Each setting of a study is a curve, a model or a refusal, at all its N."""
    plans = Plans(config, "h20")
    grids: dict[object, set[int]] = {}
    for sweep in (sweep for stream in plans.measured for sweep in plans.sweeps(stream)):
        setting = structs.replace(sweep.setting, dtype="bfloat16")
        grids.setdefault(setting, set()).update(sweep.positions)
    settings_ = [entry.setting for entry in (*file.curves, *file.forwards, *file.refused)]
    assert len(settings_) == len(set(settings_))
    assert set(settings_) >= set(grids)
    for curve in file.curves:
        assert set(curve.n) >= grids.get(curve.setting, set())
    shared = next(
        c for c in file.curves if c.setting.module == "dense_ffn" and c.setting.batch == 1
    )
    assert shared.n == (1, 8, 16, 64)


def test_curves_are_what_the_predictors_answer(file: CurveFile, answerer: Answerer) -> None:
    """A curve's ratios are the work model's for the same question and release."""
    for curve in file.curves:
        version = None if curve.release is None else curve.release.partition("==")[2]
        question = structs.asdict(curve.setting) | {
            "platform": "h20", "backend_version": version, "baseline": curve.n[0],
        }  # fmt: skip
        question_rows = ask(question).with_columns(pl.Series("grid", [list(curve.n)]))
        ratios = answerer.ratios(question_rows).sort("n")["ratio"].to_list()
        relative = [us / curve.latency_us[0] for us in curve.latency_us]
        assert relative == pytest.approx(ratios, rel=1e-4)


def test_blocks_are_those_of_the_rules(file: CurveFile) -> None:
    """Rows of blocks or tiles are those of the release's rule."""
    rows = {
        curve.setting.module: curve
        for curve in file.curves
        if curve.setting.module in {"moe_ffn", "attention"} and curve.n[-1] > 64
    }
    assert rows["moe_ffn"].release == f"vllm=={file.releases['vllm']}"
    assert set(rows["moe_ffn"].block_rows) <= {16, 32, 64, 128}
    assert rows["moe_ffn"].block_rows[0] == 16
    assert rows["attention"].release == "flash-attn==2.8.3"
    assert set(rows["attention"].block_rows) <= {64, 128}
    assert all(not c.block_rows for c in file.curves if c.setting.backend == "torch")


def test_models_are_made_of_their_modules(config: Config, file: CurveFile) -> None:
    """A model's parts are the modules that its forward runs, each with a curve of its own."""
    curves = {curve.setting for curve in file.curves}
    assert [forward.setting.model for forward in file.forwards] == ["qwen3_8b", "qwen3_30b_a3b"]
    for forward in file.forwards:
        model = config.model(forward.setting.model or "")
        expected = [(u.role, u.count, u.setting) for u in uses(forward.setting, model)]
        assert [(p.role, p.count, p.setting) for p in forward.parts] == expected
        assert {part.setting for part in forward.parts} <= curves


def test_what_is_refused_says_why(file: CurveFile) -> None:
    """A module without rules, a model with one, and a model's own router are refused."""
    refusals = {(r.setting.module, r.setting.backend, r.setting.routing): r.refusal
            for r in file.refused}  # fmt: skip
    assert refusals["attention", "torch_sdpa", None] == (
        "no rules of the attention kernels of torch_sdpa are read"
    )
    assert refusals["model", "torch_sdpa", None].startswith("attention: no rules")
    assert "router" in refusals["model", "flash_attn", "router"]


def test_the_same_bytes_every_time(config: Config, answerer: Answerer, file: CurveFile) -> None:
    """A curve file depends on config, rules, constants and code only."""
    assert curve_file(config, "h20", answerer) == file
    assert file.code == curve_file(config, "a800", answerer).code


def test_constants_are_named_by_their_events(file: CurveFile) -> None:
    """A file names the events of its constants."""
    assert all("#" in event for event in file.calibrations.values())
    assert {calibration.partition(" by ")[0] for calibration in file.calibrations} == {
        "R0: gemm", "R0: moe_triton", "attention_cached on a100, h100",
    }  # fmt: skip


def test_a_platform_without_its_datasheet_is_refused(config: Config, answerer: Answerer) -> None:
    """A platform without facts is refused by the missing ones."""
    with pytest.raises(ConfigError, match=r"cpu cannot be simulated.*sm_count"):
        curve_file(config, "cpu", answerer)


def test_without_constants_all_is_refused(config: Config, tmp_path: Path) -> None:
    """Without constants the file has no curve, and names the constants."""
    empty = Answerer(Layout(tmp_path), config, offline=True, log_alone=True)
    file = curve_file(config, "h20", empty)
    assert (file.curves, file.forwards) == ((), ())
    assert any("no constants of gemm" in refusal.refusal for refusal in file.refused)
