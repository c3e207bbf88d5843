"""AIConfigurator's latency tables: rows that are points of a setting, and why others are not.

There is one file per system, operation, framework and version. A row is one measured point, in
milliseconds.
"""

import io
from collections.abc import Iterable, Iterator, Mapping

import polars as pl
from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.routing_names import POWER_LAW
from nearfree.core.setting import FIELDS
from nearfree.errors import SourceError
from nearfree.log.line import without_private
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.curves import TYPES

ROW_LIMIT = 5_000_000
"""Most rows of a table."""
TEXT_LIMIT = 200
"""Most characters of a text value."""
_ATTENTION = {
    "attn_dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "batch_size": "batch",
    "isl": "n",
    "step": "context",
    "num_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "beam_width": "beam_width",
}
COLUMNS: dict[str, dict[str, str]] = {
    "gemm_perf": {"gemm_dtype": "dtype", "m": "n", "n": "d_ff", "k": "d_model"},
    "moe_perf": {
        "moe_dtype": "dtype",
        "num_tokens": "n",
        "hidden_size": "d_model",
        "inter_size": "inter_size",
        "topk": "top_k",
        "num_experts": "experts",
        "moe_tp_size": "moe_tp_size",
        "moe_ep_size": "moe_ep_size",
        "distribution": "distribution",
    },
    "context_attention_perf": _ATTENTION,
    "generation_attention_perf": _ATTENTION,
}
"""The columns that are read of each table, and the fields of a setting that they give.

`m`, `n` and `k` of a product are its rows, and the columns and rows of its weight; `step` is the
number of cached positions before the `isl` new ones.
"""
MODULES = {
    "gemm_perf": "gemm",
    "moe_perf": "moe_ffn",
    "context_attention_perf": ATTENTION.name,
    "generation_attention_perf": ATTENTION.name,
}
_COMMON_COLUMNS = {
    "device": "device",
    "version": "backend_version",
    "kernel_source": "kernel",
    "latency": "latency_ms",
}
_OPTIONAL = {"window_size": "window_size"}
"""Without this column attention is over all keys."""
_TEXT = frozenset(
    {
        *("dtype", "kv_cache_dtype", "distribution", "device", "backend_version", "kernel"),
        *("backend", "operation", "model", "score_mode", "products", "called"),
    }
)
REAL = frozenset({"latency_ms", "dispatch", "combine", "dispatch_notify", "combine_notify"})
"""Columns of times, which may be null; a curve with a null latency is excluded."""
_UNIFORM_FORMATS = {"bfloat16": "bfloat16", "float16": "float16", "fp8": "float8"}
"""Formats of queries, caches, and products of two equal formats; `fp8` has per-tensor scales."""
_FORMATS: dict[str, tuple[str, str | None]] = {
    **{name: (dtype, None) for name, dtype in _UNIFORM_FORMATS.items()},
    "fp8_block": ("float8_block", None),
    "nvfp4": ("nvfp4", None),
    "sq": ("int8", None),
    "int8_wo": ("bfloat16", "int8"),
    "int4_wo": ("bfloat16", "int4"),
    "w4a16_mxfp4": ("bfloat16", "mxfp4"),
    "w4afp8": ("float8", "int4"),
    "w4a8_mxfp4_mxfp8": ("float8", "mxfp4"),
}
"""Formats of a product's activations, and of its weights if they differ. Activations in mxfp8,
eight bits with an 8-bit scale per 32 elements, count as float8. `sq` is SmoothQuant; `wo`,
weight-only, keeps activations in 16 bits."""
_POWER_LAW = rf"^power_law_(?<exponent>{POWER_LAW.removeprefix('power_law:')})(?:\.0)?$"
_NOT_GATED = "nongated"
"""Part of the names of kernels whose experts have two matrices, without a gate."""


class Rows(Struct, frozen=True):
    """A table's rows that are points of a setting, and the number of other rows by reason."""

    points: pl.DataFrame
    skipped: dict[str, int]


