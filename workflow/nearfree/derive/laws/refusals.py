"""Why a law has no value for a question: the field, fact or rule that is missing, by name."""

import polars as pl

from nearfree.derive.granularity import printed
from nearfree.derive.granularity.releases import is_triton_moe

_module, _kernel = pl.col("module"), pl.col("kernel")
_DENSE = ("gemm", "dense_ffn")
_NEEDED = {
    "gemm": ("batch",),
    "dense_ffn": ("batch",),
    "moe_ffn": ("batch", "d_model", "d_ff", "experts", "top_k", "routing"),
    "attention": ("batch", "context", "heads", "kv_heads", "head_dim"),
}
"""What a question of each module must hold; other modules have no law of their own."""


def idle_refusal() -> pl.Expr:
    """Return why idle compute says nothing; null where it does."""
    return pl.coalesce(shape_refusal(), facts_refusal())


def principle_refusal() -> pl.Expr:
    """Return why the paper's principle says nothing; null where it does."""
    unnamed = (_module == "moe_ffn") & ~is_triton_moe(_kernel)
    no_block = (_module == "moe_ffn") & printed.m_moe().is_null()
    no_tile = (_module == "attention") & printed.m_attn().is_null()
    nowhere = _module.is_in(["moe_ffn", "attention"]) & pl.col("sm").is_null()
    return pl.coalesce(
        shape_refusal(),
        pl.when(_module.is_in(_DENSE)).then(facts_refusal()),
        pl.when(no_block).then(
            written("the paper prints no M_moe of {} for {}", "backend", "dtype")
        ),
        pl.when(unnamed).then(written("the paper prints no M_moe of the kernel {}", "kernel")),
        pl.when(no_tile).then(
            written("the paper prints no M_attn of {} for {}", "backend", "dtype")
        ),
        pl.when(nowhere).then(
            written("{} has no compute capability for {}", "platform", "backend")
        ),
    )


def resolved_refusal() -> pl.Expr:
    """Return why the principle cannot be asked of a release's rules; null where it can."""
    return pl.coalesce(shape_refusal(), pl.when(_module.is_in(_DENSE)).then(facts_refusal()))


def shape_refusal(*, cached: bool = True) -> pl.Expr:
    """Return what a question itself lacks for any law; null where it lacks nothing.

    The paper's laws speak of attention over a cache alone; `cached` says whether that is asked.
    """
    unspread = (_module == "moe_ffn") & ~pl.col("routing").is_in(["balanced", "skewed"])
    uncached = (_module == "attention") & (pl.col("context") == 0) & cached
    missing = [
        pl.when((_module == module) & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for module, fields in _NEEDED.items()
        for field in fields
    ]
    return pl.coalesce(
        pl.when(~_module.is_in(list(_NEEDED))).then(
            written("no law for the module {} yet", "module")
        ),
        *missing,
        pl.when(unspread).then(written("no law for {} routing", "routing")),
        pl.when(uncached).then(pl.lit("no law for attention without a cache (context 0)")),
    )


def facts_refusal() -> pl.Expr:
    """Return which fact of the platform is missing: phi or beta; null where none is."""
    return pl.coalesce(
        pl.when(pl.col("known").is_null()).then(written("no facts of {}", "platform")),
        pl.when(pl.col("peak_tflops").is_null()).then(
            written("no phi of {} for {}", "platform", "dtype")
        ),
        pl.when(pl.col("bandwidth_gb_s").is_null()).then(written("no beta of {}", "platform")),
    )


def written(form: str, *columns: str) -> pl.Expr:
    """Return a sentence with columns in its places, a question mark for null."""
    return pl.format(form, *(pl.col(name).fill_null("?") for name in columns))
