"""AIConfigurator's tables of latent and sparse attention, of indexers, and of attention layers.

`num_heads` is per rank (collector/sglang/collect_mla.py, `local_num_heads`), `isl` the new
positions, `step` the cached ones before them. Times are in milliseconds: with that unit no kernel
is faster than its GPU allows. Whether a kernel is absorbed or naive follows from the peak: SGLang's
context kernels on Hopper reach 18 % of it if naive and 61 % if absorbed, and its collector builds
all except Blackwell's with one head of 576 (collect_mla.py). All other context kernels would need
1.4 to 4 times the peak if absorbed, and so are naive. Generation kernels are absorbed.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import polars as pl
from msgspec import Struct

from nearfree.core.modules.indexer import LOGITS, SELECT
from nearfree.core.modules.mla import ABSORBED, NAIVE
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.curves import TYPES
from nearfree.public.perf_tables import Rows, read_columns, rows_of, setting_mismatches, table_name

Row = dict[str, object]
_DENSE_SPAN = 128
"""Positions per cache entry from which on all entries are attended to."""


class LayerQuery(NamedTuple):
    """The layer of a row: its model, a rank's heads, whether an indexer runs, and the engine."""

    name: str
    heads: int
    indexed: bool
    engine: str


class LatentModel(Struct, frozen=True, kw_only=True):
    """A model with one latent per position, and an indexer if it selects positions."""

    d_model: int
    query_rank: int
    latent: int = 512
    rope_dim: int = 64
    nope_dim: int = 128
    value_dim: int = 128
    selected: int | None = None
    index_heads: int | None = None
    index_dim: int = 128

    def layer(self, query: LayerQuery, span: int) -> Row:
        """Return the fields of a layer whose cache entries span one position."""
        del span
        heads, index_heads = query.heads, self.index_heads if query.indexed else None
        queries = self.query_rank * (self.d_model + heads * (self.nope_dim + self.rope_dim))
        latent = self.d_model * (self.latent + self.rope_dim)
        expansion = heads * self.latent * (self.nope_dim + self.value_dim)
        projected = queries + latent + expansion + heads * self.value_dim * self.d_model
        fields: Row = {name: getattr(self, name) for name in ("latent", "rope_dim", "selected")}
        if index_heads is not None:
            projected += self.query_rank * index_heads * self.index_dim
            projected += self.d_model * (self.index_dim + index_heads)
            fields |= {"index_heads": index_heads, "index_dim": self.index_dim}
        return fields | {"projected": projected}


