"""The rows of a latent attention kernel's tile that a position takes, by kernel.

These are facts with their sources, not rules that are read: FlashMLA's and TensorRT-LLM's kernels
are binaries, and for the others one line is enough. If a rank's heads share a tile, R / H positions
fill it; if a tile holds the heads of a single position, no number of positions does.
"""

from msgspec import Struct

from nearfree.errors import EvidenceError

_HOPPER, _BLACKWELL = 90, 100
_FAMILY_END = 120


class MlaTile(Struct, frozen=True, kw_only=True):
    """A kernel's tile: `rows` of it, `rows_per_position` of a row axis, and whether heads share it.

    `place` is the source, with the release or commit.
    """

    path: str
    rows: int
    rows_per_position: int
    shared: bool
    place: str
    splits: bool = True
    """Whether keys are split over blocks, so that even few tiles use all SMs."""

    @property
    def positions(self) -> float:
        """Positions that fill a tile of a row axis: under 1 if one position takes several tiles."""
        return self.rows / self.rows_per_position


_FLASHMLA = (
    "csrc/sm90/decode/dense/config.h: BLOCK_SIZE_M 64, rows N H packed in "
    "csrc/api/dense_decode.h (deepseek-ai/FlashMLA at 9241ae3)"
)
_FA3 = "hopper/tile_size.h line 18: 64 rows at head sizes 64 and 512; heuristics.h line 11: packed"
_TRTLLM = (
    "flashinfer-python 0.7.2 include/flashinfer/trtllm/fmha/fmhaKernels.cuh from line 587: one "
    "token a block, tileSizeQ over heads"
)
_FLASHINFER = (
    "flashinfer-python 0.6.13 include/flashinfer/attention/scheduler.cuh lines 1472-1480: 64 "
    "packed rows, two blocks of them in a cluster beyond 64"
)
_VLLM_TRITON = (
    "vllm 0.33.0 v1/attention/ops/triton_decode_attention.py lines 505-518: BLOCK_H 16, a row of "
    "the batch a position"
)
_SGLANG_EXTEND = (
    "sglang 0.5.9 srt/layers/attention/triton_ops/extend_attention.py lines 62-102: BLOCK_M 32 at "
    "head size 576, 16 on compute capability 10 from 0.5.11 on; each head by itself"
)
_CUTLASS = (
    "vllm 0.14.0 csrc/attention/mla/cutlass_sm100_mla/kernel/sm100_cutlass_mla_kernel.cu "
    "line 74: 128 heads, one position"
)
_SPARSE = (
    "vllm 0.20.2 v1/attention/backends/mla/flashmla_sparse.py line 713: heads padded to 64 or "
    "128; csrc/api/sparse_decode.h line 62: a position a tile (deepseek-ai/FlashMLA at 9241ae3)"
)
_NAIVE = "a tile of 128 rows of one head, assumed: no public source says it of all kernels"


NAIVE_TILE = MlaTile(
    path="naive", rows=128, rows_per_position=1, shared=False, place=_NAIVE, splits=False
)
"""The tile of kernels whose keys and values are separate for each head."""


_PACKED = {"flashmla": _FLASHMLA, "fa3": _FA3, "flashinfer": _FLASHINFER}
"""Kernels whose tile of 64 rows the heads of several consecutive positions share."""


def _single_tile(path: str, heads: int, rows: int, place: str) -> MlaTile:
    """Return a tile of one position's heads; the last tile is padded."""
    padded = -(-heads // rows) * rows
    return MlaTile(path=path, rows=rows, rows_per_position=padded, shared=True, place=place)


def sparse_tile(*, heads: int, sm: int) -> MlaTile:
    """Return the tile of attention to selected positions: one position's heads, padded to 64.

    Raises
    ------
    EvidenceError
        No such kernel is known for the compute capability.
    """
    if not _HOPPER <= sm < _FAMILY_END:
        raise EvidenceError(
            f"no kernel of selected positions is known on compute capability {sm // 10}.{sm % 10}",
            remedy="Ask for a GPU of compute capability 9.0 or 10.x",
        )
    return _single_tile("flashmla_sparse", heads, 64, _SPARSE)


def kernel_tile(kernel: str, *, heads: int, sm: int) -> MlaTile:
    """Return the tile of an absorbed kernel.

    Parameters
    ----------
    kernel
        flashmla, fa3, flashinfer, trtllm_gen, cutlass, triton_decode or triton_extend.
    heads
        Query heads per rank.
    sm
        Compute capability, 90 for 9.0.

    Raises
    ------
    EvidenceError
        The kernel's tiles are unknown.
    """
    if kernel in _PACKED:
        place = _PACKED[kernel]
        return MlaTile(path=kernel, rows=64, rows_per_position=heads, shared=True, place=place)
    trtllm_rows = 8 if heads <= 8 else 16 if heads <= 32 else 64
    single = {
        "trtllm_gen": (trtllm_rows, _TRTLLM),
        "cutlass": (128, _CUTLASS),
        "triton_decode": (16, _VLLM_TRITON),
    }
    if kernel in single:
        return _single_tile(kernel, heads, *single[kernel])
    if kernel == "triton_extend":
        rows = 16 if _BLACKWELL <= sm < _FAMILY_END else 32
        return MlaTile(
            path=kernel, rows=rows, rows_per_position=1, shared=False, place=_SGLANG_EXTEND,
            splits=False,
        )  # fmt: skip
    raise EvidenceError(
        f"how the latent attention of {kernel} tiles is not known",
        remedy="Name flash_attn, FlashMLA, FlashInfer, TensorRT-LLM or Triton",
    )


def measured_tile(
    backend: str, kernel: str | None, *, heads: int, sm: int, cached: bool, absorbed: bool
) -> MlaTile:
    """Return the tile of a kernel, named as in public tables or in a question.

    Parameters
    ----------
    backend, kernel
        The kernel's owner, and its name in the table.
    cached
        Whether it attends to a cache with one or few positions, that is, decodes.
    absorbed
        Whether all heads share one key; a naive kernel has a row axis per head.

    Raises
    ------
    EvidenceError
        The kernel's tiles are unknown.
    """
    if not absorbed:
        return NAIVE_TILE
    name = _kernel_name(backend, (kernel or backend).lower(), sm=sm, cached=cached)
    return kernel_tile(name, heads=heads, sm=sm)


def _kernel_name(backend: str, name: str, *, sm: int, cached: bool) -> str:
    """Return the known kernel that a name stands for."""
    if "triton" in name:
        return "triton_decode" if cached or backend == "vllm" else "triton_extend"
    if backend == "trtllm" and name == "default":
        if sm == _HOPPER:
            return "flashmla"
        is_blackwell = _BLACKWELL <= sm < _FAMILY_END
        return "trtllm_gen" if is_blackwell else f"TensorRT-LLM on capability {sm // 10}.{sm % 10}"
    if "flashmla" in name or "flash_mla" in name:
        return "flashmla"
    if "trtllm" in name:
        return "trtllm_gen"
    return "fa3" if "flash_att" in name else "flashinfer" if "flashinfer" in name else name
