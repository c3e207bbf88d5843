"""Names of kernels: what a forward runs on a CPU, each once, without what computes nothing.

And the machine that kernels are made for.
"""

import pytest
import torch
from backends.adapters.shapes import make_moe, make_sdpa
from conftest import make_setting
from msgspec import structs
from nearfree.backends.adapters.kernel import TURNING, ExecutionContext, make_kernel
from nearfree.core.plan import MeasurePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.work import ExecutedWork
from nearfree.hardware.identity import cpu_fingerprint
from nearfree.measure.prepare import execution_of, kernel_names
from torch import Tensor


class Ramp:
    """A forward with views and copies around two operators; the second runs N times."""

    cache = "cold"

    def forward(self, n: int) -> Tensor:
        """Take a sine, then cosines."""
        rows = torch.empty(2, 4).view(4, 2).t()[:1].expand(3, 4).unsqueeze(0).transpose(0, 1)
        out = torch.sin(rows)
        for _ in range(n):
            out = torch.cos(out.permute(2, 1, 0).select(0, 0))[None]
        return out

    def work(self, n: int) -> ExecutedWork:
        """Count an operation a position."""
        return ExecutedWork(flop_logical=n, flop_executed=n, bytes_compulsory=0, basis="none")


@pytest.mark.parametrize("n", [1, 3])
def test_names_leave_out_what_only_looks(n: int) -> None:
    """Views, slices and empty tensors are no kernels; one that runs often is named once."""
    assert kernel_names(Ramp(), n, "cpu") == ("sin", "cos")


def test_a_dense_forward_is_products_alone() -> None:
    """The dense FFN runs only matrix products."""
    kernel = make_kernel(make_setting(backend="torch"), (4,), ExecutionContext())
    assert set(kernel_names(kernel, 4, "cpu")) <= {"linear", "matmul", "mm", "addmm"}


def test_names_show_which_path_ran() -> None:
    """The padded MoE multiplies block by block, the control calls the grouped product."""
    padded, grouped = (
        kernel_names(make_kernel(make_moe(backend=name), (4,), ExecutionContext()), 4, "cpu")
        for name in ("torch_padded", "torch_grouped")
    )
    assert "mm" in padded
    assert "_grouped_mm" not in padded
    assert "_grouped_mm" in grouped


def test_looking_changes_no_turn_out_of_order() -> None:
    """Looking at a forward is a forward: afterwards the next copy has its turn."""
    kernel = make_kernel(make_sdpa(), (1,), ExecutionContext(copies=3))
    outputs = [kernel.forward(1) for _ in range(3)]
    kernel_names(kernel, 1, "cpu")
    assert torch.equal(kernel.forward(1), outputs[1])


def test_names_write_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The profiler writes nothing to the terminal."""
    kernel_names(make_kernel(make_sdpa(), (1,), ExecutionContext()), 1, "cpu")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("caches", [{}, {"l2": 1 << 20, "l3": 1 << 25}])
def test_a_cache_that_no_system_tells_of_counts_as_one(caches: dict[str, int]) -> None:
    """The last level's size decides what is cold; without a word it is what copies turn over."""
    here = structs.replace(cpu_fingerprint(), caches=caches)
    plan = MeasurePlan(
        sweeps=(Sweep(setting=make_setting(), positions=(1,)),),
        protocol=Interleaved(rounds=3),
        environment="cpu",
    )
    assert execution_of(here, plan).cache_bytes == (caches.get("l3") or TURNING)
