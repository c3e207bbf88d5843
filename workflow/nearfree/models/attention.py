"""A decoder's attention: the keys that new positions see, and one runner for each backend."""

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
    """New positions from L on, under one mask.

    A window hides keys that lie further back than it reaches: a position sees the last `window` up
    to its own; with a `chunk` it sees those from the last multiple of it on; all of them if None.
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
        """Whether a new position sees none after it."""
        return self.mask == "causal"

    @property
    def first(self) -> int:
        """The first key that any new position sees."""
        if self.chunk is not None:
            return self.context // self.chunk * self.chunk
        return 0 if self.window is None else max(0, self.context + 1 - self.window)

    def bias(self, n: int, like: Tensor) -> Tensor | None:
        """Return what is added to the logits of N positions, [N, keys], None where all see all.

        Keys are those from the first on that any of them sees; it has the dtype of `like`, and lies
        where that does.
        """
        if not self.causal or n == 1:
            return None
        before, device = self.context - self.first, str(like.device)
        sight = {"window": self.window, "chunk": self.chunk}
        return causal_mask(n, before, like.dtype, device=device, **sight)


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
    backend: str,
    attention_mask: AttentionMask,
    dtype: torch.dtype,
    execution: ExecutionContext,
    kind: Grouped | None = None,
) -> AttentionRunner:
    """Return what runs the attention of a model's layers on a backend.

    What `execution` shares, workspaces and plans, may serve several models, which never run at the
    same time. `kind` says what some layers do beyond a mask, if anything.

    Raises
    ------
    EvidenceError
        No such backend runs the attention of a model, or none on this GPU, in this dtype, or with
        what the kind has: sinks, capped logits or chunks, which torch on a CPU alone runs here.
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
    own = [name for name in ("sinks", "soft_cap", "chunk") if kind and getattr(kind, name)]
    if own and not isinstance(made, Sdpa):
        raise EvidenceError(
            f"{backend} on {execution.device} is not run with {' and '.join(own)}",
            remedy="Choose torch_sdpa on a CPU",
        )
    return Capped(attention_mask, kind.soft_cap) if kind and kind.soft_cap else made


class Sdpa:
    """torch's SDPA, given a mask for each N; keys before a window are not read."""

    positions_first, page_size = False, 1

    def __init__(self, attention_mask: AttentionMask) -> None:
        self.attention_mask = attention_mask
        self._masks: dict[int, Tensor | None] = {}

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Return attention [b, N, heads, head_dim].

        With `sinks` each head has a logit besides, [heads].
        """
        n = queries.shape[2]
        seen = slice(self.attention_mask.first, self.attention_mask.context + n)
        given = queries, keys[:, :, seen], values[:, :, seen], self._mask(n, queries)
        out = sdpa(*given) if sinks is None else with_sinks(*given, sinks)
        return out.transpose(1, 2)

    def _mask(self, n: int, queries: Tensor) -> Tensor | None:
        """Return the mask of N positions; None where all see all."""
        if n not in self._masks:
            self._masks[n] = self.attention_mask.bias(n, queries)
        return self._masks[n]


class Capped(Sdpa):
    """The same in products and a softmax of their own, which SDPA does not cap."""

    def __init__(self, attention_mask: AttentionMask, cap: float) -> None:
        super().__init__(attention_mask)
        self._cap = cap

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        if sinks is not None:
            raise EvidenceError(
                "layers with sinks and capped logits are not run", remedy="Choose another model"
            )
        n = queries.shape[2]
        seen = slice(self.attention_mask.first, self.attention_mask.context + n)
        given = queries, keys[:, :, seen], values[:, :, seen], self._mask(n, queries)
        return capped(*given, self._cap).transpose(1, 2)


class Flash:
    """torch's FlashAttention op on GPUs, which knows mask and window."""

    positions_first, page_size = True, 1

    def __init__(self, attention_mask: AttentionMask) -> None:
        self.attention_mask = attention_mask

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return attention [b, N, heads, head_dim]."""
        seen = slice(self.attention_mask.first, self.attention_mask.context + queries.shape[2])
        return flash(
            queries.transpose(1, 2),
            keys.transpose(1, 2)[:, seen],
            values.transpose(1, 2)[:, seen],
            causal=self.attention_mask.causal,
            window=self.attention_mask.window,
        )


def torch_attention(attention_mask: AttentionMask, execution: ExecutionContext) -> Flash | Sdpa:
    """Return what runs attention in torch on a device."""
    return Flash(attention_mask) if execution.device == "cuda" else Sdpa(attention_mask)


class CacheCall:
    """FlashAttention's cache call over the whole cache; nothing is appended.

    The new keys lie in the cache already: it is L + N long in each request, which `call` is told
    under the name `lengths`.
    """

    positions_first, page_size = True, 1

    def __init__(
        self, attention_mask: AttentionMask, call: Callable[..., Tensor], lengths: str
    ) -> None:
        self.attention_mask, self._call, self._name = attention_mask, call, lengths
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
            **{self._name: self._lengths[n]},
        )


def flash_2(attention_mask: AttentionMask, execution: ExecutionContext) -> CacheCall:  # noqa: ARG001 (one signature for all)
    """Return what runs attention in FlashAttention 2."""
    function = getattr(flash_attn.load(), flash_attn.FUNCTIONS["kvcache"])
    return CacheCall(attention_mask, partial(flash_attn.attend, function), "cache_seqlens")


def flash_3(attention_mask: AttentionMask, execution: ExecutionContext) -> CacheCall:
    """Return what runs attention in FlashAttention 3."""
    flash_attn_3.refuse_other_capability(execution)
    return CacheCall(attention_mask, partial(flash_attn_3.attend, flash_attn_3.load()), "seqused_k")


class FlashInfer:
    """Paged prefill over the cache, by a plan for each N, which layers and forwards share.

    A cache that has room for whole pages is a pool of them: request i owns those from
    i * room / page size on.
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
        """Return the plan that all forwards of an execution share which see and own the same."""
        batch, _, n, _ = queries.shape
        owned = keys.shape[2] // PAGE_SIZE
        heads = (queries.shape[1], keys.shape[1], queries.shape[3], PAGE_SIZE)
        mask, dtype = self.attention_mask, queries.dtype
        shared: dict[tuple[object, ...], Any] = self._execution.shared
        key = ("flashinfer plan", self._kernels, batch, n, owned, heads, mask, dtype)
        if key not in shared:
            shared[key] = Plan(
                self._kernels,
                self._workspace,
                n,
                Pages(batch, mask.context + n, PAGE_SIZE, owned, queries.device),
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
