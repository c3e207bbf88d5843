"""What every MoE adapter holds: the experts' weights, the tokens' rows, and where each one goes.

Copies of the weights that take turns are windows over more experts than E. Where they are to fill a
cache they lie on a ring: each window begins E experts behind the one before it, so that what a
forward reads was not read by the last ones, however many of its experts it touches.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import TURNING, ExecutionContext
from nearfree.backends.adapters.tensors import Turns, filled, torch_dtype, weight
from nearfree.core.modules.routing import SPREADS, routed_pairs
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

    By a power law the pairs of one expert go to tokens that follow each other, so that none gets
    it twice: no expert has more pairs than there are tokens.
    """
    routing, experts, top_k = setting.routing or "balanced", setting.experts or 1, setting.top_k
    if routing in SPREADS:
        return controlled_ids(routing, setting.batch * n, experts, top_k or 0, device)
    counts = torch.tensor(routed_pairs(setting, n), device=device)
    sorted_pairs = torch.arange(experts, device=device).repeat_interleave(counts)
    return sorted_pairs.view(top_k or 0, setting.batch * n).t().contiguous()


def share_touched(setting: Setting, n: int) -> float:
    """Return the part of the experts, so of their weights, that a forward over N reads."""
    pairs = routed_pairs(setting, n)
    return sum(count > 0 for count in pairs) / len(pairs)


class Aligned:
    """Token-expert pairs sorted by expert, each expert's padded to a multiple of a block.

    `tokens`: the token of each row, [rows], 0 where a row only pads; `places`: the row of each
    pair, [tokens, k]; `ends`: the end of each expert's rows, [E], int32; `blocks`: expert and
    first row of each block.
    """

    def __init__(self, ids: Tensor, experts: int, block_rows: int | None) -> None:
        """Sort the experts of every token, [tokens, k], of E.

        Without `block_rows` nothing is padded and there are no blocks: then nothing waits for the
        device.
        """
        pairs, order = ids.flatten().sort(stable=True)
        counts = torch.zeros(experts, dtype=torch.int64, device=ids.device)
        counts.scatter_add_(0, pairs, torch.ones_like(pairs))
        sizes = -(-counts // block_rows) * block_rows if block_rows else counts
        ends = sizes.cumsum(0)
        padding_before = (ends - sizes) - (counts.cumsum(0) - counts)
        rows = torch.arange(len(pairs), device=ids.device) + padding_before[pairs]
        listed = sizes.tolist() if block_rows else []
        size = sum(listed) if block_rows else len(pairs)
        self.tokens = torch.zeros(size, dtype=torch.int64, device=ids.device)
        self.tokens[rows] = order // ids.shape[1]
        places = torch.empty_like(order)
        places[order] = rows
        self.places = places.view(ids.shape)
        self.ends = ends.to(torch.int32)
        experts_of_blocks = [
            expert for expert, part in enumerate(listed) for _ in range(part // (block_rows or 1))
        ]
        self.blocks = [
            (expert, block * (block_rows or 1)) for block, expert in enumerate(experts_of_blocks)
        ]


class Windows(NamedTuple):
    """Where the windows of E experts begin, in turn, and how many experts are held in all."""

    starts: tuple[int, ...]
    experts: int


def windows(setting: Setting, positions: tuple[int, ...], execution: ExecutionContext) -> Windows:
    """Return the windows over a setting's experts.

    The ring holds a cache's worth of experts, or TURNING, and as many more as the smallest N
    touches: so after each round the windows begin elsewhere, until every expert was first in one.
    """
    experts = setting.experts or 0
    if execution.copies:
        return Windows(
            tuple(range(0, execution.copies * experts, experts)), execution.copies * experts
        )
    touched = round(share_touched(setting, min(positions)) * experts)
    matrices = 3 * experts * (setting.d_model or 0) * (setting.d_ff or 0)
    size = matrices * ELEMENT_BYTES[setting.dtype]
    ring = math.ceil(min(execution.cache_bytes, TURNING) / size) * experts + touched
    starts = tuple(turn * experts % ring for turn in range(ring // touched))
    return Windows(starts, ring + experts)


class Experts:
    """Gated experts: weights [E, 2 d_ff, d_model] and [E, d_model, d_ff], in copies; rows by N."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        self._setting, self._execution = setting, execution
        experts, d_model, d_ff = setting.experts or 0, setting.d_model or 0, setting.d_ff or 0
        dtype, held = torch_dtype(setting), windows(setting, positions, execution)
        gate_up = weight(execution, dtype, held.experts, 2 * d_ff, d_model, copy=0)
        down = weight(execution, dtype, held.experts, d_model, d_ff, copy=0)
        self._weights = Turns(
            [(gate_up[at : at + experts], down[at : at + experts]) for at in held.starts],
            execution,
            share=share_touched(setting, min(positions)),
        )
        self.cache = self._weights.cache
        rows = filled(execution, dtype, setting.batch * max(positions), d_model)
        self._inputs = {n: rows[: setting.batch * n] for n in positions}
