"""The form of T(N) of a question, or the reason why it has none."""

from typing import Any

import polars as pl

from nearfree.core.modules.attention_layer import ATTENTION_LAYER, DECODE, VERIFY
from nearfree.core.modules.indexer import INDEXER, SELECT
from nearfree.core.modules.routing import LAW_ROUTINGS
from nearfree.core.setting import STORED
from nearfree.derive.laws.laws import ask_distinct, facts_refusal, shape_refusal, written
from nearfree.derive.work_model.all_reduce import COLUMNS, NCCL, algorithm_at
from nearfree.derive.work_model.attention import ATTENTION_CACHED, ATTENTION_PREFILL
from nearfree.derive.work_model.collective import (
    BY_HOPS,
    COLLECTIVE_GRAPH,
    COLLECTIVE_NCCL,
    COLLECTIVE_PCIE,
    COLLECTIVES,
    EXCHANGES,
)
from nearfree.derive.work_model.delta_net import STATES
from nearfree.derive.work_model.family import Family
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.layer import (
    DECODE_LAYER,
    INDEXER_LOGITS,
    INDEXER_SELECT,
    LAYER,
)
from nearfree.derive.work_model.mla import LATENT, MLA_SELECTED
from nearfree.derive.work_model.moe import MOE_LIBRARY, MOE_TRITON
from nearfree.derive.work_model.stream_mixing import STREAM_MIXING

_KERNEL_FAMILIES = (
    *LATENT,
    *(LAYER, DECODE_LAYER, INDEXER_LOGITS, INDEXER_SELECT),
)
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(GEMM, MOE_TRITON, MOE_LIBRARY, ATTENTION_PREFILL, ATTENTION_CACHED),
        *_KERNEL_FAMILIES,
        *STATES,
        STREAM_MIXING,
        *COLLECTIVES,
    )
}
_ONLY_BYTES = sorted(
    {name for each in FAMILIES.values() if each.only_bytes for name in each.modules}
)
"""Modules whose formats only decide the bytes that are sent or kept."""
OF_KERNELS = tuple(family.name for family in _KERNEL_FAMILIES)
"""Families without shared constants: each kernel has its own (`derive/reference/`)."""
CALIBRATED_DTYPES = ("bfloat16", "float16")
"""Element types of the calibrated constants; those of 16 bits run the same kernels."""
_WITHOUT_TENSOR_CORES = ("float32",)
"""Element types whose products run outside the tensor cores; no constants are carried to them."""
_family = pl.col("family")


def family_of(rows: pl.DataFrame) -> pl.Series:
    """Return the family of each question, null where it has none.

    Over PCIe all collectives have one form. An engine's all-reduce is NCCL's where none of its own
    kernels supports as many GPUs. Latent attention to selected positions has its own form, and so
    has their selection. Questions have the facts of their platform.
    """
    module = pl.col("module")
    cached = (pl.col("context") > 0).alias("cached")
    is_collective = module == "collective"
    kernel = pl.coalesce("kernel", pl.when(is_collective).then("api"))
    of_all_reduce = (pl.when(is_collective).then(name).alias(name) for name in COLUMNS[2:])
    names = ask_distinct(
        rows.select("module", "backend", kernel, cached, *of_all_reduce),
        _family_name,
        {"family": pl.String},
    )
    exchanges = _family.is_in([family.name for family in EXCHANGES]).fill_null(value=False)
    not_by_kernel = {
        COLLECTIVE_PCIE.name: is_collective & pl.col("nvlink").is_null() & ~exchanges,
        MLA_SELECTED.name: (module == "mla") & pl.col("selected").is_not_null(),
        INDEXER_SELECT.name: (module == INDEXER.name) & (pl.col("api") == SELECT),
        DECODE_LAYER.name: (module == ATTENTION_LAYER.name) & pl.col("api").is_in([DECODE, VERIFY]),
    }
    own_families = (pl.when(is_so).then(pl.lit(name)) for name, is_so in not_by_kernel.items())
    family = pl.coalesce(*own_families, _family).alias("family")
    return rows.with_columns(names["family"]).select(family)["family"]


