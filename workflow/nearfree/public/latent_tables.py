"""AIConfigurator's tables of latent and sparse attention, of indexers, and of attention layers.

`num_heads` is a rank's own (collector/sglang/collect_mla.py, `local_num_heads`), `isl` the new
positions, `step` those cached before them, and times are in milliseconds: read as such no kernel
beats its GPU. A kernel is absorbed or naive as the peak allows: SGLang's context kernels on Hopper
reach 18 % of it naively and 61 % absorbed, and its collector builds all that are not of Blackwell
with one head of 576 (collect_mla.py); all other context kernels would need 1.4 to 4 times the peak
absorbed, and so are naive. Generation kernels are absorbed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import polars as pl
from msgspec import Struct

from nearfree.core.modules.indexer import LOGITS, SELECT
from nearfree.core.modules.mla import ABSORBED, NAIVE
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.curves import TYPES
from nearfree.public.latent_models import MODELS, BlockModel, CompressedModel, LatentModel
from nearfree.public.perf_tables import Rows, as_settings, misfits, read_columns, without

_SAID = {
    "device": "device",
    "version": "backend_version",
    "kernel_source": "kernel",
    "latency": "latency_ms",
    "mla_dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "num_heads": "rank_heads",
    "batch_size": "batch",
    "isl": "n",
    "step": "context",
    "op_name": "called",
}
_OF_MODELS = {"model": "model", "gemm_type": "products"}
_OPTIONAL = {"score_mode": "score_mode"}
_CACHES = {"bfloat16": "bfloat16", "fp8": "float8", "fp8_e4m3": "float8"}
_PRODUCTS = {"bfloat16": "bfloat16", "fp8_block": "float8_block", "nvfp4": "nvfp4"}
_ABSORBED_CONTEXT = ("flash_attention", "triton")
"""Kernels of SGLang's that attend to new positions in the latent's space."""
_SKIPPED = "skip_indexer"
"""What the name of an operation holds whose layer takes another layer's selection."""
Row = dict[str, object]


class Named(NamedTuple):
    """What rows name: a model, a rank's heads, whether an indexer runs, and the engine."""

    name: str
    heads: int
    indexed: bool
    engine: str


class Shape(Struct, frozen=True):
    """What a table's rows are: their module and call, and the fields that a model gives them."""

    module: str
    fields: Callable[[Named], Row | None]
    """None where the model has none."""
    api: str | None = None
    cache: str | None = None
    """The format of what is read of the cache, where it is not what the table says."""


def _widths(model: LatentModel) -> Row:
    return {name: getattr(model, name) for name in ("latent", "rope_dim", "nope_dim", "value_dim")}


def _kernel(named: Named) -> Row | None:
    """Return the fields of attention alone, with DeepSeek V3's widths where no model is named."""
    model = MODELS.get(named.name or "deepseek-ai/DeepSeek-V3")
    if not isinstance(model, LatentModel):
        return None
    return {"heads": named.heads, "selected": model.selected, **_widths(model)}


def _indexer(named: Named) -> Row | None:
    """Return the fields of a model's indexer, whose heads are not shared among ranks."""
    model = MODELS.get(named.name)
    if model is None or model.index_heads is None:
        return None
    span = 4 if isinstance(model, CompressedModel) else 1
    return {"heads": model.index_heads, "head_dim": model.index_dim, "span": span}


def _layer(named: Named, *, span: int = 1) -> Row | None:
    """Return the fields of a model's attention layer on a rank with some heads."""
    name, heads, indexed, engine = named
    model = MODELS.get(name)
    if model is None:
        return None
    common: Row = {"d_model": model.d_model, "heads": heads, "span": span}
    selects = indexed and model.index_heads is not None
    index: Row = {"index_heads": model.index_heads, "index_dim": model.index_dim} if selects else {}
    if isinstance(model, BlockModel):
        common |= {"kv_heads": model.rank_kv_heads(heads), "head_dim": model.head_dim}
        own = model.rank_index_heads(heads, engine)
        index = {**index, "index_heads": own} if selects else {}
        common |= {"selected": model.selected, "projected": model.projected(heads, own)}
    elif isinstance(model, CompressedModel):
        picked = span < _DENSE_SPAN
        index = index if picked else {}
        common |= {"latent": model.width, "selected": model.selected if picked else None}
        common |= {"projected": model.projected(heads, indexed=picked)}
    else:
        common |= {"latent": model.latent, "rope_dim": model.rope_dim, "selected": model.selected}
        common |= {"projected": model.projected(heads, indexed=selects)}
    return {**common, **index}


_DENSE_SPAN = 128
"""Of so many positions an entry all are attended to."""


