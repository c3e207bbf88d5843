"""Predictors on 100,000 settings that need no rule, and on settings that need releases' rules.

CPU times are also given as ratios to a plain numpy pass over the same number of grids. A rule is
evaluated once per distinct layer or call. Nearly all of the 100,000 MoE layers are distinct, over
eight releases and all tuned files of six GPUs.
"""

import random
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from nearfree.config.files import Config
from nearfree.core.predictors import PREDICTORS
from nearfree.core.setting import Setting
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.tables.settings import setting_row
from nearfree.log.names import Layout

ROOT = Path(__file__).parents[1]
SETTINGS, RULE_SETTINGS = 100_000, 300
SEED = 1
PLATFORMS = ("a100", "h20", "h100", "h200", "b200", "l40s")
DTYPES = ("bfloat16", "float8")
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
WIDTHS = tuple(1024 * step for step in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16))
MODELS = (
    *((8, 2, 4096, 14336), (16, 1, 5120, 8192), (64, 6, 2048, 1408), (128, 8, 2048, 768)),
    *((128, 8, 4096, 1536), (160, 6, 5120, 1536), (256, 8, 7168, 2048), (384, 8, 7168, 2048)),
    (512, 10, 2048, 512),
)
"""E, k, d_model and d_ff; each layer is sharded over 1, 2 and 4 GPUs."""
RELEASES = (("vllm", "0.14.0"), ("vllm", "0.24.0"), ("sglang", "0.5.10"), ("sglang", "0.5.14"))
ENGINES, KERNELS = ("vllm", "sglang", "trtllm"), ("flash_attn_2", "flashinfer")
EVERY_RELEASE = (
    *RELEASES,
    *(("vllm", version) for version in ("0.9.1", "0.19.0", "0.20.2", "0.33.0")),
)
EXPERTS = (8, 16, 32, 60, 64, 72, 96, 128, 160, 192, 256, 384, 512)
TOP_K = (1, 2, 4, 6, 8)
INNER = (256, 384, 512, 640, 768, 1024, 1408, 1536, 2048, 2560, 3072, 4096, 7168, 14336)
CONTEXTS = (0, 512, 1024, 4096, 16384, 65536)
GRID = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)


def products() -> list[dict[str, Any]]:
    """Return the fields of matrix products and Dense FFNs."""
    names = ("module", "backend", "d_model", "d_ff")
    combinations = product(("gemm", "dense_ffn"), ("vllm",), WIDTHS, WIDTHS)
    return [dict(zip(names, values, strict=True)) for values in combinations]


def layers() -> list[dict[str, Any]]:
    """Return the fields of MoE layers of four releases."""
    return [
        {"module": "moe_ffn", "backend": backend, "backend_version": version, "experts": experts,
         "top_k": top_k, "d_model": d_model, "d_ff": d_ff // cut, "routing": routing}
        for (experts, top_k, d_model, d_ff), cut, (backend, version), routing in product(
            MODELS, (1, 2, 4), RELEASES, ("balanced", "skewed"))
    ]  # fmt: skip


def distinct_layers() -> list[dict[str, Any]]:
    """Return the fields of MoE layers of every release, in many sizes, some with tuned files."""
    return [
        {"module": "moe_ffn", "backend": backend, "backend_version": version, "experts": experts,
         "top_k": top_k, "d_model": d_model, "d_ff": d_ff, "routing": "balanced"}
        for (backend, version), experts, top_k, d_model, d_ff in product(
            EVERY_RELEASE, EXPERTS, TOP_K, (2048, 4096, 7168), INNER)
    ]  # fmt: skip


def calls(backends: Sequence[str]) -> list[dict[str, Any]]:
    """Return the fields of attention calls, with and without a cache."""
    return [
        {"module": "attention", "backend": backend, "heads": heads, "kv_heads": heads // group,
         "head_dim": 128, "context": context}
        for backend, context, heads, group in product(
            backends, CONTEXTS, (8, 16, 32, 64), (1, 2, 4, 8))
    ]  # fmt: skip


def draw_questions(count: int, shapes: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return distinct questions, sampled from shapes, batches, platforms and dtypes."""
    draw = random.Random(SEED)  # noqa: S311  # which settings, not a secret
    rows: list[dict[str, Any]] = []
    combinations = list(product(shapes, BATCHES, PLATFORMS, DTYPES))
    for fields, batch, platform, dtype in draw.sample(combinations, count):
        version = fields.get("backend_version")
        setting_fields = {
            name: value for name, value in fields.items() if name != "backend_version"
        }
        setting = Setting(**setting_fields, batch=batch, dtype=dtype)
        context = {"platform": platform, "backend_version": version, "kernel": None}
        rows.append({"asked": len(rows), **setting_row(setting), **context, **grid(setting)})
    types = {
        **{name: column.dtype for name, column in SETTING_COLUMNS.items()},
        **dict.fromkeys(("backend_version", "kernel"), pl.String),
    }
    return pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)


def grid(setting: Setting) -> dict[str, Any]:
    """Return the baseline of a setting, and its grid of N from the baseline up."""
    active = setting.batch * (setting.top_k or 1)
    baseline = -(-(setting.experts or 1) // active) if setting.routing == "balanced" else 1
    return {"baseline": baseline, "grid": [baseline, *(n for n in GRID if n > baseline)]}


def plain_pass_s(questions: pl.DataFrame) -> float:
    """Return the seconds of a numpy roofline over the same number of settings and N."""
    batch = questions["batch"].cast(pl.Float64).to_numpy()[:, None]
    n = np.array(GRID, dtype=np.float64)[None, :]
    start_s = time.process_time()
    ratio = np.maximum(1.0, batch * n / 295.0)
    np.max(np.where(ratio <= 1.2, n, 0.0), axis=1)
    return time.process_time() - start_s


def answer_s(questions: pl.DataFrame, predictors: Sequence[str]) -> float:
    """Return the seconds of predictors with a new answerer, which has nothing cached."""
    answerer = Answerer(Layout(ROOT / "results"), Config(ROOT / "config"), offline=True)
    start_s = time.process_time()
    answers = answerer.answers(questions, [0.2], predictors)
    if answers.height != questions.height * len(predictors):
        raise SystemExit(f"{questions.height} questions have {answers.height} answers")
    return time.process_time() - start_s


def main() -> None:
    """Print the seconds of each predictor on each part, and the ratio to a plain numpy pass."""
    parts = {
        "products, engines' attention": draw_questions(SETTINGS, [*products(), *calls(ENGINES)]),
        "MoE layers": draw_questions(RULE_SETTINGS, layers()),
        "MoE layers, nearly all distinct": draw_questions(SETTINGS, distinct_layers()),
        "attention kernels' calls": draw_questions(RULE_SETTINGS, calls(KERNELS)),
    }
    answer_s(parts["MoE layers"][:1], PREDICTORS)  # so that imports are not timed
    for part, questions in parts.items():
        plain_s = min(plain_pass_s(questions) for _ in range(5))
        print(f"{part}: {questions.height:,} settings; plain numpy pass {plain_s * 1e3:.3f} ms")
        for name in PREDICTORS:
            elapsed_s = answer_s(questions, [name])
            print(f"  {name:22}{elapsed_s:8.3f} s {elapsed_s / plain_s:10.0f} x plain")


if __name__ == "__main__":
    main()
