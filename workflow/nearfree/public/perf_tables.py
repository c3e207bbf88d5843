"""AIConfigurator's latency tables: which rows are curves of a setting, and why others are not.

One file a system, operation, framework and version; a row is one measured point in milliseconds.
"""

import io
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Self

import polars as pl
from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.setting import FIELDS, POWER_LAW
from nearfree.errors import SourceError
from nearfree.log.line import without_private
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.curves import TYPES

MEMORY_LIMIT = 8 * 2**30
"""Bytes of address space that the process which reads a table may have."""
ROW_LIMIT = 5_000_000
"""Rows of one table."""
TEXT_LIMIT = 200
"""Characters of a text."""
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
"""The columns of each table that matter, and the fields of a setting that they are.

`m`, `n` and `k` of a product are its rows, and the columns and rows of its weight; `step` counts
the positions that are cached before the `isl` new ones.
"""
MODULES = {
    "gemm_perf": "gemm",
    "moe_perf": "moe_ffn",
    "context_attention_perf": ATTENTION.name,
    "generation_attention_perf": ATTENTION.name,
}
_ALWAYS = {
    "device": "device",
    "version": "backend_version",
    "kernel_source": "kernel",
    "latency": "latency_ms",
}
_OPTIONAL = {"window_size": "window_size"}
"""Attention without this column is over all keys."""
_TEXT = frozenset(
    {"dtype", "kv_cache_dtype", "distribution", "device", "backend_version", "kernel"}
)
_SHARED = {"bfloat16": "bfloat16", "float16": "float16", "fp8": "float8"}
"""Formats of queries, of caches, and of products of two alike; `fp8` scales whole tensors."""
_FORMATS: dict[str, tuple[str, str | None]] = {
    **{name: (dtype, None) for name, dtype in _SHARED.items()},
    "fp8_block": ("float8_block", None),
    "nvfp4": ("nvfp4", None),
    "sq": ("int8", None),
    "int8_wo": ("bfloat16", "int8"),
    "int4_wo": ("bfloat16", "int4"),
    "w4a16_mxfp4": ("bfloat16", "mxfp4"),
    "w4afp8": ("float8", "int4"),
    "w4a8_mxfp4_mxfp8": ("float8", "mxfp4"),
}
"""What enters a product, and the format of weights where it differs. Activations in mxfp8, eight
bits with a scale of eight for 32 of them, count as float8; `sq` is SmoothQuant, and `wo`, weights
alone, leaves the activations their 16 bits."""
_POWER_LAW = rf"^power_law_(?<exponent>{POWER_LAW.removeprefix('power_law:')})(?:\.0)?$"
_NOT_GATED = "nongated"
"""What the name of a kernel holds whose experts have two matrices."""


class Rows(Struct, frozen=True):
    """A table's rows that are points of a setting, and how many others there are, by reason."""

    points: pl.DataFrame
    skipped: dict[str, int]


def read_rows(member: str, raw: bytes) -> Rows:
    """Return a table's rows by the fields of settings, with `latency_ms`.

    Raises
    ------
    SourceError
        The file is no Parquet, or lacks a column, or holds a column of another type, no value
        where there must be one, or too many rows; nothing of it is returned.
    """
    table = member.rsplit("/", 1)[1].removesuffix(".parquet")
    frame = _read(member, raw, table)
    reason = pl.coalesce(
        pl.when(wrong).then(text) for wrong, text in _reasons(table, frame.columns)
    )
    frame = frame.with_columns(reason.alias("reason"))
    counted = frame.filter(pl.col("reason").is_not_null()).group_by("reason").len().sort("reason")
    kept = frame.filter(pl.col("reason").is_null())
    return Rows(points=_as_settings(kept, table), skipped=dict(counted.iter_rows()))


def _read(member: str, raw: bytes, table: str) -> pl.DataFrame:
    try:
        schema = pl.read_parquet_schema(io.BytesIO(raw))
        wanted = {**COLUMNS[table], **_ALWAYS}
        if MODULES[table] == ATTENTION.name:
            wanted |= {old: new for old, new in _OPTIONAL.items() if old in schema}
        _check_schema(member, schema, wanted)
        if pl.scan_parquet(io.BytesIO(raw)).select(pl.len()).collect().item() > ROW_LIMIT:
            raise odd(member, f"has over {ROW_LIMIT} rows")
        frame = pl.read_parquet(io.BytesIO(raw), columns=list(wanted)).rename(wanted)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise odd(member, f"is no Parquet table ({type(error).__name__})") from error
    for name in frame.columns:
        if name != "latency_ms" and frame[name].null_count():
            raise odd(member, f"has rows without a {name}")
        if name in _TEXT and not all(map(_is_plain, frame[name].unique())):
            raise odd(member, f"has a {name} that is no plain text")
    return frame