_LAYER = Shape("attention_layer", _layer)
_CSA = Shape("attention_layer", partial(_layer, span=4))
_HCA = Shape("attention_layer", partial(_layer, span=_DENSE_SPAN))
_LOGITS, _SELECT = Shape("indexer", _indexer, LOGITS), Shape("indexer", _indexer, SELECT)
TABLES: dict[str, Shape] = {
    "context_mla_perf": Shape("mla", _kernel),
    "generation_mla_perf": Shape("mla", _kernel, ABSORBED),
    # FlashMLA's sparse prefill reads entries of 16 bits, whatever they were cached in
    # (deepseek-ai/FlashMLA at 9241ae3, README, flash_mla_sparse_fwd).
    "glm5_dsa_attn_module_perf": Shape("mla", _kernel, ABSORBED, "bfloat16"),
    "glm5_mqa_logits_module_perf": _LOGITS,
    "dsv4_paged_mqa_logits_module_perf": _LOGITS,
    "glm5_topk_module_perf": _SELECT,
    "dsv4_csa_topk_calib_perf": _SELECT,
    **{f"{kind}_{phase}_module_perf": shape
       for kind, shape in (("mla", _LAYER), ("dsa", _LAYER), ("msa", _LAYER),
                           ("dsv4_csa", _CSA), ("dsv4_hca", _HCA))
       for phase in ("context", "generation")},
}  # fmt: skip
"""The tables that are read, and what their rows are."""
_MEMBER = re.compile(r"/data/[^/]+/\w+/[^/]+/[^/]+/(?P<table>\w+)\.parquet$")


def is_latent(member: str) -> bool:
    """Return whether a member of the wheel is one of these tables."""
    match = _MEMBER.search(member)
    return match is not None and match["table"] in TABLES


def read_latents(member: str, raw: bytes) -> Rows:
    """Return a table's rows by the fields of settings, with `latency_ms`.

    Raises
    ------
    SourceError
        As `perf_tables.read_rows` says.
    """
    table = member.rsplit("/", 1)[1].removesuffix(".parquet")
    shape = TABLES[table]
    modelled = not table.endswith("_mla_perf")
    wanted = {**_SAID, **(_OF_MODELS if modelled else {})}
    frame = read_columns(member, raw, wanted, optional=_OPTIONAL)
    if not modelled:
        frame = frame.with_columns(pl.lit("").alias("model"), pl.lit("bfloat16").alias("products"))
    frame = frame.with_columns(
        (~pl.col("called").str.contains(_SKIPPED, literal=True)).alias("indexed")
    )
    shaped = frame.join(
        _shapes(frame, shape, member.split("/")[-3]), on=_SHAPED, how="left", maintain_order="left"
    )
    kept, skipped = without(shaped, _reasons(shape, generation="generation" in table))
    return Rows(points=_as_settings(kept, shape), skipped=skipped)


_SHAPED = ["model", "rank_heads", "indexed"]


def _shapes(frame: pl.DataFrame, shape: Shape, engine: str) -> pl.DataFrame:
    """Return the fields of each model, number of heads and kind of layer that a table names."""
    named = frame.select(_SHAPED).unique(maintain_order=True)
    asked = [Named(name, heads, runs, engine) for name, heads, runs in named.iter_rows()]
    rows = [shape.fields(each) if each.heads > 0 else None for each in asked]
    fields = [name for name in CURVE_FIELDS if any(name in (of or {}) for of in rows)]
    return named.with_columns(
        pl.Series("known", [of is not None for of in rows], dtype=pl.Boolean),
        *(
            pl.Series(name, [(of or {}).get(name) for of in rows], dtype=TYPES[int])
            for name in fields
        ),
    )


def _reasons(shape: Shape, *, generation: bool) -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield why a row is no point of a setting, the first that holds counts."""
    column = pl.col
    formats: dict[str, Iterable[str]] = {"kv_cache_dtype": _CACHES, "products": _PRODUCTS}
    if shape.module != "indexer":
        formats["dtype"] = ("bfloat16",)
    yield from misfits(formats)
    yield ~column("known"), pl.format("no widths of the model {} are known", column("model"))
    if generation:
        yield column("n") != 1, pl.lit("several new positions in a generation table")
    sizes = (column("n") <= 0) | (column("batch") <= 0) | (column("context") < 0)
    yield sizes, pl.lit("a size is not positive")


def _as_settings(frame: pl.DataFrame, shape: Shape) -> pl.DataFrame:
    """Return rows with a setting's fields alone, by default what a table has not."""
    column = pl.col
    kernel = column("kernel")
    if "score_mode" in frame.columns:  # how the numbers are spread that are chosen among
        kernel = pl.format("{} {}", kernel, column("score_mode"))
    dtype = {
        "mla": pl.lit("bfloat16"),
        "indexer": pl.lit("float8"),
        "attention_layer": column("products").replace_strict(_PRODUCTS, return_dtype=pl.String),
    }[shape.module]
    cache = column("kv_cache_dtype").replace_strict(_CACHES, return_dtype=pl.String)
    if shape.cache is not None:
        cache = pl.lit(shape.cache)
    api = pl.lit(shape.api, pl.String)
    if shape.module == "mla" and shape.api is None:
        absorbed = column("kernel").is_in(_ABSORBED_CONTEXT)
        api = pl.when(absorbed).then(pl.lit(ABSORBED)).otherwise(pl.lit(NAIVE))
    kv_dtype = pl.when(cache != dtype).then(cache)
    stated = {"kernel": kernel, "dtype": dtype, "kv_dtype": kv_dtype, "api": api}
    return as_settings(frame, shape.module, stated)
