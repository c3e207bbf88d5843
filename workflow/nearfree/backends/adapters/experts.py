"""State of every MoE adapter: the experts' weights, the tokens' rows, and the routing.

The rotating copies of the weights are windows of E experts over a larger pool. If they are to fill
a cache, they lie on a ring: each window starts E experts after the previous one. A forward then
reads weights that the forwards just before it did not read, however many experts it touches.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import TURNING, ExecutionContext, Positions
from nearfree.backends.adapters.tensors import Turns, filled, torch_dtype, weight
from nearfree.core.modules.routing import LAW_ROUTINGS, routed_pairs
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.setting import Setting


def controlled_ids(routing: str, tokens: int, experts: int, top_k: int, device: str) -> Tensor:
    """Return the experts of every token, [tokens, k], int64 (paper, app. C.3).

    Balanced: token i goes to experts (i k + j) mod E; skewed: all tokens to the first k.
    """
    slots = torch.arange(top_k, device=device)
    if routing == "skewed":
        return slots.repeat(tokens, 1)
    starts = torch.arange(tokens, device=device)[:, None] * top_k
    return (starts + slots) % experts


def expert_ids(setting: Setting, n: int, device: str) -> Tensor:
    """Return the experts of every token of a setting, [batch * N, k], int64.

    Under a power law the pairs of one expert go to consecutive tokens. No token gets an expert
    twice, because no expert has more pairs than there are tokens.
    """
    routing, experts, top_k = setting.routing or "balanced", setting.experts or 1, setting.top_k
    if routing in LAW_ROUTINGS:
        return controlled_ids(routing, setting.batch * n, experts, top_k or 0, device)
    counts = torch.tensor(routed_pairs(setting, n), device=device)
    sorted_pairs = torch.arange(experts, device=device).repeat_interleave(counts)
    return sorted_pairs.view(top_k or 0, setting.batch * n).t().contiguous()


def share_touched(setting: Setting, n: int) -> float:
    """Return the fraction of the experts, hence of their weights, that a forward over N reads."""
    pairs = routed_pairs(setting, n)
    return sum(count > 0 for count in pairs) / len(pairs)


class Aligned:
    """Token-expert pairs sorted by expert, each expert's rows padded to a multiple of a block.

    `tokens`: the token of each row, [rows], 0 for a padding row; `places`: the row of each pair,
    [tokens, k]; `ends`: the end of each expert's rows, [E], int32; `blocks`: expert and first row
    of each block.
    """

    def __init__(self, ids: Tensor, experts: int, block_rows: int | None) -> None:
        """Sort the experts of every token, [tokens, k], E in all.

        Without `block_rows` there is no padding and there are no blocks, so the host does not
        wait for the device.
        """
        pairs, order = ids.flatten().sort(stable=True)
        counts = torch.zeros(experts, dtype=torch.int64, device=ids.device)
        counts.scatter_add_(0, pairs, torch.ones_like(pairs))
        sizes = -(-counts // block_rows) * block_rows if block_rows else counts
        ends = sizes.cumsum(0)
        padding_before = (ends - sizes) - (counts.cumsum(0) - counts)
        rows = torch.arange(len(pairs), device=ids.device) + padding_before[pairs]
        padded_sizes = sizes.tolist() if block_rows else []
        row_count = sum(padded_sizes) if block_rows else len(pairs)
        self.tokens = torch.zeros(row_count, dtype=torch.int64, device=ids.device)
        self.tokens[rows] = order // ids.shape[1]
        places = torch.empty_like(order)
        places[order] = rows
        self.places = places.view(ids.shape)
        self.ends = ends.to(torch.int32)
        experts_of_blocks = [
            expert
            for expert, padded_size in enumerate(padded_sizes)
            for _ in range(padded_size // (block_rows or 1))
        ]
        self.blocks = [
            (expert, block * (block_rows or 1)) for block, expert in enumerate(experts_of_blocks)
        ]


class Windows(NamedTuple):
    """The first expert of each window of E experts, in rotation, and the experts held in all."""

    starts: tuple[int, ...]
    experts: int


def windows(setting: Setting, positions: Positions, execution: ExecutionContext) -> Windows:
    """Return the windows over a setting's experts.

    The ring holds the experts of min(cache, TURNING) bytes, plus as many as the smallest N
    touches. So each round of windows starts at another expert than the round before.
    """
    experts = setting.experts or 0
    if execution.copies:
        return Windows(
            tuple(range(0, execution.copies * experts, experts)), execution.copies * experts
        )
    touched = round(share_touched(setting, min(positions)) * experts)
    matrices = 3 * experts * (setting.d_model or 0) * (setting.d_ff or 0)
    expert_set_bytes = matrices * ELEMENT_BYTES[setting.dtype]
    ring = math.ceil(min(execution.cache_bytes, TURNING) / expert_set_bytes) * experts + touched
    starts = tuple(turn * experts % ring for turn in range(ring // touched))
    return Windows(starts, ring + experts)


class Experts:
    """Gated experts: copies of weights [E, 2 d_ff, d_model] and [E, d_model, d_ff]; rows by N."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._setting, self._execution = setting, execution
        experts, d_model, d_ff = setting.experts or 0, setting.d_model or 0, setting.d_ff or 0
        dtype, ring = torch_dtype(setting), windows(setting, positions, execution)
        gate_up = weight(execution, dtype, ring.experts, 2 * d_ff, d_model, copy=0)
        down = weight(execution, dtype, ring.experts, d_model, d_ff, copy=0)
        self._weights = Turns(
            [
                (gate_up[start : start + experts], down[start : start + experts])
                for start in ring.starts
            ],
            execution,
            share=share_touched(setting, min(positions)),
        )
        self.cache = self._weights.cache
        rows = filled(execution, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}
