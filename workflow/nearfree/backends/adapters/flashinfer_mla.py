"""FlashInfer's absorbed latent attention over pages: its `fa2` and `fa3` kernels.

Never run: tests only bind its calls to the signatures of real releases. `plan` is called once per N
when the adapter is constructed; `run` is timed. The causal mask is aligned bottom-right; without
it, each query sees all positions.
"""

from typing import ClassVar

from torch import Tensor

from nearfree.backends.adapters.flashinfer_plan import (
    PAGE_SIZE,
    Kernels,
    load,
    workspace,
)
from nearfree.backends.adapters.kernel import ExecutionContext, Positions, accepted
from nearfree.backends.adapters.tensors import (
    Pages,
    Turns,
    equal_lengths,
    filled,
    pages_of,
    row_offsets,
    share_read,
    torch_dtype,
)
from nearfree.core.modules.attention import is_causal
from nearfree.core.modules.mla import head_widths, is_absorbed, mla_work
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError

_TILE = 64
_WIDTHS = 512, 64


def cluster_rows(heads: int, n: int) -> int:
    """Return the multiple to which a request's N * heads packed rows are padded.

    Blocks have 64 rows, and come in pairs if a request has more than 64 rows (`MLAPlan`,
    include/flashinfer/attention/scheduler.cuh of 0.5.3, lines 1471 to 1481, and of 0.7.2.post1).
    """
    return _TILE if n * heads <= _TILE else 2 * _TILE


class _Mla:
    """Queries [batch * N, heads, latent + rope_dim] over pages of positions of the same width.

    Latent and rotated elements are passed as two views of one tensor, as engines store them:
    kernels take the strides of each. There is one wrapper per N, and one workspace.
    """

    _kernels: ClassVar[Kernels]

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        """Allocate queries and pages, and plan each N.

        Raises
        ------
        EvidenceError
            The setting asks for the naive form, for selected positions, or for widths that the
            kernels do not have.
        """
        width, latent = head_widths(setting)
        if not is_absorbed(setting) or setting.selected is not None:
            raise EvidenceError(
                f"{setting.backend} runs latent attention over all positions, absorbed",
                remedy="Leave `selected` out and `api` absorbed, or choose another backend",
            )
        if (latent, width - latent) != _WIDTHS:
            raise EvidenceError(
                f"{setting.backend} has kernels for a latent of 512 and 64 rotated elements, not "
                f"{latent} and {width - latent}",
                remedy="Choose those, or measure on torch_sdpa",
            )
        self._setting, self._latent = setting, latent
        dtype, batch, max_n = torch_dtype(setting), setting.batch, max(positions)
        page, context = setting.page_size or PAGE_SIZE, setting.context or 0
        owned, heads = pages_of(context + max_n, page), setting.heads or 0
        self._caches = Turns(
            [filled(execution, dtype, batch * owned, page, width) for _ in range(execution.copies)],
            execution,
            share=share_read(setting, positions, page),
        )
        self.cache = self._caches.cache
        rows = filled(execution, dtype, batch * max_n, heads, width)
        self._queries = {n: rows[: batch * n].split(_WIDTHS, -1) for n in positions}
        wrapper_class, shared = load().BatchMLAPagedAttentionWrapper, workspace(execution)
        self._wrappers = {n: wrapper_class(shared, backend=self._kernels) for n in positions}
        scale = ((setting.nope_dim or 0) + (setting.rope_dim or 0)) ** -0.5
        for n, wrapper in self._wrappers.items():
            pages = Pages(batch, context + n, page, owned, execution.device)
            wrapper.plan(
                qo_indptr=row_offsets(batch, n, execution.device),
                kv_indptr=pages.indptr,
                kv_indices=pages.indices,
                kv_len_arr=equal_lengths(batch, context + n, execution.device),
                num_heads=heads,
                head_dim_ckv=_WIDTHS[0],
                head_dim_kpe=_WIDTHS[1],
                page_size=page,
                causal=is_causal(setting),
                sm_scale=scale,
                q_data_type=dtype,
                kv_data_type=dtype,
                **accepted(wrapper.plan, enable_pdl=False),
            )

    def forward(self, n: int) -> Tensor:
        """Run one forward over N new positions of every request, [batch * N, heads, latent]."""
        q_nope, q_pe = self._queries[n]
        ckv, kpe = self._caches.next().split(_WIDTHS, -1)
        out: Tensor = self._wrappers[n].run(q_nope=q_nope, q_pe=q_pe, ckv_cache=ckv, kpe_cache=kpe)
        return out

    def work(self, n: int) -> ExecutedWork:
        """Return the work in blocks of 64 packed rows, pairs of them beyond 64."""
        return mla_work(
            self._setting,
            n,
            f"FlashInfer {self._kernels}: blocks of 64 packed rows, in pairs beyond 64, key tile "
            "and splits not counted",
            rows=cluster_rows(self._setting.heads or 0, n),
        )


class FlashInferMlaFa2(_Mla):
    """The kernels of `fa2`, for compute capability 8.0 and newer."""

    _kernels = "fa2"


class FlashInferMlaFa3(_Mla):
    """The kernels of `fa3`, for compute capability 9.0."""

    _kernels = "fa3"
