"""MoE FFN in torch: padded blocks and the bare rows give the same, at different work."""

from itertools import product
from typing import Any

import pytest
import torch
from nearfree.backends.adapters.experts import Aligned, expert_ids
from nearfree.backends.adapters.gates import silu
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.torch_moe import (
    GROUPED,
    PADDED,
    Activation,
    Core,
    TorchGroupedMoe,
    TorchPaddedMoe,
    default_block,
    moe_forward,
)
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.precision import Dtype
from nearfree.core.routing_names import Routing
from torch import Tensor
from torch.nn import functional

from backends.adapters.shapes import counted_flop, is_nearly, make_moe

Moe = TorchPaddedMoe | TorchGroupedMoe
POSITIONS = (1, 2, 5, 33)
ROUTINGS: tuple[Routing, ...] = ("balanced", "skewed", "power_law:1.2")
CASES = [
    *((TorchPaddedMoe, {"block_size_m": block}) for block in (None, 1, 4, 16)),
    (TorchGroupedMoe, {}),
]
by_kind = pytest.mark.parametrize(("kind", "block"), CASES)


def make(kind: type[Moe], *, copies: int = 1, cache_bytes: int = 0, **changes: Any) -> Moe:
    """Return an adapter of a small setting."""
    return kind(
        make_moe(**changes), POSITIONS, ExecutionContext(copies=copies, cache_bytes=cache_bytes)
    )


def reference(kernel: Moe, n: int, copy: int = 0) -> Tensor:
    """Return a forward by its definition, token by token in float64."""
    gate_up, down = (part.double() for part in kernel._weights.copies[copy])
    d_ff = down.shape[-1]
    outputs = []
    for token, experts in zip(
        kernel._inputs[n].double(), expert_ids(kernel._setting, n, "cpu").tolist(), strict=True
    ):
        parts = []
        for expert in experts:
            hidden = gate_up[expert] @ token
            parts.append(down[expert] @ (functional.silu(hidden[:d_ff]) * hidden[d_ff:]))
        outputs.append(torch.stack(parts).mean(0))
    return torch.stack(outputs)


@by_kind
@pytest.mark.parametrize(("routing", "top_k"), [*product(ROUTINGS, (1, 2, 6))])
def test_a_forward_is_its_definition(
    kind: type[Moe], block: dict[str, Any], routing: Routing, top_k: int
) -> None:
    """Padding changes no output: each token's experts are gated, and averaged over its k."""
    kernel = make(kind, batch=2, routing=routing, top_k=top_k, **block)
    for n in POSITIONS:
        out = kernel.forward(n)
        assert out.shape == (2 * n, 32)
        assert is_nearly(out, reference(kernel, n))


@by_kind
@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 0.03), ("float16", 0.005)])
def test_16_bits_give_nearly_the_same(
    kind: type[Moe], block: dict[str, Any], dtype: Dtype, error: float
) -> None:
    """In 16 bits the output stays within their rounding of the definition."""
    kernel = make(kind, dtype=dtype, **block)
    out, expected = kernel.forward(33), reference(kernel, 33)
    assert out.dtype == getattr(torch, dtype)
    assert (out.double() - expected).norm() < error * expected.norm()


def test_both_read_the_same_weights_in_turns() -> None:
    """The control shares the weights of the padded kernel, and each copy has its turn."""
    execution = ExecutionContext(copies=2)
    padded, grouped = (
        kind(make_moe(), (3,), execution) for kind in (TorchPaddedMoe, TorchGroupedMoe)
    )
    grouped._inputs = padded._inputs
    first_copy, second_copy = padded.forward(3), padded.forward(3)
    assert not torch.allclose(first_copy, second_copy)
    assert is_nearly(grouped.forward(3), first_copy)
    assert is_nearly(grouped.forward(3), second_copy)
    assert is_nearly(padded.forward(3), first_copy)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("block", [None, 4, 16])