def read_rows(member: str, raw: bytes) -> Rows:
    """Return a table's rows by the fields of settings, with `latency_ms`.

    Raises
    ------
    SourceError
        The file is not Parquet, lacks a column, has a column of another type, a null value where
        none is allowed, or too many rows; nothing of it is returned.
    """
    table = table_name(member)
    optional = _OPTIONAL if MODULES[table] == ATTENTION.name else {}
    frame = read_columns(member, raw, {**COLUMNS[table], **_COMMON_COLUMNS}, optional=optional)
    reasons = _reasons(table, frame.columns)
    return rows_of(frame, reasons, MODULES[table], _overrides(table, frame.columns))


def table_name(member: str) -> str:
    """Return the name of a table from its path in the wheel."""
    return member.rsplit("/", 1)[1].removesuffix(".parquet")


def rows_of(
    frame: pl.DataFrame,
    reasons: Iterator[tuple[pl.Expr, pl.Expr]],
    module: str,
    overrides: Mapping[str, pl.Expr],
) -> Rows:
    """Return the rows of a table that no condition excludes, with a setting's fields alone.

    Parameters
    ----------
    reasons
        Conditions that exclude a row, with their reasons; the first that holds counts.
    overrides
        Fields that differ from the column of their name; fields that a table lacks have defaults.
    """
    reason = pl.coalesce(pl.when(condition).then(text) for condition, text in reasons)
    frame = frame.with_columns(reason.alias("reason"))
    counts = frame.filter(pl.col("reason").is_not_null()).group_by("reason").len().sort("reason")
    fields = {
        "module": pl.lit(module),
        "backend_version": pl.col("backend_version"),
        "kernel": pl.col("kernel"),
        "distribution": pl.lit(None, pl.String),
        "n": pl.col("n"),
        "latency_ms": pl.col("latency_ms").cast(pl.Float64),
    }
    for name in CURVE_FIELDS:
        default = pl.lit(FIELDS[name].default, TYPES[FIELDS[name].kind])
        fields[name] = pl.col(name) if name in frame.columns else default
    fields |= overrides
    included = frame.filter(pl.col("reason").is_null())
    return Rows(
        points=included.select(value.alias(name) for name, value in fields.items()),
        skipped=dict(counts.iter_rows()),
    )


def read_columns(
    member: str,
    raw: bytes,
    columns: Mapping[str, str],
    *,
    optional: Mapping[str, str],
    nullable: frozenset[str] = REAL,
) -> pl.DataFrame:
    """Return columns of a Parquet table under this project's names.

    Parameters
    ----------
    columns, optional
        The table's columns, and their names here; those of `optional` may be missing.
    nullable
        Columns, by their names here, that may be null.
    """
    try:
        schema = pl.read_parquet_schema(io.BytesIO(raw))
        columns = {**columns, **{old: new for old, new in optional.items() if old in schema}}
        _check_schema(member, schema, columns)
        if pl.scan_parquet(io.BytesIO(raw)).select(pl.len()).collect().item() > ROW_LIMIT:
            raise table_error(member, f"has over {ROW_LIMIT} rows")
        frame = pl.read_parquet(io.BytesIO(raw), columns=list(columns)).rename(columns)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise table_error(member, f"is no Parquet table ({type(error).__name__})") from error
    for name in frame.columns:
        if name not in nullable and frame[name].null_count():
            raise table_error(member, f"has rows without a {name}")
        if name in _TEXT and not all(map(_is_plain, frame[name].drop_nulls().unique())):
            raise table_error(member, f"has a {name} that is no plain text")
    return frame


def _is_plain(text: str) -> bool:
    return len(text) <= TEXT_LIMIT and text.isprintable() and without_private(text) == text


def _check_schema(
    member: str, schema: Mapping[str, pl.DataType], columns: Mapping[str, str]
) -> None:
    for old, new in columns.items():
        if old not in schema:
            raise table_error(member, f"lacks the column {old}")
        is_text, is_real = new in _TEXT, new in REAL
        column_type = schema[old]
        fits = (
            column_type == pl.String
            if is_text
            else column_type.is_float()
            if is_real
            else column_type == pl.Int64
        )
        if not fits:
            raise table_error(member, f"has a column {old} of {column_type}")


