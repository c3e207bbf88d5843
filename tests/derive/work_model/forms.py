"""Arrays of features, constants and questions for the forms of T(N)."""

from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.work_model.collective import COLLECTIVE_FAMILIES
from nearfree.derive.work_model.families import FAMILIES, OF_KERNELS
from nearfree.derive.work_model.family import Family
from nearfree.derive.work_model.prepare import ROWS_AT_ONCE, Prepared, prepare

from derive.questions import ATTENTION, DENSE, FACTS, MOE, RESOLVER, ask

H100 = {"phi": 989e6, "beta": 3.35e6, "sms": 132.0, "element_bytes": 2.0,
        "weight_bytes": 2.0, "cache_bytes": 2.0, "result_bytes": 2.0,
        "pass_bytes": 0.0, "tile_m": float("nan")}  # fmt: skip
"""phi in FLOP/us and beta in bytes/us, as on a datasheet."""
GEMM = {"module": "gemm", "backend": "vllm", "d_model": 8192, "d_ff": 8192}
LIBRARY = {**MOE, "backend": "trtllm"}
PREFILL = {**ATTENTION, "context": 0, "backend": "vllm", "kernel": "flash_attn"}
MLA = {
    "module": "mla", "backend": "sglang", "kernel": "flash_attention", "backend_version": "0.5.14",
    "context": 4096, "heads": 16, "latent": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128,
    "api": "absorbed",
}  # fmt: skip
SPARSE_LAYER = {
    "module": "attention_layer", "backend": "sglang", "backend_version": "0.5.14",
    "context": 8192, "heads": 16, "d_model": 7168, "latent": 512, "rope_dim": 64,
    "selected": 2048, "index_heads": 64, "index_dim": 128, "projected": 44_000_000,
}  # fmt: skip
INDEXER = {
    "module": "indexer", "backend": "sglang", "dtype": "bfloat16", "context": 8192, "heads": 64,
    "head_dim": 128, "api": "logits",
}  # fmt: skip
STATES = {
    "module": "delta_net", "backend": "vllm", "dtype": "bfloat16", "kv_dtype": "float32",
    "heads": 48, "kv_heads": 16, "head_dim": 128, "value_dim": 128, "conv": 4,
}  # fmt: skip
MIXED_STREAMS = {
    "module": "stream_mixing", "backend": "vllm", "dtype": "bfloat16", "d_model": 7168,
    "streams": 4,
}  # fmt: skip
MIXER = {
    "module": "mamba2", "backend": "vllm", "dtype": "bfloat16", "kv_dtype": "float32",
    "heads": 64, "kv_heads": 8, "head_dim": 128, "value_dim": 64, "conv": 4,
}  # fmt: skip
CONVOLUTION = {
    "module": "short_conv", "backend": "vllm", "dtype": "bfloat16", "d_model": 2048, "conv": 3,
}  # fmt: skip
REDUCE = {"module": "collective", "operation": "all_reduce", "gpus": 8, "d_model": 8192}
EXCHANGE = {
    **REDUCE, "operation": "dispatch", "experts": 256, "top_k": 8, "backend_version": "0.24.0",
}  # fmt: skip
OF_FAMILY: dict[str, dict[str, Any]] = {
    "gemm": GEMM,
    "moe_triton": {**MOE, "backend_version": "0.14.0"},
    "moe_library": LIBRARY,
    "attention_prefill": PREFILL,
    "attention_cached": ATTENTION,
    "mla_prefill": {**MLA, "context": 0, "api": "naive"},
    "mla_cached": MLA,
    "mla_selected": {**MLA, "selected": 2048},
    "layer_attention": SPARSE_LAYER,
    "decode_layer": {**SPARSE_LAYER, "span": 4, "api": "decode"},
    "indexer_logits": INDEXER,
    "indexer_select": {**INDEXER, "api": "select"},
    "delta_net": STATES,
    "stream_mixing": MIXED_STREAMS,
    "mamba2": MIXER,
    "short_conv": CONVOLUTION,
    "exchange_low_latency": {**EXCHANGE, "backend": "sglang", "kernel": "deepep_ll"},
    "exchange_normal": {**EXCHANGE, "backend": "sglang", "kernel": "deepep_normal_24_sms"},
    "exchange_low_latency_vllm": {**EXCHANGE, "backend": "vllm", "kernel": "deepep_ll"},
    "exchange_normal_vllm": {**EXCHANGE, "backend": "vllm", "kernel": "deepep_ht_20_sms"},
    "exchange_low_latency_trtllm": {
        **EXCHANGE, "backend": "trtllm", "kernel": "trtllm_deepep_ll",
    },
    "exchange_normal_trtllm": {**EXCHANGE, "backend": "trtllm", "kernel": "trtllm_deepep_ht"},
    "collective_graph": {**REDUCE, "backend": "vllm", "kernel": "vLLM_custom_graph"},
    "collective_eager": {
        **REDUCE, "backend": "sglang", "kernel": "SGLang_CustomAllReduce_eager",
        "backend_version": "0.5.14",
    },
    "collective_nccl": {**REDUCE, "backend": "nccl", "kernel": "NCCL"},
    "collective_trtllm": {**REDUCE, "backend": "trtllm", "kernel": "TRTLLM"},
    "collective_pcie": {**REDUCE, "backend": "nccl", "kernel": "NCCL", "platform": "l40s"},
}  # fmt: skip
"""A question of each family, whose rules are in this repository's log."""
STATED = [name for name, family in FAMILIES.items() if family.stated]
"""Those whose constants are stated, and not calibrated."""
COMPUTED = [name for name in FAMILIES if name not in (*COLLECTIVE_FAMILIES, *OF_KERNELS, *STATED)]
"""The families of what one GPU computes, those with shared constants."""
MIXED = [*OF_FAMILY.values(), DENSE]
SHARED = [
    *(item for name, item in OF_FAMILY.items() if name not in (*OF_KERNELS, *STATED)), DENSE,
]  # fmt: skip
"""Those that shared constants answer, whatever is known of kernels."""