def _family_name(question: dict[str, Any]) -> dict[str, str]:
    call = (question["backend"], question["kernel"], question["cached"])
    for family in FAMILIES.values():
        if question["module"] in family.modules and family.covers(*call):
            # NCCL runs an engine's smallest all-reduce, and therefore all sizes.
            by_nccl = family is COLLECTIVE_GRAPH and algorithm_at(question, 1.0) == NCCL
            return {"family": COLLECTIVE_NCCL.name if by_nccl else family.name}
    return {}


def carried() -> pl.Expr:
    """Return a text on the formats that 16-bit constants are carried to; null for fitted formats.

    A carried form has the same constants, with the bytes and phi of the question's formats.
    """
    dtype = pl.col("dtype")
    is_fitted = [format_.is_in(CALIBRATED_DTYPES) for format_ in (dtype, *map(pl.col, STORED))]
    formats = pl.concat_str(
        dtype,
        pl.format(" with {} weights", pl.col("weights")),
        pl.format(" over a {} cache", pl.col("kv_dtype")),
        ignore_nulls=True,
    )
    all_fitted = pl.all_horizontal(fitted.fill_null(value=True) for fitted in is_fitted)
    only_bytes = pl.col("module").is_in(_ONLY_BYTES)
    return pl.when(~all_fitted & ~only_bytes).then(
        pl.format("bfloat16's constants carried to {}", formats)
    )


def _links_refusal() -> pl.Expr:
    """Return the missing fact of a platform's links for a collective; null if none is missing."""
    several_nodes = pl.col("nodes") > 1
    one_node = [
        family.name
        for family in COLLECTIVES
        if "network_share" not in {constant.name for constant in family.constants}
    ]
    by_hops = (_family == COLLECTIVE_NCCL.name) & pl.col("operation").is_in(BY_HOPS)
    routing = pl.col("routing")
    return pl.coalesce(
        pl.when(routing.is_not_null() & ~routing.is_in(LAW_ROUTINGS)).then(
            written("{} routing says no load of the busiest rank", "routing")
        ),
        pl.when(pl.col("link_gb_s").is_null()).then(
            written("no bandwidth between the GPUs of {}", "platform")
        ),
        pl.when(pl.col("node_gpus").is_null()).then(
            written("how many GPUs a node of {} joins is not known", "platform")
        ),
        pl.when(several_nodes & pl.col("network_gb_s").is_null()).then(
            written("{} GPUs are more than a node of {}, and no network is known",
                    "gpus", "platform")
        ),
        pl.when(several_nodes & _family.is_in(one_node) & ~by_hops).then(
            written("no constants between nodes for the {} of {}, where a node has {} GPUs",
                    "operation", "backend", "node_gpus")
        ),
    )  # fmt: skip


_INDEXER_UNITS = "{} has no {} units, by which an indexer chooses positions whatever is asked for"


def times_refusal() -> pl.Expr:
    """Return the reason why a question with its family has no T(N); null where it has one."""
    missing_fields = [
        pl.when((_family == family.name) & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for family in FAMILIES.values()
        for field in family.needs
    ]
    is_collective = pl.col("module") == "collective"
    no_capability = written(
        "constants are of NVIDIA's GPUs, and {} has no compute capability", "platform"
    )
    return pl.coalesce(
        pl.when(is_collective).then(_links_refusal()).otherwise(shape_refusal(law=False)),
        *missing_fields,
        pl.when(pl.col("no_units") & pl.col("sm").is_null()).then(no_capability),
        pl.when(pl.col("no_units") & (pl.col("module") == INDEXER.name)).then(
            written(_INDEXER_UNITS, "platform", "dtype")
        ),
        facts_refusal(),
        pl.when(pl.col("sm_count").is_null()).then(written("no number of SMs of {}", "platform")),
        # Constants are calibrated on NVIDIA's GPUs, which have a compute capability.
        pl.when(pl.col("sm").is_null()).then(no_capability),
        pl.when(pl.col("dtype").is_in(_WITHOUT_TENSOR_CORES)).then(
            written("no constants of {} are calibrated for {}", "module", "dtype")
        ),
        pl.when(_family.is_null() & is_collective).then(
            written("no form of T(N) for the collectives of {} by {}", "backend", "kernel")
        ),
        pl.when(_family.is_null()).then(
            written("no form of T(N) for the MoE kernel {} of {}", "kernel", "backend")
        ),
    )
