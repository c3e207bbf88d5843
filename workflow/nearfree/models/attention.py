"""A decoder's attention: the keys that new positions see, and a runner per backend."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from msgspec import Struct
from torch import Tensor

from nearfree.backends.adapters import flash_attn, flash_attn_3
from nearfree.backends.adapters.flashinfer_plan import PAGE_SIZE, Kernels, Plan, workspace
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import Pages, equal_lengths
from nearfree.backends.adapters.torch_sdpa import capped, causal_mask, flash, sdpa, with_sinks
from nearfree.backends.records import in_models, load
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.setting import Mask
from nearfree.decoders.attention_kinds import Grouped
from nearfree.errors import EvidenceError


class AttentionMask(Struct, frozen=True):
    """The mask of new positions, which begin at L = `context`.

    With a `window` a position sees the last `window` positions including its own. With a `chunk` it
    sees the positions from the last multiple of the chunk size on. Without both it sees all.
    """

    mask: Mask
    context: int
    window: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if (self.window or self.chunk) and not self.causal:
            raise EvidenceError(
                "a block of positions that see each other is not run with a window or chunks",
                remedy="Choose the causal mask, or a model without a window",
            )

    @property
    def causal(self) -> bool:
        """Whether a new position sees no later one."""
        return self.mask == "causal"

    @property
    def first(self) -> int:
        """The first key that any new position sees, counted from 0."""
        if self.chunk is not None:
            return self.context // self.chunk * self.chunk
        return 0 if self.window is None else max(0, self.context + 1 - self.window)

    def bias(self, n: int, like: Tensor) -> Tensor | None:
        """Return the bias on the logits of N positions, [N, keys]; None if all see all keys.

        Keys begin with the first one that any position sees. Dtype and device are those of `like`.
        """
        if not self.causal or n == 1:
            return None
        cached, device = self.context - self.first, str(like.device)
        limits = {"window": self.window, "chunk": self.chunk}
        return causal_mask(n, cached, like.dtype, device=device, **limits)


class AttentionRunner(Protocol):
    """Attention of N new positions over a KV cache that already holds their keys.

    Tensors that depend on N are made on the first call with that N and kept: later calls do not
    wait for the device.
    """

    attention_mask: AttentionMask
    positions_first: bool
    """Whether a cache is [b, positions, kv_heads, head_dim] in memory, or has its heads first."""
    page_size: int
    """The number of positions per page; the cache has room for whole pages."""

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
    backend: str,
    attention_mask: AttentionMask,
    dtype: torch.dtype,
    execution: ExecutionContext,
    kind: Grouped | None = None,
) -> AttentionRunner:
    """Return the runner of a model's attention on a backend.

    The workspaces and plans that `execution` shares may serve several models, which never run at
    the same time. `kind` gives the features of layers beyond a mask, if there are any.

    Raises
    ------
    EvidenceError
        The backend does not run the attention of models, or not on this GPU, in this dtype or with
        the features of the kind. Sinks, capped logits and chunks run here only in torch on a CPU.
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
    runner: AttentionRunner = load(known[backend])(attention_mask, execution)
    features = [name for name in ("sinks", "soft_cap", "chunk") if kind and getattr(kind, name)]
    if features and not isinstance(runner, Sdpa):
        raise EvidenceError(
            f"{backend} on {execution.device} is not run with {' and '.join(features)}",
            remedy="Choose torch_sdpa on a CPU",
        )
    return Sdpa(attention_mask, kind.soft_cap) if kind and kind.soft_cap else runner


class Sdpa:
    """Attention in torch, with a mask for each N; keys before a window are not read.

    With a `cap` logits are capped, in separate products and a softmax: torch's SDPA has no cap.
    """

    positions_first, page_size = False, 1

    def __init__(self, attention_mask: AttentionMask, cap: float | None = None) -> None:
        self.attention_mask, self._cap = attention_mask, cap
        self._masks: dict[int, Tensor | None] = {}

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Return attention [b, N, heads, head_dim]; `sinks` are an additional logit per head."""
        if sinks is not None and self._cap:
            raise EvidenceError(
                "layers with sinks and capped logits are not run", remedy="Choose another model"
            )
        n = queries.shape[2]
        if n not in self._masks:
            self._masks[n] = self.attention_mask.bias(n, queries)
        visible = slice(self.attention_mask.first, self.attention_mask.context + n)
        seen = queries, keys[:, :, visible], values[:, :, visible], self._masks[n]
        if self._cap:
            out = capped(*seen, self._cap)
        else:
            out = sdpa(*seen) if sinks is None else with_sinks(*seen, sinks)
        return out.transpose(1, 2)


class Flash:
    """torch's FlashAttention op on GPUs, which supports the causal mask and windows."""

    positions_first, page_size = True, 1

    def __init__(self, attention_mask: AttentionMask) -> None:
        self.attention_mask = attention_mask

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        visible = slice(self.attention_mask.first, self.attention_mask.context + queries.shape[2])
        return flash(
            queries.transpose(1, 2),
            keys.transpose(1, 2)[:, visible],
            values.transpose(1, 2)[:, visible],
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
        )


