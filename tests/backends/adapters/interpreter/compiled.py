"""In plain torch: the compiled operations that a forward calls between its two matmuls."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def align(
    ids: Tensor,
    _experts: int,
    block_rows: int,
    rows: Tensor,
    blocks: Tensor,
    end: Tensor,
    *_: object,
) -> None:
    """Sort token-expert pairs by expert, each expert's padded to whole blocks.

    `rows` gets the pair of each row, or the number of pairs where a row only pads; `blocks` the
    expert of each block; `end` the number of rows.
    """
    flat = ids.flatten()
    rows.fill_(len(flat))
    blocks.zero_()
    first_row = 0
    for expert in flat.unique():
        pairs = (flat == expert).nonzero().flatten()
        end_row = first_row + -(-len(pairs) // block_rows) * block_rows
        rows[first_row : first_row + len(pairs)] = pairs.to(rows.dtype)
        blocks[first_row // block_rows : end_row // block_rows] = expert
        first_row = end_row
    end.fill_(first_row)


def gate(out: Tensor, gate_and_up: Tensor) -> None:
    """Write silu(gate) times up, which lie side by side."""
    gate_part, up_part = gate_and_up.chunk(2, dim=-1)
    out.copy_(silu(gate_part) * up_part)


def add_up(expert_outputs: Tensor, out: Tensor, factor: float = 1.0) -> None:
    """Write the sum over a token's experts."""
    out.copy_(expert_outputs.sum(dim=1) * factor)


def install() -> None:
    """Give torch the gate that vLLM 0.9.1 calls, `torch.ops._C.silu_and_mul`, and no compiler."""
    library = torch.library.Library("_C", "DEF")
    library.define("silu_and_mul(Tensor! out, Tensor both) -> ()")
    library.impl("silu_and_mul", gate, "CPU")
    _kept.append(library)
    torch.compile = lambda function=None, **_: function or (lambda function_: function_)


_kept: list[torch.library.Library] = []
"""A library's operations go with it."""
