"""The role of an operation of llama.cpp, by its kind and its result's name."""

import ctypes
from typing import Any

import pytest
from nearfree.decoders.ranks.modules import (
    ATTENTION,
    BETWEEN,
    DENSE,
    HEAD,
    MOE,
    OUTPUT,
    QKV,
    ROUTER,
)
from nearfree.engines import shares
from nearfree.engines.library import Library
from nearfree.engines.shares import Watch, role_of


@pytest.mark.parametrize(
    ("name", "operation", "role"),
    [
        ("Qcur-0", "MUL_MAT", QKV),
        ("Kcur-29", "MUL_MAT", QKV),
        ("Vcur-1", "MUL_MAT", QKV),
        ("wqkv-3", "MUL_MAT", QKV),
        ("attn_out-0", "MUL_MAT", OUTPUT),
        ("kqv_out-0", "MUL_MAT", OUTPUT),
        ("kq-0", "MUL_MAT", ATTENTION),
        ("kqv-0", "MUL_MAT", ATTENTION),
        ("ffn_gate-0", "MUL_MAT", DENSE),
        ("ffn_out-0", "MUL_MAT", DENSE),
        ("ffn_gate_inp-0", "MUL_MAT", ROUTER),
        ("ffn_moe_logits-0", "MUL_MAT", ROUTER),
        ("ffn_moe_gate-0", "MUL_MAT_ID", MOE),
        ("result_output", "MUL_MAT", HEAD),
        ("node_7", "FLASH_ATTN_EXT", ATTENTION),
        ("kq_soft_max-0", "SOFT_MAX", ATTENTION),
        ("Qcur-0", "ROPE", BETWEEN),
        ("ffn_swiglu-0", "SWIGLU", BETWEEN),
        ("norm-0", "RMS_NORM", BETWEEN),
        ("never seen", "MUL_MAT", ATTENTION),
        ("never seen", "OF_TOMORROW", BETWEEN),
        ("", "", BETWEEN),
    ],
)
def test_an_operation_has_one_role(name: str, operation: str, role: str) -> None:
    """Products are of the module whose weights they read, the rest lies between modules.

    A product of an unknown name is taken for one of attention, which multiplies by no weights.
    """
    assert role_of(name, operation) == role


def test_a_watch_sums_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of operations are summed by role; reading the sums resets them."""
    now = iter([100, 1_100, 5_000, 7_000, 8_000, 8_500, 10, 20])
    monkeypatch.setattr(shares.time, "perf_counter_ns", lambda: next(now))
    operations = [
        (b"Qcur-0", b"MUL_MAT"),
        (b"norm-0", b"MUL"),
        (b"Kcur-0", b"MUL_MAT"),
        (b"\xff", b"X"),
    ]

    class Calls:
        def ggml_get_name(self, tensor: int) -> Any:
            return ctypes.c_char_p(operations[tensor][0])

        def ggml_op_desc(self, tensor: int) -> Any:
            return ctypes.c_char_p(operations[tensor][1])

    watch = Watch(Library(calls=Calls(), system_info="", files={}))  # type: ignore[arg-type]
    for tensor in range(3):
        assert watch(tensor, True)  # noqa: FBT003 (as ggml calls it)
        assert watch(tensor, False)  # noqa: FBT003
    assert watch.take() == {QKV: 1.5, BETWEEN: 2.0}
    assert watch.take() == {}
    watch(3, True)  # noqa: FBT003
    watch(3, False)  # noqa: FBT003
    assert watch.take() == {BETWEEN: 0.01}
