"""What runs a decoder's attention: one way for each backend, all with the same interface."""

from typing import Protocol

import torch
from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.records import in_models, load
from nearfree.core.modules.attention import ATTENTION
from nearfree.errors import EvidenceError
from nearfree.models.attention_mask import AttentionMask


class AttentionRunner(Protocol):
    """Attention of N new positions over a KV cache that holds their keys already.

    What depends on N is made when an N is first asked for, and kept: after that nothing waits for
    the device.
    """

    attention_mask: AttentionMask
    positions_first: bool
    """Whether a cache is [b, positions, kv_heads, head_dim] in memory, or has its heads first."""
    page_size: int
    """The cache has room for a multiple of so many positions."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim].

        Parameters
        ----------
        queries
            [b, heads, N, head_dim].
        keys, values
            The cache, [b, kv_heads, L + N or more, head_dim].
        """


def make_attention_runner(
    backend: str, attention_mask: AttentionMask, dtype: torch.dtype, execution: ExecutionContext
) -> AttentionRunner:
    """Return what runs a model's attention on a backend.

    What `execution` shares, workspaces and plans, may serve several models, which never run at the
    same time.

    Raises
    ------
    EvidenceError
        No such backend runs the attention of a model, or none on this GPU or in this dtype.
    """
    known = in_models(ATTENTION.name)
    if backend not in known:
        raise EvidenceError(
            f"no adapter runs a model's attention on {backend!r:.80}",
            remedy=f"Choose from {', '.join(known)}",
        )
    if execution.device == "cuda" and dtype not in (torch.bfloat16, torch.float16):
        raise EvidenceError(
            f"{backend} does not run in {dtype} on a GPU", remedy="Choose bfloat16 or float16"
        )
    made: AttentionRunner = load(known[backend])(attention_mask, execution)
    return made
