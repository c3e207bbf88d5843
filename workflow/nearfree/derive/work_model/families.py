"""Which form of T(N) speaks of a question, or why none does."""

from typing import Any

import polars as pl

from nearfree.core.modules.attention_layer import ATTENTION_LAYER, DECODE, VERIFY
from nearfree.core.modules.indexer import INDEXER, SELECT
from nearfree.core.modules.routing import SPREADS
from nearfree.core.setting import STORED
from nearfree.derive.laws.laws import ask_distinct, facts_refusal, shape_refusal, written
from nearfree.derive.work_model.all_reduce import NCCL, algorithm_of
from nearfree.derive.work_model.attention import ATTENTION_CACHED, ATTENTION_PREFILL
from nearfree.derive.work_model.collective import (
    BY_HOPS,
    COLLECTIVE_GRAPH,
    COLLECTIVE_NCCL,
    COLLECTIVE_PCIE,
    COLLECTIVES,
    EXCHANGES,
)
from nearfree.derive.work_model.delta_net import DELTA_NET, MAMBA2
from nearfree.derive.work_model.family import Family
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.layer import (
    DECODE_LAYER,
    INDEXER_LOGITS,
    INDEXER_SELECT,
    LAYER,
)
from nearfree.derive.work_model.mla import MLA_CACHED, MLA_PREFILL, MLA_SELECTED
from nearfree.derive.work_model.moe import MOE_LIBRARY, MOE_TRITON
from nearfree.derive.work_model.short_conv import SHORT_CONV
from nearfree.derive.work_model.stream_mixing import STREAM_MIXING

_OF_KERNELS = (
    *(MLA_PREFILL, MLA_CACHED, MLA_SELECTED),
    *(LAYER, DECODE_LAYER, INDEXER_LOGITS, INDEXER_SELECT),
)
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(GEMM, MOE_TRITON, MOE_LIBRARY, ATTENTION_PREFILL, ATTENTION_CACHED),
        *_OF_KERNELS,
        *(DELTA_NET, MAMBA2, SHORT_CONV, STREAM_MIXING),
        *COLLECTIVES,
    )
}
OF_KERNELS = tuple(each.name for each in _OF_KERNELS)
"""Families without shared constants: each kernel has its own (`derive/reference/`)."""
CALIBRATED_DTYPES = ("bfloat16", "float16")
"""Element types that the constants speak of; those of 16 bits run the same kernels."""
_OTHER_UNITS = ("float32",)
"""Element types whose products run outside the tensor cores, to which nothing is carried."""
_family = pl.col("family")


def family_of(rows: pl.DataFrame) -> pl.Series:
    """Return the family of each question, null where no form speaks of it.

    Parameters
    ----------
    rows
        Questions with the facts of their platform: over PCIe all collectives have one form, an
        engine's all-reduce is NCCL's where none of its own kernels joins so many GPUs, and
        latent attention has one of its own where positions are selected, as has their selection.
    """
    cached = (pl.col("context") > 0).alias("cached")
    joins = pl.col("module") == "collective"
    kernel = pl.coalesce("kernel", pl.when(joins).then("api"))
    joined = (pl.when(joins).then(name).alias(name) for name in _JOINED)
    found = ask_distinct(
        rows.select("module", "backend", kernel, cached, *joined), _form, {"family": pl.String}
    )
    over_pcie = joins & pl.col("nvlink").is_null()
    exchanged = pl.col("family").is_in([each.name for each in EXCHANGES])
    module = pl.col("module")
    chosen = (module == "mla") & pl.col("selected").is_not_null()
    selects = (module == INDEXER.name) & (pl.col("api") == SELECT)
    decodes = (module == ATTENTION_LAYER.name) & pl.col("api").is_in([DECODE, VERIFY])
    return rows.with_columns(found["family"]).select(
        pl.when(over_pcie & ~exchanged.fill_null(value=False))
        .then(pl.lit(COLLECTIVE_PCIE.name))
        .when(chosen)
        .then(pl.lit(MLA_SELECTED.name))
        .when(selects)
        .then(pl.lit(INDEXER_SELECT.name))
        .when(decodes)
        .then(pl.lit(DECODE_LAYER.name))
        .otherwise("family")
        .alias("family")
    )["family"]


_JOINED = ("backend_version", "sm", "nvlink", "gpus", "dtype", "machine_gpus")
"""What says which algorithm an engine's all-reduce runs, besides its size."""