class CompressedModel(Struct, frozen=True, kw_only=True):
    """A model like DeepSeek V4: cache entries span 4 positions, and are selected, or 128."""

    d_model: int
    query_rank: int
    selected: int
    width: int = 512
    output_rank: int = 1024
    heads_a_group: int = 8
    index_heads: int = 64
    index_dim: int = 128

    def layer(self, query: LayerQuery, span: int) -> Row:
        """Return the fields of a layer whose cache entries span some positions."""
        selects, groups = span < _DENSE_SPAN, -(-query.heads // self.heads_a_group)
        queries = self.query_rank * (self.d_model + query.heads * self.width)
        outputs = self.output_rank * (query.heads * self.width + groups * self.d_model)
        keys, compressed = self.d_model * self.width, 2 * self.d_model * self.width * (1 + selects)
        projected = queries + outputs + keys + compressed
        fields: Row = {"latent": self.width, "selected": self.selected if selects else None}
        if selects:
            projected += self.query_rank * self.index_heads * self.index_dim
            projected += self.d_model * (self.index_heads + 4 * self.index_dim)
        if selects and query.indexed:
            fields |= {"index_heads": self.index_heads, "index_dim": self.index_dim}
        return fields | {"projected": projected}


class BlockModel(Struct, frozen=True, kw_only=True):
    """A model like MiniMax M3: grouped-query attention over blocks that an indexer selects."""

    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    selected: int
    index_heads: int
    index_dim: int

    def layer(self, query: LayerQuery, span: int) -> Row:
        """Return the fields of a layer whose cache entries span one position.

        vLLM and SGLang shard index heads like key-value heads, of which a rank has one at least;
        TensorRT-LLM was measured with all of them
        (collector/{vllm,sglang,trtllm}/collect_msa_module.py of AIConfigurator's repository).
        """
        del span
        kv_heads = max(1, self.kv_heads * query.heads // self.heads)
        index_heads = self.index_heads if query.engine == "trtllm" else kv_heads
        head_width = 2 * (query.heads + kv_heads) * self.head_dim
        projected = self.d_model * (head_width + (index_heads + 1) * self.index_dim)
        fields: Row = {"kv_heads": kv_heads, "head_dim": self.head_dim, "selected": self.selected}
        if query.indexed:
            fields |= {"index_heads": index_heads, "index_dim": self.index_dim}
        return fields | {"projected": projected}


_V3 = LatentModel(d_model=7168, query_rank=1536)
_V32 = LatentModel(d_model=7168, query_rank=1536, selected=2048, index_heads=64)
_GLM5 = LatentModel(
    d_model=6144, query_rank=2048, nope_dim=192, value_dim=256, selected=2048, index_heads=32
)
_V4_FLASH = CompressedModel(d_model=4096, query_rank=1024, selected=512)
_V4_PRO = CompressedModel(d_model=7168, query_rank=1536, selected=1024)
_M3 = BlockModel(
    d_model=6144, heads=64, kv_heads=4, head_dim=128, selected=2048, index_heads=4, index_dim=128
)
MODELS: dict[str, LatentModel | CompressedModel | BlockModel] = {
    "deepseek-ai/DeepSeek-V3": _V3,
    "moonshotai/Kimi-K3": _V3,
    "deepseek-ai/DeepSeek-V3.2": _V32,
    **dict.fromkeys(
        ("zai-org/GLM-5", "zai-org/GLM-5-FP8", "zai-org/GLM-5.2", "zai-org/GLM-5.2-FP8",
         "nvidia/GLM-5.2-NVFP4"),
        _GLM5,
    ),
    "sgl-project/DeepSeek-V4-Flash-FP8": _V4_FLASH,
    **dict.fromkeys(("deepseek-ai/DeepSeek-V4-Pro", "sgl-project/DeepSeek-V4-Pro-FP8"), _V4_PRO),
    "MiniMaxAI/MiniMax-M3": _M3,
}  # fmt: skip
"""Shapes of a rank's layer by the models' names in the tables; quantised editions have the model's.

Widths are from each model's config.json in AIConfigurator's wheel
(aiconfigurator_core/model_configs/). Projections follow the classes of transformers 5.23
(DeepseekV3Attention, DeepseekV32Indexer, DeepseekV4Attention, MiniMaxM3VLAttention).
"""


_COLUMNS = {
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
_MODEL_COLUMNS = {"model": "model", "gemm_type": "products"}
_OPTIONAL = {"score_mode": "score_mode"}
_CACHES = {"bfloat16": "bfloat16", "fp8": "float8", "fp8_e4m3": "float8"}
_PRODUCTS = {"bfloat16": "bfloat16", "fp8_block": "float8_block", "nvfp4": "nvfp4"}
_ABSORBED_CONTEXT = ("flash_attention", "triton")
"""SGLang's context kernels that are absorbed: they attend in the latent space."""
_SKIPS_INDEXER = "skip_indexer"
"""Part of the names of operations whose layer reuses another layer's selection."""


class Shape(Struct, frozen=True):
    """The meaning of a table's rows: their module and call, and the fields from their model."""

    module: str
    fields: Callable[[LayerQuery], Row | None]
    """None if the model is unknown or has no such layer."""
    api: str | None = None
    cache: str | None = None
    """The format in which the cache is read, if it differs from the table's."""


def _kernel(query: LayerQuery) -> Row | None:
    """Return the fields of attention alone, with DeepSeek V3's widths if no model is named."""
    model = MODELS.get(query.name or "deepseek-ai/DeepSeek-V3")
    if not isinstance(model, LatentModel):
        return None
    names = ("selected", "latent", "rope_dim", "nope_dim", "value_dim")
    return {"heads": query.heads, **{name: getattr(model, name) for name in names}}


def _indexer(query: LayerQuery) -> Row | None:
    """Return the fields of a model's indexer, whose heads are not sharded."""
    model = MODELS.get(query.name)
    if model is None or model.index_heads is None:
        return None
    span = 4 if isinstance(model, CompressedModel) else 1
    return {"heads": model.index_heads, "head_dim": model.index_dim, "span": span}


def _layer(query: LayerQuery, *, span: int = 1) -> Row | None:
    """Return the fields of a model's attention layer on a rank with some heads."""
    model = MODELS.get(query.name)
    if model is None:
        return None
    common = {"d_model": model.d_model, "heads": query.heads, "span": span}
    return common | model.layer(query, span)


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
"""The tables that are read, and the meaning of their rows."""


def read_latents(member: str, raw: bytes) -> Rows:
    """Return a table's rows, as `perf_tables.read_rows` does."""
    table = table_name(member)
    shape = TABLES[table]
    names_model = not table.endswith("_mla_perf")
    columns = {**_COLUMNS, **(_MODEL_COLUMNS if names_model else {})}
    frame = read_columns(member, raw, columns, optional=_OPTIONAL)
    if not names_model:
        frame = frame.with_columns(pl.lit("").alias("model"), pl.lit("bfloat16").alias("products"))
    frame = frame.with_columns(
        (~pl.col("called").str.contains(_SKIPS_INDEXER, literal=True)).alias("indexed")
    )
    shaped = frame.join(
        _shapes(frame, shape, member.split("/")[-3]),
        on=_SHAPE_KEYS,
        how="left",
        maintain_order="left",
    )
    reasons = _reasons(shape, generation="generation" in table)
    return rows_of(shaped, reasons, shape.module, _overrides(shape, shaped.columns))


_SHAPE_KEYS = ["model", "rank_heads", "indexed"]


def _shapes(frame: pl.DataFrame, shape: Shape, engine: str) -> pl.DataFrame:
    """Return the fields for each model, number of heads and kind of layer in a table."""
    combinations = frame.select(_SHAPE_KEYS).unique(maintain_order=True)
    queries = [
        LayerQuery(name, heads, runs, engine) for name, heads, runs in combinations.iter_rows()
    ]
    rows = [(shape.fields(query) if query.heads > 0 else None) or {} for query in queries]
    fields = [name for name in CURVE_FIELDS if any(name in row for row in rows)]
    return combinations.with_columns(
        pl.Series("known", [bool(row) for row in rows], dtype=pl.Boolean),
        *(pl.Series(name, [row.get(name) for row in rows], dtype=TYPES[int]) for name in fields),
    )


def _reasons(shape: Shape, *, generation: bool) -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield conditions that exclude a row, with their reasons; the first that holds counts."""
    column = pl.col
    formats: dict[str, Iterable[str]] = {"kv_cache_dtype": _CACHES, "products": _PRODUCTS}
    if shape.module != "indexer":
        formats["dtype"] = ("bfloat16",)
    yield from setting_mismatches(formats)
    yield ~column("known"), pl.format("no widths of the model {} are known", column("model"))
    if generation:
        yield column("n") != 1, pl.lit("several new positions in a generation table")
    sizes = (column("n") <= 0) | (column("batch") <= 0) | (column("context") < 0)
    yield sizes, pl.lit("a size is not positive")


def _overrides(shape: Shape, columns: list[str]) -> dict[str, pl.Expr]:
    """Return the fields of a setting that differ from the column of their name."""
    column = pl.col
    kernel = column("kernel")
    if "score_mode" in columns:  # the distribution of the scores to select from
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
    return {"kernel": kernel, "dtype": dtype, "kv_dtype": kv_dtype, "api": api}
