"""Where the time of an engine's forward goes: operations timed one by one, in a pass of its own."""

import ctypes
import time

from nearfree.decoders.modules import ATTENTION, BETWEEN, DENSE, HEAD, MOE, OUTPUT, QKV, ROUTER
from nearfree.engines.library import Library

_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
_PARTS = (
    ("ffn_gate_inp", ROUTER),
    ("ffn_moe_logits", ROUTER),
    ("ffn_moe", MOE),
    ("ffn", DENSE),
    ("result_output", HEAD),
    ("attn_out", OUTPUT),
    ("kqv_out", OUTPUT),
    ("Qcur", QKV),
    ("Kcur", QKV),
    ("Vcur", QKV),
    ("wqkv", QKV),
    ("kq", ATTENTION),
)
"""Names of llama.cpp's tensors, by what they begin with, and the modules that they are of."""


class Watch:
    """Times each operation of a forward, as `cb_eval` tells of it before and after."""

    def __init__(self, library: Library) -> None:
        self._calls = library.calls
        self._ns: dict[str, int] = {}
        self._began = 0

    def __call__(self, tensor: int, ask: bool) -> bool:  # noqa: FBT001 (as ggml calls it)
        """Take in that an operation begins, or has ended."""
        now = time.perf_counter_ns()
        if ask:
            self._began = now
            return True
        name = ctypes.string_at(self._calls.ggml_get_name(tensor)).decode(errors="replace")
        operation = ctypes.string_at(self._calls.ggml_op_desc(tensor)).decode(errors="replace")
        role = role_of(name, operation)
        self._ns[role] = self._ns.get(role, 0) + now - self._began
        return True

    def take(self) -> dict[str, float]:
        """Return the microseconds of each module so far, in their order, and forget them."""
        part_us = {role: round(ns / 1000, 3) for role, ns in self._ns.items()}
        self._ns = {}
        return part_us


def role_of(name: str, operation: str) -> str:
    """Return the module that an operation belongs to."""
    if operation.startswith("FLASH_ATTN") or operation == "SOFT_MAX":
        return ATTENTION
    if operation not in _PRODUCTS:
        return BETWEEN
    return next((role for start, role in _PARTS if name.startswith(start)), ATTENTION)
