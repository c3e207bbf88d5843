"""The time of each module in an engine's forward, from operations timed one by one.

The timed pass is separate from the measured forwards.
"""

import ctypes
import time

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
from nearfree.engines.library import Library

_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
_MODULE_PREFIXES = (
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
"""Prefixes of llama.cpp's tensor names, and the modules that the tensors belong to."""


class Watch:
    """Times each operation of a forward by the callback `cb_eval` before and after it."""

    def __init__(self, library: Library) -> None:
        self._calls = library.calls
        self._ns: dict[str, int] = {}
        self._began = 0

    def __call__(self, tensor: int, ask: bool) -> bool:  # noqa: FBT001 (as ggml calls it)
        """Record that an operation begins (`ask`), or has ended."""
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
        """Return the microseconds of each module so far, in order of appearance, and reset them."""
        module_us = {role: round(ns / 1000, 3) for role, ns in self._ns.items()}
        self._ns = {}
        return module_us


def role_of(name: str, operation: str) -> str:
    """Return the module that an operation belongs to."""
    if operation.startswith("FLASH_ATTN") or operation == "SOFT_MAX":
        return ATTENTION
    if operation not in _PRODUCTS:
        return BETWEEN
    return next((role for start, role in _MODULE_PREFIXES if name.startswith(start)), ATTENTION)
