"""The granularities that the paper puts into its law: M_moe and M_attn as its tables print them.

M_moe is the block that the fallback rules of vLLM (up to 0.16) and SGLang take up to E tokens, so
tau = E; M_attn the query tile at N = 1: of FlashAttention-2's split-KV kernel, and of FlashInfer's
fa2 scheduler (paper, sec. 4 and app. D).
"""

import polars as pl

MOE_TABLES = {"vllm": "tab:vllm-moe-block-size-m", "sglang": "tab:sglang-moe-block-size-m"}
_M_MOE = {
    "vllm": {"bfloat16": 16, "float16": 16, "float8": 16},
    "sglang": {"bfloat16": 16, "float16": 16, "float8": 64},
}
_M_ATTN_SPLIT_KV, _M_ATTN_FA2 = 64, 16
_TILED = ["bfloat16", "float16"]
_backend, _dtype = pl.col("backend"), pl.col("dtype")


def m_moe() -> pl.Expr:
    """Return M_moe by backend and dtype, tokens; null where the paper prints none."""
    return pl.coalesce(
        pl.when(_engine(name)).then(
            _dtype.replace_strict(rows, default=None, return_dtype=pl.Int64)
        )
        for name, rows in _M_MOE.items()
    )


def m_moe_place() -> pl.Expr:
    """Return where the paper states the law of an MoE layer and its M_moe."""
    return pl.coalesce(
        pl.when(_engine(name)).then(pl.lit(f"paper sec. 4.2, M_moe of {table}, tau = E"))
        for name, table in MOE_TABLES.items()
    )


def m_attn() -> pl.Expr:
    """Return M_attn by backend, positions; null where the paper uses none."""
    tile = (
        pl.when(_split_kv())
        .then(_M_ATTN_SPLIT_KV)
        .when(_backend.is_in(["flashinfer", "flashinfer_fa2"]))
        .then(_M_ATTN_FA2)
    )
    return pl.when(_dtype.is_in(_TILED)).then(tile)


def m_attn_place() -> pl.Expr:
    """Return where the paper states the law's attention term and its M_attn."""
    return (
        pl.when(_split_kv())
        .then(pl.lit("paper sec. 4.1, M_attn of tab:fa2-kblockm, split-KV"))
        .otherwise(pl.lit("paper sec. 4.1, M_attn of tab:flashinfer-cta-tile-q, x <= 16"))
    )


def _engine(name: str) -> pl.Expr:
    return (_backend == name) | _backend.str.starts_with(f"{name}_")


def _split_kv() -> pl.Expr:
    called = (_backend == "flash_attn") & (pl.col("api") == "kvcache").fill_null(value=False)
    return (_backend == "flash_attn_2") | called