def torch_attention(attention_mask: AttentionMask, execution: ExecutionContext) -> Flash | Sdpa:
    """Return the runner of attention in torch on a device."""
    return Flash(attention_mask) if execution.device == "cuda" else Sdpa(attention_mask)


class CacheCall:
    """FlashAttention's cache call over the whole cache; nothing is appended.

    The cache already holds the new keys: its length is L + N in each request. `lengths_name` is the
    name of the argument by which `call` takes that length.
    """

    positions_first, page_size = True, 1

    def __init__(
        self, attention_mask: AttentionMask, call: Callable[..., Tensor], lengths_name: str
    ) -> None:
        self.attention_mask, self._call, self._lengths_name = attention_mask, call, lengths_name
        self._lengths: dict[int, Tensor] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        batch, _, n, _ = queries.shape
        if n not in self._lengths:
            self._lengths[n] = equal_lengths(batch, self.attention_mask.context + n, queries.device)
        return self._call(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
            **{self._lengths_name: self._lengths[n]},
        )


def flash_2(attention_mask: AttentionMask, execution: ExecutionContext) -> CacheCall:  # noqa: ARG001 (one signature for all)
    """Return the runner of attention in FlashAttention 2."""
    function = getattr(flash_attn.load(), flash_attn.FUNCTIONS["kvcache"])
    return CacheCall(attention_mask, partial(flash_attn.attend, function), "cache_seqlens")


def flash_3(attention_mask: AttentionMask, execution: ExecutionContext) -> CacheCall:
    """Return the runner of attention in FlashAttention 3."""
    flash_attn_3.refuse_other_capability(execution)
    return CacheCall(attention_mask, partial(flash_attn_3.attend, flash_attn_3.load()), "seqused_k")


class FlashInfer:
    """Paged prefill over the cache, with a plan for each N that layers and forwards share.

    The cache is a pool of pages: request i owns those from i * room / page size on.
    """

    positions_first, page_size = True, PAGE_SIZE

    def __init__(
        self, attention_mask: AttentionMask, execution: ExecutionContext, *, kernels: Kernels
    ) -> None:
        self.attention_mask, self._execution = attention_mask, execution
        self._kernels: Kernels = kernels
        self._workspace = workspace(execution)
        self._plans: dict[int, Plan] = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        batch, heads, n, head_dim = queries.shape
        if n not in self._plans:
            self._plans[n] = self._plan(queries, keys)
        rows = queries.transpose(1, 2).reshape(batch * n, heads, head_dim)
        out = self._plans[n].run(rows, (_paged(keys), _paged(values)))
        return out.view(batch, n, heads, head_dim)

    def _plan(self, queries: Tensor, keys: Tensor) -> Plan:
        """Return the plan, which all forwards of an execution with the same arguments share."""
        batch, _, n, _ = queries.shape
        pages_per_request = keys.shape[2] // PAGE_SIZE
        heads = (queries.shape[1], keys.shape[1], queries.shape[3], PAGE_SIZE)
        mask, dtype = self.attention_mask, queries.dtype
        shared: dict[tuple[object, ...], Any] = self._execution.shared
        key = ("flashinfer plan", self._kernels, batch, n, pages_per_request, heads, mask, dtype)
        if key not in shared:
            shared[key] = Plan(
                self._kernels,
                self._workspace,
                n,
                Pages(batch, mask.context + n, PAGE_SIZE, pages_per_request, queries.device),
                heads=heads,
                dtype=dtype,
                causal=mask.causal,
                window=mask.window,
            )
        plan: Plan = shared[key]
        return plan


flashinfer_fa2 = partial(FlashInfer, kernels="fa2")
flashinfer_fa3 = partial(FlashInfer, kernels="fa3")


def _paged(cache: Tensor) -> Tensor:
    """Return a cache [b, kv_heads, room, head_dim] as pages, [pages, page, kv_heads, head_dim]."""
    _, kv_heads, _, head_dim = cache.shape
    return cache.transpose(1, 2).view(-1, PAGE_SIZE, kv_heads, head_dim)
