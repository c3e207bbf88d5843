"""Dense products: a single one (a projection), or a Dense FFN's two, or three if it is gated.

Source: paper, sec. 3.2, 4.1 and app. C.2.
"""

from typing import Annotated

from msgspec import Meta, Struct

from nearfree.core.modules.kind import Equation, Granularity, Laws, ModuleKind
from nearfree.core.modules.study import StudyBase
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, moved_bytes, unpadded_work, weight_bytes

_GATED_MATRICES = 3
IDLE = "rho s / 2 b"
"""The term of the law for a product or Dense FFN."""


class DenseShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Widths of a two-matrix FFN, in elements."""

    d_model: Positive
    d_ff: Positive


class DenseStudy(StudyBase, frozen=True, kw_only=True, tag="dense_ffn"):
    """A Dense FFN over batch sizes (paper, app. C.2), and over formats of its stored weights.

    `weights` null means the element type.
    """

    axes = ("weights", "batch")
    shape: DenseShape
    weights: Annotated[tuple[Dtype | None, ...], Meta(min_length=1)] = (None,)


class DenseQuestion(Struct, frozen=True, kw_only=True):
    """One dense product of an engine on one platform, [rows, depth] by [depth, columns].

    `kernel` overrides the engine's choice for a model.
    """

    backend: str
    backend_version: str | None
    dtype: str
    weights: str | None
    columns: int
    depth: int
    sm: int | None
    sm_count: int | None
    kernel: str | None = None


def gemm_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of one product: 2 b N d_model d_ff FLOPs, none of them padding."""
    tokens, d_model, d_ff = setting.batch * n, setting.d_model or 0, setting.d_ff or 0
    weights, rest = d_model * d_ff, tokens * (d_model + d_ff)
    moved = moved_bytes(setting, weights=weights, rest=rest)
    return unpadded_work(2 * tokens * weights, moved, basis)


def dense_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of an up and a down projection (paper, sec. 3.2): 4 b N d_model d_ff FLOPs.

    A gated FFN has a third projection, whose output multiplies that of the first. torch reports no
    padding, so executed and logical FLOPs are the same.
    """
    tokens, d_model, d_ff = setting.batch * n, setting.d_model or 0, setting.d_ff or 0
    matrices, between = (_GATED_MATRICES, 6) if setting.gated else (2, 2)
    weights, rest = matrices * d_model * d_ff, tokens * (2 * d_model + between * d_ff)
    moved = moved_bytes(setting, weights=weights, rest=rest)
    return unpadded_work(2 * tokens * weights, moved, basis)


def idle_compute(setting: Setting, balance: float, *, extended: bool = True) -> float:
    """Return N_idle = rho s / (2 b), where AI(N) = 2 b N / s meets rho (paper, sec. 3.2).

    C(N) = 4 b N d_model d_ff and B(N) = 2 d_model d_ff s. Only weights count as traffic, so the
    number of matrices cancels: one product (`gemm`), an FFN of two and a gated one of three have
    the same N_idle, and the extended form equals the paper's. So s is that of stored weights.
    """
    del extended
    return balance * weight_bytes(setting) / (2 * setting.batch)


def principle_terms(
    setting: Setting,
    balance: float,
    granularity: Granularity | None = None,
    *,
    extended: bool = True,
) -> dict[str, float]:
    """Return the paper's law for a Dense FFN by itself: its idle-compute term (paper, sec. 4.1).

    The law's other term, M_attn, belongs to a model's attention and enters only there.
    """
    del granularity
    return {IDLE: idle_compute(setting, balance, extended=extended)}


LAWS = Laws(
    needs=("batch",),
    idle_fields=("batch", "weights"),
    idle_compute=idle_compute,
    idle_term=IDLE,
    idle_place="paper sec. 3.2",
    idle=Equation("N_idle = rho s / (2 b)", "sec. 3.2.1"),
    term_fields=("batch", "weights"),
    terms=principle_terms,
    principle_place="paper sec. 4.1",
    principle=Equation("N_max = rho s / (2 b)", "sec. 4.1"),
)
GEMM = ModuleKind(
    name="gemm",
    title="matrix product",
    several="products",
    knobs=(
        "batch (the boundary falls as 1 / b)",
        "hardware (it grows with rho = phi / beta)",
        "element type (through rho s)",
    ),
    own="batch",
    work=gemm_work,
    laws=LAWS,
)
"""One product, [rows, d_model] by [d_model, d_ff]. Its laws are those of a Dense FFN, since the
number of matrices cancels."""
DENSE_FFN = ModuleKind(
    name="dense_ffn",
    title="dense FFN",
    own="batch",
    main=True,
    study=DenseStudy,
    work=dense_work,
    laws=LAWS,
)
