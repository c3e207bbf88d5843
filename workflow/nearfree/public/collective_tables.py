"""AIConfigurator's tables of collectives: their rows as points of settings, with units.

The tables differ. `latency` is in milliseconds for all-reduces and NCCL, and in microseconds
otherwise. `message_size` counts elements, not bytes: as bytes, the largest message on H200 would
need twice the bandwidth of its links. A row's framework and version columns identify it, not its
folder, which contradicts them in 24 of 126 tables of communication. Formats that the tables call
`default` or do not name follow from bandwidth: DeepEP of SGLang states them (1.03 bytes per element
in a dispatch, 2 in a combine); vLLM's takes twice as long per row, which means 16 bits.
"""

from collections.abc import Iterator, Mapping

import polars as pl

from nearfree.public.perf_tables import REAL, Rows, read_columns, rows_of, setting_mismatches
from nearfree.units import US_PER_MS

_OPTIONAL_COLUMNS = {"framework": "backend", "version": "backend_version", "device": "device"}
_EXPERT_COLUMNS = {"hidden_size": "d_model", "num_experts": "experts"}
_DEEPEP = {
    **_EXPERT_COLUMNS,
    "node_num": "nodes",
    "num_token": "n",
    "num_topk": "top_k",
    "kernel_source": "kernel",
}
COLUMNS: dict[str, dict[str, str]] = {
    **{
        table: {
            "op_name": "operation",
            "kernel_source": "kernel",
            dtype: "dtype",
            "num_gpus": "gpus",
            "message_size": "n",
            "latency": "latency_ms",
        }
        for table, dtype in (
            ("custom_allreduce_perf", "allreduce_dtype"),
            ("nccl_perf", "nccl_dtype"),
        )
    },
    "wideep_deepep_ll_perf": {
        **_DEEPEP,
        "dispatch_avg_t_us": "dispatch",
        "combine_avg_t_us": "combine",
    },
    "wideep_deepep_normal_perf": {
        **_DEEPEP,
        "dispatch_sms": "dispatch_sms",
        "combine_sms": "combine_sms",
        "dispatch_transmit_us": "dispatch",
        "dispatch_notify_us": "dispatch_notify",
        "combine_transmit_us": "combine",
        "combine_notify_us": "combine_notify",
    },
    "moe_a2a_perf": {
        **_EXPERT_COLUMNS,
        "phase": "operation",
        "comm_backend": "kernel",
        "comm_dtype": "dtype",
        "ep_size": "gpus",
        "num_tokens": "n",
        "topk": "top_k",
        "sms": "sms",
        "latency": "latency_ms",
    },
}
"""The columns that are read of each table besides those of `_OPTIONAL_COLUMNS`, and their names
here. `num_token` is per rank."""
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "dispatch": "dispatch",
    "combine": "combine",
}
DTYPES = {
    "bfloat16": "bfloat16",
    "half": "float16",
    "int8": "int8",
    "fp8": "float8",
    "nvfp4": "nvfp4",
    "default": "bfloat16",
}
_GPUS_PER_NODE = {"gb200": 4, "gb300": 4}
"""GPUs per node of `node_num`, if not eight: the `num_gpus_per_node` of the system's file."""
_REQUIRED_VALUES = frozenset({"backend", "backend_version", "device"})


def read_collectives(member: str, raw: bytes) -> Rows:
    """Return a table's rows, as `perf_tables.read_rows` does, with their own `backend`.

    Rows without a device cannot be assigned to a platform: they are counted and excluded.
    """
    *_, system, _, _, _, file = member.split("/")
    table = file.removesuffix(".parquet")
    nullable = REAL | _REQUIRED_VALUES
    frame = read_columns(member, raw, COLUMNS[table], optional=_OPTIONAL_COLUMNS, nullable=nullable)
    absent = sorted(_REQUIRED_VALUES - {*frame.columns})
    frame = frame.with_columns(pl.lit(None, pl.String).alias(name) for name in absent)
    frame = _operations(frame, table, _GPUS_PER_NODE.get(system, 8))
    stated = {
        "backend": pl.col("backend").str.to_lowercase(),
        "dtype": _mapped("dtype", DTYPES),
        "operation": _mapped("operation", OPERATIONS),
    }
    return rows_of(frame, _reasons(), "collective", stated)


def _operations(frame: pl.DataFrame, table: str, gpus_per_node: int) -> pl.DataFrame:
    """Return a row per measurement: `operation`, `dtype`, `gpus`, `kernel` and `latency_ms`."""
    column = pl.col
    if table in ("custom_allreduce_perf", "nccl_perf"):
        frame = frame.with_columns(pl.lit(1).alias("d_model"))
        if table == "nccl_perf":
            frame = frame.with_columns(
                pl.when(column("backend").is_not_null()).then(pl.lit("NCCL")).alias("backend")
            )
        return frame
    if table == "moe_a2a_perf":
        sms = pl.when(column("sms") > 0).then(pl.format("_{}_sms", "sms")).otherwise(pl.lit(""))
        return frame.with_columns(
            pl.concat_str("kernel", sms).alias("kernel"), column("latency_ms") / US_PER_MS
        )
    normal = table == "wideep_deepep_normal_perf"
    frames = []
    for operation, dtype in (("dispatch", "fp8"), ("combine", "bfloat16")):
        time_us, kernel = column(operation), pl.concat_str("kernel", pl.lit("_ll"))
        if normal:
            time_us = time_us + column(f"{operation}_notify")
            kernel = pl.format("{}_normal_{}_sms", "kernel", f"{operation}_sms")
        frames.append(
            frame.select(
                *_OPTIONAL_COLUMNS.values(),
                *_EXPERT_COLUMNS.values(),
                pl.lit(operation).alias("operation"),
                pl.lit(dtype).alias("dtype"),
                (column("nodes") * gpus_per_node).alias("gpus"),
                kernel.alias("kernel"),
                (time_us / US_PER_MS).alias("latency_ms"),
                "n",
                "top_k",
            )
        )
    return pl.concat(frames)


def _reasons() -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield conditions that exclude a row, with their reasons; the first that holds counts."""
    column = pl.col
    yield (
        pl.any_horizontal(column(*_REQUIRED_VALUES).is_null()),
        pl.lit("no device or version is named"),
    )
    yield from setting_mismatches({"operation": OPERATIONS, "dtype": DTYPES})
    # A combine sums in 16 bits: rows labelled with fewer bits take as long as 16-bit ones.
    is_short = (column("operation") == "combine") & column("dtype").is_in(["fp8", "nvfp4"])
    yield is_short, pl.lit("a combine whose label says fewer bits than its time")
    yield (column("n") <= 0) | (column("gpus") < 2), pl.lit("a size is not positive")


def _mapped(name: str, values: Mapping[str, str]) -> pl.Expr:
    return pl.col(name).replace_strict(dict(values), return_dtype=pl.String)
