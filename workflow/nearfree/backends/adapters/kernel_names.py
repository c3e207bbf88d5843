"""Which kernels a forward runs: their names show where a backend changes its path."""

import os

import torch
from torch.autograd import profiler_legacy
from torch.profiler import ProfilerActivity, profile

from nearfree.backends.adapters.kernel import Kernel

_NO_WORK = frozenset(
    {
        *("alias", "as_strided", "chunk", "expand", "narrow", "numpy_T", "permute", "reshape"),
        *("resolve_conj", "resolve_neg", "select", "slice", "split", "t", "transpose", "unbind"),
        *("unsqueeze", "view", "_unsafe_view", "empty", "empty_like", "empty_strided"),
    }
)
"""Operators that move and compute nothing."""


def kernel_names(kernel: Kernel, n: int, device: str) -> tuple[str, ...]:
    """Return the kernels of one forward, each once, in order: operators on a CPU.

    On a GPU these are the names of the kernels that ran, as CUPTI tells them.
    """
    found = _cuda_names(kernel, n) if device == "cuda" else _cpu_names(kernel, n)
    return tuple(dict.fromkeys(found))


def _cpu_names(kernel: Kernel, n: int) -> list[str]:
    with profiler_legacy.profile() as seen:  # the newer one writes to standard error
        kernel.forward(n)
    names = [event.name.removeprefix("aten::") for event in seen.function_events]
    return [name for name in names if name not in _NO_WORK]


def _cuda_names(kernel: Kernel, n: int) -> list[str]:
    os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else CUPTI slows whatever is timed afterwards
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        kernel.forward(n)
        torch.cuda.synchronize()
    events = [event for event in seen.events() if event.device_type.name == "CUDA"]
    return [event.name for event in events if not event.name.startswith("Mem")]
