"""Controlled routing: which experts each token goes to, and where its row then lies."""

import torch
from torch import Tensor

from nearfree.settings import Setting
from nearfree.work import routed_pairs


def expert_ids(setting: Setting, n: int, device: str) -> Tensor:
    """Return the experts of every token, [batch * N, k], int64 (paper, app. C.3).

    Balanced: token i goes to experts (i k + j) mod E; skewed: all tokens to the first k.
    """
    tokens, top_k = setting.batch * n, setting.top_k or 0
    slots = torch.arange(top_k, device=device)
    if setting.routing == "skewed":
        return slots.repeat(tokens, 1)
    starts = torch.arange(tokens, device=device)[:, None] * top_k
    return (starts + slots) % (setting.experts or 1)


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

    def __init__(self, setting: Setting, n: int, block_rows: int, device: str) -> None:
        pairs = routed_pairs(setting, n)
        padded = [-(-count // block_rows) * block_rows for count in pairs]
        starts = [sum(padded[:expert]) for expert in range(len(padded))]
        ids = expert_ids(setting, n, device)
        order = torch.argsort(ids.flatten(), stable=True)
        rows = torch.cat(
            [
                torch.arange(start, start + count, device=device)
                for start, count in zip(starts, pairs, strict=True)
            ]
        )
        self.tokens = torch.zeros(sum(padded), dtype=torch.int64, device=device)
        self.tokens[rows] = order // (setting.top_k or 1)
        places = torch.empty_like(order)
        places[order] = rows
        self.places = places.view(ids.shape)
        ends = torch.tensor(padded, device=device).cumsum(0)
        self.ends = ends.to(torch.int32)
        self.blocks = [
            (expert, start + first)
            for expert, (start, size) in enumerate(zip(starts, padded, strict=True))
            for first in range(0, size, block_rows)
        ]
