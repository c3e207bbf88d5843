"""Which form of T(N) speaks of a question, or why none does."""

import polars as pl

from nearfree.derive.granularity.releases import OTHER_MOE, is_moe_package, is_triton_moe
from nearfree.derive.laws.refusals import facts_refusal, shape_refusal, written
from nearfree.derive.work_model.attention import ATTENTION_CACHED, ATTENTION_PREFILL
from nearfree.derive.work_model.family import Family
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.moe import MOE_LIBRARY, MOE_TRITON

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (GEMM, MOE_TRITON, MOE_LIBRARY, ATTENTION_PREFILL, ATTENTION_CACHED)
}
CALIBRATED_DTYPES = ("bfloat16", "float16")
"""Element types that the constants speak of; those of 16 bits run the same kernels."""
_LIBRARY_BACKENDS = ("trtllm",)
_module, _kernel = pl.col("module"), pl.col("kernel")


def family_name() -> pl.Expr:
    """Return the family of a question; null where no form speaks of it."""
    moe = _module == "moe_ffn"
    library = pl.col("backend").is_in(_LIBRARY_BACKENDS) | _kernel.str.contains(OTHER_MOE)
    return (
        pl.when(_module.is_in(["gemm", "dense_ffn"]))
        .then(pl.lit(GEMM.name))
        .when(moe & is_moe_package(pl.col("backend")) & is_triton_moe(_kernel))
        .then(pl.lit(MOE_TRITON.name))
        .when(moe & library)
        .then(pl.lit(MOE_LIBRARY.name))
        .when((_module == "attention") & (pl.col("context") == 0))
        .then(pl.lit(ATTENTION_PREFILL.name))
        .when(_module == "attention")
        .then(pl.lit(ATTENTION_CACHED.name))
    )


def times_refusal() -> pl.Expr:
    """Return why no T(N) is known of a question; null where one is."""
    product = _module.is_in(["gemm", "dense_ffn"])
    lacking = [
        pl.when(product & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for field in ("d_model", "d_ff")
    ]
    return pl.coalesce(
        shape_refusal(cached=False),
        *lacking,
        facts_refusal(),
        pl.when(pl.col("sm_count").is_null()).then(written("no number of SMs of {}", "platform")),
        pl.when(~pl.col("dtype").is_in(CALIBRATED_DTYPES)).then(
            written("no constants of {} are calibrated for {}", "module", "dtype")
        ),
        pl.when(family_name().is_null()).then(
            written("no form of T(N) for the MoE kernel {} of {}", "kernel", "backend")
        ),
    )