def _is_plain(text: str) -> bool:
    return len(text) <= TEXT_LIMIT and text.isprintable() and without_private(text) == text


def _check_schema(member: str, schema: dict[str, pl.DataType], wanted: dict[str, str]) -> None:
    for old, new in wanted.items():
        if old not in schema:
            raise odd(member, f"lacks the column {old}")
        text, real = new in _TEXT, new == "latency_ms"
        kind = schema[old]
        fits = kind == pl.String if text else kind.is_float() if real else kind == pl.Int64
        if not fits:
            raise odd(member, f"has a column {old} of {kind}")


def _reasons(table: str, columns: list[str]) -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield why a row is no point of a setting, the first that holds counts."""
    column = pl.col
    yield ~column("device").str.starts_with("NVIDIA"), pl.lit("not a GPU of NVIDIA")
    attention = MODULES[table] == ATTENTION.name
    formats = [("dtype", [*(_SHARED if attention else _FORMATS)])]
    formats += [("kv_cache_dtype", [*_SHARED])] if attention else []
    for name, names in formats:
        text = pl.format(f"{name} {{}} has no place in a setting", column(name))
        yield ~column(name).is_in(names), text
    if table == "moe_perf":
        yield column("moe_ep_size") != 1, pl.lit("experts spread over several GPUs")
        whole = column("inter_size") % column("moe_tp_size") == 0
        yield ~whole.fill_null(value=False), pl.lit("d_ff is no whole number")
        yield column("top_k") > column("experts"), pl.lit("top_k is larger than experts")
        named = column("distribution")
        known = (named == "balanced") | named.str.contains(_POWER_LAW)
        yield ~known, pl.format("distribution {} is not known", named)
    if attention:
        if "window_size" in columns:
            yield column("window_size") != 0, pl.lit("attention within a window")
        yield column("beam_width") != 1, pl.lit("several beams")
        whole = column("heads") % column("kv_heads") == 0
        yield ~whole.fill_null(value=False), pl.lit("heads is no multiple of kv_heads")
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


def _as_settings(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """Return rows with a setting's fields alone, by default what a table has not."""
    column = pl.col
    dtype, weights = (
        column("dtype").replace_strict(
            {name: formats[place] for name, formats in _FORMATS.items()}, return_dtype=pl.String
        )
        for place in range(2)
    )
    fields = {
        "module": pl.lit(MODULES[table]),
        "backend_version": column("backend_version"),
        "kernel": column("kernel"),
        "dtype": dtype,
        "distribution": pl.lit(None, pl.String),
        "n": column("n"),
        "latency_ms": column("latency_ms").cast(pl.Float64),
    }
    for name in CURVE_FIELDS:
        default = pl.lit(FIELDS[name].default, TYPES[FIELDS[name].kind])
        fields[name] = column(name) if name in frame.columns else default
    fields["weights"] = weights
    if "kv_cache_dtype" in frame.columns:
        cache = column("kv_cache_dtype").replace_strict(_SHARED, return_dtype=pl.String)
        fields["kv_dtype"] = pl.when(cache != dtype).then(cache)
    if table == "moe_perf":
        balanced = column("distribution") == "balanced"
        plain = column("kernel").str.contains(_NOT_GATED, literal=True)
        fields |= {
            "distribution": column("distribution"),
            "routing": pl.when(balanced)
            .then(pl.lit("balanced"))
            .otherwise(column("distribution").str.replace(_POWER_LAW, "power_law:${exponent}")),
            "gated": pl.when(plain).then(pl.lit(value=False)),
            "d_ff": column("inter_size") // column("moe_tp_size"),
        }
    return frame.select(value.alias(name) for name, value in fields.items())


def odd(member: str, what: str) -> SourceError:
    """Return the error of a table that is not believed."""
    return SourceError(
        f"{member} {what}",
        remedy="Nothing was imported; take another version, or an index that you trust",
    )


class GuardedReader:
    """A process that reads tables, one after the other; use it as a context.

    Parquet that is damaged in the right place makes its reader ask for more memory than there is,
    which ends the process at once. A crash of the reader must not kill this process.
    """

    def __init__(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read(self, member: str, raw: bytes) -> Rows:
        """Return a table's rows, as `read_rows` does; SourceError also if its reader broke down."""
        try:
            rows = self._pool.submit(_read_guarded, member, raw).result()
        except BrokenProcessPool as error:
            raise odd(member, "is no Parquet table (its reader broke down)") from error
        if isinstance(rows, Rows):
            return rows
        what, remedy = rows
        raise SourceError(what, remedy=remedy)


def _limit() -> None:
    """Bound the process's memory, and keep its last words off the terminal."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)


def _read_guarded(member: str, raw: bytes) -> Rows | tuple[str, str]:
    """Return rows, or what is wrong and its remedy: errors do not travel between processes."""
    try:
        return read_rows(member, raw)
    except SourceError as error:
        return error.what, error.remedy