def _form(question: dict[str, Any]) -> dict[str, str]:
    of = (question["backend"], question["kernel"], question["cached"])
    for family in FAMILIES.values():
        if question["module"] in family.modules and family.speaks(*of):
            by_nccl = family is COLLECTIVE_GRAPH and _by_nccl(question)
            return {"family": COLLECTIVE_NCCL.name if by_nccl else family.name}
    return {}


def _by_nccl(question: dict[str, Any]) -> bool:
    """Return whether NCCL runs an engine's all-reduce of the fewest bytes, and so of all."""
    found = algorithm_of(
        question["backend"],
        question["backend_version"],
        sm=question["sm"] or 0,
        nvlink=question["nvlink"] is not None,
        gpus=question["gpus"] or 0,
        size=1.0,
        dtype=question["dtype"],
        machine=question["machine_gpus"],
    )
    return found == NCCL


def carried() -> pl.Expr:
    """Return to which formats 16-bit constants are carried; null where they were fitted to them.

    A carried form has the same constants with the bytes and the phi of the formats asked of.
    """
    dtype = pl.col("dtype")
    fitted = [each.is_in(CALIBRATED_DTYPES) for each in (dtype, *map(pl.col, STORED))]
    formats = pl.concat_str(
        dtype,
        pl.format(" with {} weights", pl.col("weights")),
        pl.format(" over a {} cache", pl.col("kv_dtype")),
        ignore_nulls=True,
    )
    stands = pl.all_horizontal(each.fill_null(value=True) for each in fitted)
    # whose formats are bytes to send or to keep, and no more
    of_bytes = pl.col("module").is_in(["collective", "delta_net", "mamba2", "short_conv"])
    return pl.when(~stands & ~of_bytes).then(
        pl.format("bfloat16's constants carried to {}", formats)
    )


def _links_refusal() -> pl.Expr:
    """Return which fact of a platform's links a collective lacks; null where none is."""
    far = pl.col("nodes") > 1
    near = [each.name for each in COLLECTIVES if not _leaves_nodes(each)]
    by_hops = (_family == COLLECTIVE_NCCL.name) & pl.col("operation").is_in(BY_HOPS)
    routing = pl.col("routing")
    return pl.coalesce(
        pl.when(routing.is_not_null() & ~routing.is_in(SPREADS)).then(
            written("{} routing says no load of the busiest rank", "routing")
        ),
        pl.when(pl.col("link_gb_s").is_null()).then(
            written("no bandwidth between the GPUs of {}", "platform")
        ),
        pl.when(pl.col("node_gpus").is_null()).then(
            written("how many GPUs a node of {} joins is not known", "platform")
        ),
        pl.when(far & pl.col("network_gb_s").is_null()).then(
            written("{} GPUs are more than a node of {}, and no network is known",
                    "gpus", "platform")
        ),
        pl.when(far & _family.is_in(near) & ~by_hops).then(
            written("no constants between nodes for the {} of {}, where a node has {} GPUs",
                    "operation", "backend", "node_gpus")
        ),
    )  # fmt: skip


def _leaves_nodes(family: Family) -> bool:
    return any(each.name == "network_share" for each in family.constants)


_INDEXER_UNITS = "{} has no {} units, by which an indexer chooses positions whatever is asked for"


def times_refusal() -> pl.Expr:
    """Return why no T(N) is known of a question with its family; null where one is."""
    lacking = [
        pl.when((_family == family.name) & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for family in FAMILIES.values()
        for field in family.needs
    ]
    links = pl.col("module") == "collective"
    no_capability = written("no compute capability of {}", "platform")
    return pl.coalesce(
        pl.when(links).then(_links_refusal()).otherwise(shape_refusal(law=False)),
        *lacking,
        pl.when(pl.col("no_units") & pl.col("sm").is_null()).then(no_capability),
        pl.when(pl.col("no_units") & (pl.col("module") == INDEXER.name)).then(
            written(_INDEXER_UNITS, "platform", "dtype")
        ),
        facts_refusal(),
        pl.when(pl.col("sm_count").is_null()).then(written("no number of SMs of {}", "platform")),
        # Constants are of NVIDIA's GPUs, which have one.
        pl.when(pl.col("sm").is_null()).then(no_capability),
        pl.when(pl.col("dtype").is_in(_OTHER_UNITS)).then(
            written("no constants of {} are calibrated for {}", "module", "dtype")
        ),
        pl.when(_family.is_null() & links).then(
            written("no form of T(N) for the collectives of {} by {}", "backend", "kernel")
        ),
        pl.when(_family.is_null()).then(
            written("no form of T(N) for the MoE kernel {} of {}", "kernel", "backend")
        ),
    )