def arrays(n: list[int], **facts: float) -> dict[str, Any]:
    """Return features of one row: N is [1, grid], each fact [1, 1], with b N; loads are even."""
    features: dict[str, Any] = {name: np.array([[float(value)]]) for name, value in facts.items()}
    grid = np.array([n], dtype=np.float64)
    tokens = grid * features.get("batch", np.ones((1, 1)))
    features["spread"] = np.array([[None]], dtype=object)
    return {**features, "n": grid, "grid": grid, "tokens": tokens}


def start(family: Family, **changes: float) -> dict[str, float]:
    """Return the constants at which calibration starts, some of them changed."""
    return {constant.name: constant.start for constant in family.constants} | changes


def constants(family: Family) -> st.SearchStrategy[dict[str, float]]:
    """Return a strategy of any constants that a calibration may find."""
    return st.fixed_dictionaries(
        {constant.name: st.floats(constant.low, constant.high) for constant in family.constants}
    )


def prepared(*questions: dict[str, Any], at_once: int = ROWS_AT_ONCE) -> list[Prepared]:
    """Return questions by family; fail if one is refused."""
    parts = list(prepare(facts_of(*questions), RESOLVER, at_once))
    ready = [part for part in parts if isinstance(part, Prepared)]
    assert sum(part.rows.height for part in ready) == len(questions)
    return ready


def facts_of(*questions: dict[str, Any]) -> pl.DataFrame:
    """Return questions with the facts of their platforms."""
    return with_facts(ask(*questions), FACTS)


_MEET = {"collective_pcie": ("l40s", "rtx_pro_6000"), "mla_selected": ("h100", "b200")}
"""The two platforms of a family whose kernels do not run on both an A100 and an H100."""


def sizes_of(name: str) -> list[dict[str, Any]]:
    """Return questions of one family in several sizes, on two platforms."""
    given = OF_FAMILY[name]
    wide = {"gemm": "d_ff", "moe_triton": "d_ff", "moe_library": "d_ff"}.get(name, "batch")
    meet = _MEET.get(name, ("a100", "h100"))
    return [
        {**given, wide: given.get(wide, 1) * factor, "platform": platform}
        for platform in meet
        for factor in (1, 2, 4, 8)
    ]


def of_family(name: str) -> Prepared:
    """Return the questions of one family with their arrays."""
    (part,) = prepared(*sizes_of(name))
    assert part.family is FAMILIES[name]
    return part