def constant_columns(frame: pl.DataFrame, names: Iterable[str]) -> dict[str, pl.Expr]:
    """Return those of some columns that have one value, or are all null, each as its literal.

    Most of a table's dozens of columns are such; of a frame without rows, every one.
    """
    columns = (frame[name] for name in names)
    return {
        column.name: pl.lit(column.first(), column.dtype).alias(column.name)
        for column in columns
        if not _varies(column)
    }


def _varies(column: pl.Series) -> bool:
    nulls = column.null_count()
    return 0 < nulls < len(column) or bool(column.min() != column.max())


def setting_mismatches(allowed: Mapping[str, Iterable[str]]) -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield conditions, with reasons, for rows of no setting: other devices, values not allowed."""
    yield ~pl.col("device").str.starts_with("NVIDIA"), pl.lit("not a GPU of NVIDIA")
    for name, values in allowed.items():
        message = pl.format(f"{name} {{}} has no place in a setting", pl.col(name))
        yield ~pl.col(name).is_in([*values]), message


def _reasons(table: str, columns: list[str]) -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield conditions that exclude a row, with their reasons; the first that holds counts."""
    column = pl.col
    attention = MODULES[table] == ATTENTION.name
    cached = {"kv_cache_dtype": _UNIFORM_FORMATS} if attention else {}
    yield from setting_mismatches({"dtype": _UNIFORM_FORMATS if attention else _FORMATS, **cached})
    if table == "moe_perf":
        yield column("moe_ep_size") != 1, pl.lit("experts spread over several GPUs")
        divides = column("inter_size") % column("moe_tp_size") == 0
        yield ~divides.fill_null(value=False), pl.lit("d_ff is no whole number")
        yield column("top_k") > column("experts"), pl.lit("top_k is larger than experts")
        distribution = column("distribution")
        is_known = (distribution == "balanced") | distribution.str.contains(_POWER_LAW)
        yield ~is_known, pl.format("distribution {} is not known", distribution)
    if attention:
        if "window_size" in columns:
            yield column("window_size") != 0, pl.lit("attention within a window")
        yield column("beam_width") != 1, pl.lit("several beams")
        divides = column("heads") % column("kv_heads") == 0
        yield ~divides.fill_null(value=False), pl.lit("heads is no multiple of kv_heads")
        generation = table.startswith("generation")
        yield (
            (column("n") != 1, pl.lit("several new positions in a generation table"))
            if generation
            else (column("context") != 0, pl.lit("cached positions in a context table"))
        )
    sizes = [new for new in COLUMNS[table].values() if new not in _TEXT and new != "context"]
    yield pl.any_horizontal(column(name) <= 0 for name in sizes), pl.lit("a size is not positive")
    if attention:
        yield column("context") < 0, pl.lit("a size is not positive")


def _overrides(table: str, columns: list[str]) -> dict[str, pl.Expr]:
    """Return the fields of a setting that differ from the column of their name."""
    column = pl.col
    dtype, weights = (
        column("dtype").replace_strict(
            {name: formats[index] for name, formats in _FORMATS.items()}, return_dtype=pl.String
        )
        for index in range(2)
    )
    fields = {"dtype": dtype, "weights": weights}
    if "kv_cache_dtype" in columns:
        cache = column("kv_cache_dtype").replace_strict(_UNIFORM_FORMATS, return_dtype=pl.String)
        fields["kv_dtype"] = pl.when(cache != dtype).then(cache)
    if table == "moe_perf":
        balanced = column("distribution") == "balanced"
        is_ungated = column("kernel").str.contains(_NOT_GATED, literal=True)
        fields |= {
            "distribution": column("distribution"),
            "routing": pl.when(balanced)
            .then(pl.lit("balanced"))
            .otherwise(column("distribution").str.replace(_POWER_LAW, "power_law:${exponent}")),
            "gated": pl.when(is_ungated).then(pl.lit(value=False)),
            "d_ff": column("inter_size") // column("moe_tp_size"),
        }
    return fields


def table_error(member: str, problem: str) -> SourceError:
    """Return the error for a table that cannot be imported."""
    return SourceError(
        f"{member} {problem}",
        remedy="Nothing was imported; take another version, or an index that you trust",
    )
