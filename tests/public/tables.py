"""Made-up latency tables in AIConfigurator's form, and wheels that hold them."""

import io
from typing import Any

import polars as pl
from sources.fetching.indexserver import Entry, Server, make_wheel

ROOT = "aiconfigurator_core/systems/"
SYSTEM = """# SPDX-FileCopyrightText: Copyright (c) 2030 Somebody. All rights reserved.

data_dir: data/x
gpu:
  mem_bw: {bandwidth} # of our own making
  bfloat16_tc_flops: 989000000000000 # 989TFLOPS
  fp8_tc_flops: 1978000000000000
node:
  num_gpus_per_node: 8
"""
METADATA = (
    "Metadata-Version: 2.4\nName: aiconfigurator-core\nLicense-Expression: Apache-2.0\n\ntext\n"
)
_HEAD: dict[str, Any] = {
    "framework": "VLLM",
    "version": "0.24.0",
    "device": "NVIDIA H100 80GB HBM3",
    "op_name": "any",
}
_OF: dict[str, dict[str, Any]] = {
    "gemm_perf": {"kernel_source": "cublas", "gemm_dtype": "bfloat16", "n": 8192, "k": 4096},
    "moe_perf": {
        "kernel_source": "triton",
        "moe_dtype": "bfloat16",
        "hidden_size": 4096,
        "inter_size": 2048,
        "topk": 8,
        "num_experts": 64,
        "moe_tp_size": 2,
        "moe_ep_size": 1,
        "distribution": "balanced",
    },
    "context_attention_perf": {
        "kernel_source": "fa3",
        "batch_size": 1,
        "num_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "window_size": 0,
        "beam_width": 1,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
    },
}
_OF["generation_attention_perf"] = _OF["context_attention_perf"]


def rows(table: str, *points: tuple[int, float], **changes: Any) -> list[dict[str, Any]]:
    """Return the rows of one curve: (N, ms), or (L, ms) in a generation table."""
    fixed = {**_HEAD, **_OF[table], **changes}
    if table == "gemm_perf":
        return [{**fixed, "m": n, "latency": ms} for n, ms in points]
    if table == "moe_perf":
        return [{**fixed, "num_tokens": n, "latency": ms} for n, ms in points]
    new = table.startswith("context")
    return [
        {**fixed, "isl": n if new else 1, "step": 0 if new else n, "latency": ms, **changes}
        for n, ms in points
    ]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    """Return rows as a Parquet file."""
    file = io.BytesIO()
    pl.DataFrame(rows).write_parquet(file)
    return file.getvalue()


def member(table: str, system: str = "h100_sxm") -> str:
    """Return the path of a table inside a wheel."""
    family = table.removesuffix("_perf").rpartition("_")[2]
    return f"{ROOT}data/{system}/{family}/vllm/0.24.0/{table}.parquet"


def put_release(
    server: Server,
    tables: dict[str, bytes],
    *,
    systems: tuple[str, ...] = ("h100_sxm",),
    metadata: str = METADATA,
    bandwidth: int = 3_350_000_000_000,
) -> None:
    """Put a wheel of tables and system files on the index."""
    files = {f"{ROOT}{name}.yaml": SYSTEM.format(bandwidth=bandwidth) for name in systems}
    files["aiconfigurator_core-0.12.0.dist-info/METADATA"] = metadata
    entries = [Entry(path, text.encode()) for path, text in files.items()]
    entries += [Entry(path, raw) for path, raw in tables.items()]
    server.put("aiconfigurator_core-0.12.0-py3-none-any.whl", make_wheel(*entries))


GEMM = rows("gemm_perf", (1, 0.03), (2, 0.031), (64, 0.05))
MOE = rows("moe_perf", (8, 0.6), (16, 0.61), (512, 0.9))
CONTEXT = rows("context_attention_perf", (64, 0.02), (4096, 0.7))
GENERATION = rows("generation_attention_perf", (127, 0.01), (8191, 0.03))
WHOLE = {
    member("gemm_perf"): parquet(GEMM),
    member("moe_perf"): parquet(MOE),
    member("context_attention_perf"): parquet(CONTEXT),
    member("generation_attention_perf"): parquet(GENERATION),
}
"""A release with one curve a table."""
