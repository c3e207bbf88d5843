"""Tables of collectives, whose units, names and formats differ."""

from typing import Any

import polars as pl
import pytest
from nearfree.errors import SourceError
from nearfree.public.collective_tables import COLUMNS, read_collectives
from nearfree.public.guarded_reader import _read_guarded

from public.tables import ROOT, parquet

_HEAD = {"version": "0.24.0", "device": "NVIDIA H200", "kernel_source": "any"}
REDUCE: dict[str, Any] = {
    **_HEAD, "framework": "SGLang", "op_name": "all_reduce", "allreduce_dtype": "bfloat16",
    "num_gpus": 8, "message_size": 512, "latency": 0.005,
}  # fmt: skip
NCCL: dict[str, Any] = {
    **_HEAD, "framework": "TRTLLM", "op_name": "alltoall", "nccl_dtype": "half", "num_gpus": 4,
    "message_size": 512, "latency": 0.008,
}  # fmt: skip
LOW: dict[str, Any] = {
    **_HEAD, "framework": "sglang", "kernel_source": "deepep", "node_num": 2, "hidden_size": 7168,
    "num_experts": 256, "num_token": 16, "num_topk": 8, "dispatch_avg_t_us": 30.0,
    "combine_avg_t_us": 60.0,
}  # fmt: skip
NORMAL: dict[str, Any] = {
    **{name: value for name, value in LOW.items() if not name.endswith("avg_t_us")},
    "dispatch_sms": 24, "combine_sms": 20, "dispatch_transmit_us": 100.0, "dispatch_notify_us": 5.0,
    "combine_transmit_us": 200.0, "combine_notify_us": 7.0,
}  # fmt: skip
EXCHANGE: dict[str, Any] = {
    **_HEAD, "framework": "vLLM", "phase": "dispatch", "comm_backend": "deepep_ht",
    "comm_dtype": "default", "ep_size": 8, "hidden_size": 4096, "num_experts": 256, "topk": 8,
    "num_tokens": 64, "sms": 20, "latency": 250.0,
}  # fmt: skip


def member(table: str, system: str = "h200_sxm") -> str:
    """Return the path of a table of collectives."""
    return f"{ROOT}data/{system}/comm/any/1/{table}.parquet"


def read(table: str, *rows: dict[str, Any], system: str = "h200_sxm") -> pl.DataFrame:
    """Return the points of a table; no row may be left out."""
    collectives = read_collectives(member(table, system), parquet(list(rows)))
    assert collectives.skipped == {}
    return collectives.points


def values_of(points: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns of the points."""
    return points.select(columns).rows()


def test_milliseconds_stay_and_elements_are_positions() -> None:
    """All-reduces and NCCL are in milliseconds, a message's elements as N of width 1."""
    reduce, nccl = read("custom_allreduce_perf", REDUCE), read("nccl_perf", NCCL)
    names = ("operation", "dtype", "gpus", "n", "d_model", "latency_ms")
    assert values_of(reduce, *names) == [("all_reduce", "bfloat16", 8, 512, 1, 0.005)]
    assert values_of(nccl, *names) == [("all_to_all", "float16", 4, 512, 1, 0.008)]
    assert values_of(nccl, "backend", "module") == [("nccl", "collective")]


def test_microseconds_become_milliseconds() -> None:
    """DeepEP's times are in microseconds; dispatches have 8 bits, combines 16."""
    low = read("wideep_deepep_ll_perf", LOW)
    names = ("operation", "dtype", "latency_ms", "kernel", "gpus", "experts", "top_k", "n")
    assert values_of(low, *names) == [
        ("dispatch", "float8", 0.03, "deepep_ll", 16, 256, 8, 16),
        ("combine", "bfloat16", 0.06, "deepep_ll", 16, 256, 8, 16),
    ]
    (exchange,) = values_of(read("moe_a2a_perf", EXCHANGE), *names)
    assert exchange == ("dispatch", "bfloat16", 0.25, "deepep_ht_20_sms", 8, 256, 8, 64)


def test_a_time_is_all_of_it_by_the_sms_that_copy() -> None:
    """A time includes the notification, and the kernel's name its number of SMs."""
    normal = read("wideep_deepep_normal_perf", NORMAL)
    assert values_of(normal, "operation", "latency_ms", "kernel") == [
        ("dispatch", 0.105, "deepep_normal_24_sms"),
        ("combine", 0.207, "deepep_normal_20_sms"),
    ]


def test_a_machine_of_four() -> None:
    """Two nodes of GB200 are eight GPUs."""
    points = read("wideep_deepep_ll_perf", LOW, system="gb200")
    assert set(points["gpus"]) == {8}


def test_a_row_s_own_framework_names_it() -> None:
    """In whatever folder a row lies, its framework and version are its own."""
    points = read("custom_allreduce_perf", REDUCE | {"framework": "TRTLLM", "version": "1.2.0rc5"})
    assert values_of(points, "backend", "backend_version") == [("trtllm", "1.2.0rc5")]


@pytest.mark.parametrize(
    ("table", "row", "why"),
    [
        ("nccl_perf", NCCL | {"device": None}, "no device or version is named"),
        ("nccl_perf", NCCL | {"device": "Intel B60"}, "not a GPU of NVIDIA"),
        ("nccl_perf", NCCL | {"op_name": "gossip"}, "operation gossip has no place in a setting"),
        ("nccl_perf", NCCL | {"nccl_dtype": "fp4"}, "dtype fp4 has no place in a setting"),
        ("nccl_perf", NCCL | {"message_size": 0}, "a size is not positive"),
        (
            "moe_a2a_perf",
            EXCHANGE | {"phase": "combine", "comm_dtype": "fp8"},
            "a combine whose label says fewer bits than its time",
        ),
    ],
)
def test_what_is_no_point_is_counted(table: str, row: dict[str, Any], why: str) -> None:
    """A row that is no point of a setting is counted by reason; the others stay."""
    good = {"nccl_perf": NCCL, "moe_a2a_perf": EXCHANGE}[table]
    collectives = read_collectives(member(table), parquet([good, row]))
    assert collectives.skipped == {why: 1}
    assert collectives.points.height == 1


def test_a_table_without_devices_is_left_out_whole() -> None:
    """Without the columns that name a device all rows are counted as left out."""
    row = {name: value for name, value in NCCL.items() if name not in ("device", "version")}
    collectives = read_collectives(member("nccl_perf"), parquet([row, row]))
    assert collectives.points.is_empty()
    assert collectives.skipped == {"no device or version is named": 2}


@pytest.mark.parametrize("table", COLUMNS)
def test_another_form_is_refused(table: str) -> None:
    """A table is read as one of collectives; one that lacks a column is refused by its name."""
    raw = parquet([{"framework": "any"}])
    with pytest.raises(SourceError, match="lacks the column") as error:
        read_collectives(member(table), raw)
    assert _read_guarded(member(table), raw) == (error.value.what, error.value.remedy)