@pytest.mark.parametrize("n", POSITIONS)
def test_padded_blocks_are_computed_whole(routing: Routing, block: int | None, n: int) -> None:
    """Executed FLOPs are 6 padded rows d f, as torch counts them, in the blocks that are run."""
    kernel = make(TorchPaddedMoe, batch=2, routing=routing, block_size_m=block)
    rows = block or default_block(2 * n, 6)
    blocks = sum(-(-count // rows) for count in routed_pairs(kernel._setting, n))
    work = kernel.work(n)
    assert (work.blocks, work.block_rows) == (blocks, rows)
    assert len(kernel._aligned[n].blocks) == blocks
    assert work.flop_executed == 6 * blocks * rows * 32 * 24 == counted_flop(kernel, n)
    assert work.flop_logical == 6 * (2 * n * 2) * 32 * 24


@pytest.mark.parametrize("n", POSITIONS)
def test_the_control_pads_nothing(n: int) -> None:
    """The control executes what was asked for, and names no blocks."""
    work = make(TorchGroupedMoe).work(n)
    assert work.flop_executed == work.flop_logical == 6 * 2 * n * 32 * 24
    assert (work.blocks, work.block_rows) == (None, None)


def test_bytes_do_not_depend_on_padding() -> None:
    """Padding moves no bytes more: weights of touched experts, tokens, and pairs."""
    padded, bare = (make(kind).work(5) for kind in (TorchPaddedMoe, TorchGroupedMoe))
    weights, tokens, pairs = 6 * 3 * 32 * 24, 5 * 2 * 32, 10 * (2 * 32 + 6 * 24)
    assert padded.bytes_compulsory == bare.bytes_compulsory == 4 * (weights + tokens + pairs)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 16), (64, 16), (65, 64), (1000, 64)])
def test_the_default_block_grows_after_e_tokens(tokens: int, rows: int) -> None:
    """Up to E tokens a block has 16 rows, after that 64."""
    assert default_block(tokens, 64) == rows


@pytest.mark.parametrize(
    ("routing", "batch", "experts"), [("balanced", 1, 2), ("balanced", 3, 6), ("skewed", 3, 2)]
)
def test_only_experts_that_are_read_fill_the_cache(
    routing: Routing, batch: int, experts: int
) -> None:
    """Weights are cold when what the smallest N reads of the other copy fills the cache."""
    read_size = experts * 3 * 32 * 24 * 4
    caches = [
        make(TorchPaddedMoe, copies=2, cache_bytes=size, routing=routing, batch=batch).cache
        for size in (read_size, read_size + 1)
    ]
    assert caches == ["cold", "warm"]


@pytest.mark.parametrize("core", [PADDED, GROUPED])
@pytest.mark.parametrize("on_inputs", [False, True])
def test_biases_and_shares_are_each_experts_own(core: Core, *, on_inputs: bool) -> None:
    """A pair's row has its expert's biases; its share multiplies what comes out, or goes in."""
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(7, 32, generator=generator)
    gate_up, down = (
        torch.randn(6, *shape, generator=generator) / 5 for shape in ((48, 32), (32, 24))
    )
    biases = [torch.randn(6, width, generator=generator) for width in (48, 32)]
    ids = torch.stack([torch.randperm(6, generator=generator)[:2] for _ in rows])
    shares = torch.rand(7, 2, generator=generator)
    aligned = Aligned(ids, 6, core.block_rows(7, 6))
    inner = Activation(silu, *biases)
    out = moe_forward(
        core, rows, aligned, (gate_up, down), shares, inner=inner, on_inputs=on_inputs
    )
    for row, token_ids, weighs, output in zip(rows, ids, shares, out, strict=True):
        expected = torch.zeros(32)
        for expert, share in zip(token_ids.tolist(), weighs.tolist(), strict=True):
            into, after = (share, 1.0) if on_inputs else (1.0, share)
            hidden = silu(gate_up[expert] @ (into * row) + biases[0][expert])
            expected += after * (down[expert] @ hidden + biases[1][expert])
        assert torch.allclose(output, expected, atol=1e-5)
