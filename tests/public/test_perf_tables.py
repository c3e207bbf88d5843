"""Rows of a latency table become points of settings, or are counted by reason."""

from typing import Any

import pytest
from nearfree.public.perf_tables import read_rows

from public.tables import member, parquet, rows

LEFT_OUT = [
    ("gemm_perf", {"gemm_dtype": "fp6"}, "dtype fp6 has no place in a setting"),
    ("gemm_perf", {"device": "Intel B60"}, "not a GPU of NVIDIA"),
    ("gemm_perf", {"k": 0}, "a size is not positive"),
    ("moe_perf", {"moe_dtype": "fp6"}, "dtype fp6 has no place in a setting"),
    ("moe_perf", {"moe_ep_size": 2}, "experts spread over several GPUs"),
    ("moe_perf", {"moe_tp_size": 3}, "d_ff is no whole number"),
    ("moe_perf", {"moe_tp_size": 0}, "d_ff is no whole number"),
    ("moe_perf", {"topk": 65}, "top_k is larger than experts"),
    ("moe_perf", {"distribution": "zipf"}, "distribution zipf is not known"),
    ("context_attention_perf", {"attn_dtype": "nvfp4"}, "dtype nvfp4 has no place in a setting"),
    (
        "generation_attention_perf",
        {"kv_cache_dtype": "nvfp4"},
        "kv_cache_dtype nvfp4 has no place in a setting",
    ),
    ("context_attention_perf", {"window_size": 128}, "attention within a window"),
    ("context_attention_perf", {"beam_width": 2}, "several beams"),
    ("context_attention_perf", {"num_key_value_heads": 5}, "heads is no multiple of kv_heads"),
    ("context_attention_perf", {"num_key_value_heads": 0}, "heads is no multiple of kv_heads"),
    ("context_attention_perf", {"step": 7}, "cached positions in a context table"),
    ("generation_attention_perf", {"isl": 2}, "several new positions in a generation table"),
    ("generation_attention_perf", {"step": -1}, "a size is not positive"),
]


@pytest.mark.parametrize(("table", "changes", "reason"), LEFT_OUT)
def test_rows_of_no_setting(table: str, changes: dict[str, Any], reason: str) -> None:
    """A row that is no complete setting is left out and counted by reason."""
    good = rows(table, (1, 1.0), (2, 1.0))
    curves = read_rows(member(table), parquet([*good, *rows(table, (4, 1.0), **changes)]))
    assert curves.skipped == {reason: 1}
    assert curves.points.height == 2


@pytest.mark.parametrize(
    ("table", "dtypes", "expected"),
    [
        ("gemm_perf", {"gemm_dtype": "fp8"}, ("float8", None, None)),
        ("gemm_perf", {"gemm_dtype": "fp8_block"}, ("float8_block", None, None)),
        ("gemm_perf", {"gemm_dtype": "sq"}, ("int8", None, None)),
        ("gemm_perf", {"gemm_dtype": "int8_wo"}, ("bfloat16", "int8", None)),
        ("moe_perf", {"moe_dtype": "float16"}, ("float16", None, None)),
        ("moe_perf", {"moe_dtype": "nvfp4"}, ("nvfp4", None, None)),
        ("moe_perf", {"moe_dtype": "int4_wo"}, ("bfloat16", "int4", None)),
        ("moe_perf", {"moe_dtype": "w4afp8"}, ("float8", "int4", None)),
        ("moe_perf", {"moe_dtype": "w4a16_mxfp4"}, ("bfloat16", "mxfp4", None)),
        ("moe_perf", {"moe_dtype": "w4a8_mxfp4_mxfp8"}, ("float8", "mxfp4", None)),
        ("context_attention_perf", {}, ("bfloat16", None, None)),
        (
            "context_attention_perf",
            {"attn_dtype": "fp8", "kv_cache_dtype": "fp8"},
            ("float8", None, None),
        ),
        ("generation_attention_perf", {"kv_cache_dtype": "fp8"}, ("bfloat16", None, "float8")),
    ],
)
def test_formats(
    table: str, dtypes: dict[str, str], expected: tuple[str, str | None, str | None]
) -> None:
    """A row has the element type, and the weights' or cache's format if it differs."""
    curves = read_rows(member(table), parquet(rows(table, (1, 1.0), **dtypes)))
    assert curves.points.select("dtype", "weights", "kv_dtype").rows() == [expected]


@pytest.mark.parametrize(
    ("kernel", "gated"), [("moe_torch_flow_nongated", False), ("moe_torch_flow", None)]
)
def test_experts_of_two_matrices(kernel: str, gated: bool | None) -> None:  # noqa: FBT001
    """A kernel marked as not gated has two matrices; otherwise the field is unset."""
    curves = read_rows(
        member("moe_perf"), parquet(rows("moe_perf", (1, 1.0), kernel_source=kernel))
    )
    assert curves.points["gated"].to_list() == [gated]


@pytest.mark.parametrize(
    ("distribution", "routing"),
    [
        ("power_law_1.2", "power_law:1.2"),
        ("power_law_1.01", "power_law:1.01"),
        ("power_law_1.0", "power_law:1"),
        ("power_law_10.25", "power_law:10.25"),
    ],
)
def test_a_power_law_has_its_exponent(distribution: str, routing: str) -> None:
    """A power law's routing has its exponent; the source's own name is kept, too."""
    table = rows("moe_perf", (1, 1.0), distribution=distribution)
    points = read_rows(member("moe_perf"), parquet(table)).points
    assert (points["routing"][0], points["distribution"][0]) == (routing, distribution)


@pytest.mark.parametrize("distribution", ["power_law", "power_law_x", "power_law_1.20", "zipf_1.2"])
def test_a_distribution_without_an_exponent_is_left_out(distribution: str) -> None:
    """A power law without a readable exponent is counted as left out."""
    curves = read_rows(
        member("moe_perf"), parquet(rows("moe_perf", (1, 1.0), distribution=distribution))
    )
    assert curves.points.is_empty()
    assert curves.skipped == {f"distribution {distribution} is not known": 1}


def test_attention_without_a_window_column() -> None:
    """A table of attention that knows no windows is over all keys."""
    table = rows("context_attention_perf", (1, 1.0))
    without = [{k: v for k, v in row.items() if k != "window_size"} for row in table]
    curves = read_rows(member("context_attention_perf"), parquet(without))
    assert (curves.points.height, curves.skipped) == (1, {})
