"""AIConfigurator's tables of collectives: which rows are curves, in which unit, by which name.

The tables differ. `latency` of all-reduces and NCCL is in milliseconds, all others in microseconds;
`message_size` counts elements, not bytes: of the largest message on H200 bytes would be twice
what its links carry. A row's own framework and version name it, not the folder that it lies in,
which 24 of 126 tables of communication contradict. Formats that the tables call `default` or do not
name follow from their bandwidth: DeepEP of SGLang states it (1.03 bytes an element in a dispatch,
2 in a combine), vLLM's takes twice as long a row, which is 16 bits.
"""

import re
from collections.abc import Iterator, Mapping

import polars as pl

from nearfree.public.perf_tables import REAL, Rows, as_settings, misfits, read_columns, without
from nearfree.units import US_PER_MS

_NAMED = {"framework": "backend", "version": "backend_version", "device": "device"}
_ROUTED = {"hidden_size": "d_model", "num_experts": "experts"}
_DEEPEP = {
    **_NAMED,
    **_ROUTED,
    "node_num": "nodes",
    "num_token": "n",
    "num_topk": "top_k",
    "kernel_source": "kernel",
}
COLUMNS: dict[str, dict[str, str]] = {
    **{
        table: {
            **_NAMED,
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
        **_NAMED,
        **_ROUTED,
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
"""The columns of each table that matter, and what they are here. `num_token` is a rank's own."""
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
_SHORT = ("float8", "nvfp4")
_NODE = {"gb200": 4, "gb300": 4}
"""GPUs of a machine, which `node_num` counts, where they are not eight: the `num_gpus_per_node` of
the system's file."""
_MEMBER = re.compile(r"/data/(?P<system>[^/]+)/comm/[^/]+/[^/]+/(?P<table>\w+)\.parquet$")
_ALONE = frozenset({"backend", "backend_version", "device"})


def is_collective(member: str) -> bool:
    """Return whether a member of the wheel is one of these tables."""
    match = _MEMBER.search(member)
    return match is not None and match["table"] in COLUMNS


def read_collectives(member: str, raw: bytes) -> Rows:
    """Return a table's rows by the fields of settings, with `latency_ms` and their own `backend`.

    Rows without a device say nothing that they could be of: they are counted and left out.

    Raises
    ------
    SourceError
        As `perf_tables.read_rows` says.
    """
    *_, system, _, _, _, file = member.split("/")
    table = file.removesuffix(".parquet")
    wanted = {old: new for old, new in COLUMNS[table].items() if old not in _NAMED}
    frame = read_columns(member, raw, wanted, optional=_NAMED, nullable=REAL | _ALONE)
    unnamed = sorted(_ALONE - {*frame.columns})
    frame = frame.with_columns(pl.lit(None, pl.String).alias(name) for name in unnamed)
    frame = _operations(frame, table, _NODE.get(system, 8))
    kept, skipped = without(frame, _reasons())
    stated = {
        "backend": pl.col("backend").str.to_lowercase(),
        "dtype": _mapped("dtype", DTYPES),
        "operation": _mapped("operation", OPERATIONS),
    }
    return Rows(points=as_settings(kept, "collective", stated), skipped=skipped)


def _operations(frame: pl.DataFrame, table: str, node: int) -> pl.DataFrame:
    """Return a row a measurement: `operation`, `dtype`, `gpus`, `kernel` and `latency_ms`."""
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
    parts = []
    for operation, dtype in (("dispatch", "fp8"), ("combine", "bfloat16")):
        time, kernel = column(operation), pl.concat_str("kernel", pl.lit("_ll"))
        if normal:
            time = time + column(f"{operation}_notify")
            kernel = pl.format("{}_normal_{}_sms", "kernel", f"{operation}_sms")
        parts.append(
            frame.with_columns(
                pl.lit(operation).alias("operation"),
                pl.lit(dtype).alias("dtype"),
                (column("nodes") * node).alias("gpus"),
                kernel.alias("kernel"),
                (time / US_PER_MS).alias("latency_ms"),
            )
        )
    kept = ["operation", "dtype", "gpus", "kernel", "latency_ms", "n", "top_k"]
    return pl.concat([part.select(*_NAMED.values(), *_ROUTED.values(), *kept) for part in parts])


def _reasons() -> Iterator[tuple[pl.Expr, pl.Expr]]:
    """Yield why a row is no point of a setting, the first that holds counts."""
    column = pl.col
    yield pl.any_horizontal(column(*_ALONE).is_null()), pl.lit("no device or version is named")
    yield from misfits({"operation": OPERATIONS, "dtype": DTYPES})
    # What comes back is summed in 16 bits: rows labelled with fewer take as long as those.
    short = (column("operation") == "combine") & column("dtype").is_in(["fp8", "nvfp4"])
    yield short, pl.lit("a combine whose label says fewer bits than its time")
    yield (column("n") <= 0) | (column("gpus") < 2), pl.lit("a size is not positive")


def _mapped(name: str, values: Mapping[str, str]) -> pl.Expr:
    return pl.col(name).replace_strict(dict(values), return_dtype=pl.String)
