"""MoE FFN: routed experts in padded row blocks (paper, sec. 3.3, 4.2, app. B.1 and C.3).

Under balanced routing all E experts are active, under skewed routing the same k. Under other
routings the setting does not determine the number of active experts, so they have no law.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from nearfree.core.modules.dense_ffn import DenseShape
from nearfree.core.modules.kind import Equation, Granularity, Laws, ModuleKind
from nearfree.core.modules.routing import active_experts, routed_pairs
from nearfree.core.modules.study import Axis, StudyBase
from nearfree.core.protocols import Positive
from nearfree.core.routing_names import Controlled
from nearfree.core.setting import Setting
from nearfree.core.setting_check import required
from nearfree.core.work import ExecutedWork, element_bytes, moved_bytes, weight_bytes
from nearfree.errors import EvidenceError

ETA = 2
"""Activation accesses per routed pair in the combine stage (paper, app. B.1)."""
_MATRICES, _GATED_MATRICES = 2, 3
"""Projections of an expert: up and down in the paper; gate, up and down if gated."""
SLACK, SKEWED_SLACK, VALIDITY = "M_moe E / (b k)", "M_moe / b", "tau / b"
TRITON_MOE = r"(?i)fused_moe|tritonexperts|^triton$"
OTHER_MOE = r"(?i)cutlass|marlin|trtllm|flashinfer|deep_?gemm|oaitriton|triton_kernel_moe|aiter|xpu"
"""Patterns of kernel names in sources of curves: Triton's fused MoE, and all other kernels."""
_PRINTED = {
    "vllm": ("tab:vllm-moe-block-size-m", {"bfloat16": 16, "float16": 16, "float8": 16}),
    "sglang": ("tab:sglang-moe-block-size-m", {"bfloat16": 16, "float16": 16, "float8": 64}),
}
"""The paper's table of an engine's M_moe, and M_moe by element type."""


class MoeShape(DenseShape, frozen=True, kw_only=True):
    """Widths of gated experts, and their number E."""

    experts: Positive


class MoeStudy(StudyBase, frozen=True, kw_only=True, tag="moe_ffn"):
    """An MoE FFN over k under controlled routing (paper, app. C.3)."""

    axes = ("routing", "batch", "top_k")
    shape: MoeShape
    routing: Annotated[tuple[Controlled, ...], Meta(min_length=1)]
    top_k: Axis
    block_size_m: Positive | None = None


class MoeQuestion(Struct, frozen=True, kw_only=True):
    """One fused-MoE layer on one platform; fields are named as columns of settings and facts."""

    backend: str
    backend_version: str | None
    kernel: str | None
    dtype: str
    weights: str | None = None
    d_model: int
    d_ff: int
    experts: int
    top_k: int
    ep: int = 1
    block_size_m: int | None
    sm: int | None
    device_name: str | None


def moe_work(
    setting: Setting,
    pairs: Sequence[int],
    basis: str,
    *,
    block_rows: int | None = None,
    blocks: int | None = None,
    columns: int | None = None,
    sms: int | None = None,
) -> ExecutedWork:
    """Return the work of experts over token-expert pairs in row blocks.

    Parameters
    ----------
    pairs
        Number of token-expert pairs of each local expert.
    block_rows
        M_moe: each expert's pairs are padded to a multiple of it; None without padding.
    blocks
        Number of blocks, if it differs from that of each expert's padded pairs.
    columns
        Columns per tile of the first projection on a GPU: [pairs, 2 d_ff], or [pairs, d_ff] for
        experts without a gate.
    sms
        Number of the GPU's SMs.
    """
    d_model, d_ff = setting.d_model or 0, setting.d_ff or 0
    rows = sum(pairs)
    if block_rows and blocks is None:
        blocks = sum(-(-count // block_rows) for count in pairs)
    padded = (blocks or 0) * block_rows if block_rows else rows
    matrices = _MATRICES if setting.gated is False else _GATED_MATRICES
    weights = matrices * sum(count > 0 for count in pairs) * d_model * d_ff
    tokens = -(-rows // (min(setting.top_k or 1, len(pairs)) or 1))
    moved = 2 * tokens * d_model + rows * (2 * d_model + 2 * matrices * d_ff)
    tiles = blocks * -(-(matrices - 1) * d_ff // columns) if blocks and columns else None
    return ExecutedWork(
        flop_logical=2 * matrices * rows * d_model * d_ff,
        flop_executed=2 * matrices * padded * d_model * d_ff,
        bytes_compulsory=moved_bytes(setting, weights=weights, rest=moved),
        blocks=blocks,
        block_rows=block_rows,
        tiles=tiles,
        waves=tiles / sms if tiles and sms else None,
        basis=basis,
    )


def _work(
    setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
) -> ExecutedWork:
    del group
    return moe_work(setting, rank_pairs(setting, n), basis, block_rows=rows)


def local_experts(experts: int, ep: int) -> int:
    """Return the largest number of whole experts on a rank, as `first_experts` distributes them."""
    return -(-experts // ep)


def first_experts(experts: int, ep: int) -> list[int]:
    """Return the index of each rank's first expert.

    Experts are distributed in order; the first ranks have one more if ep does not divide them.
    Source: determine_expert_map of vllm 0.33.0,
    vllm/model_executor/layers/fused_moe/expert_map_manager.py:66-76.
    """
    per_rank, extra = divmod(experts, ep)
    return [rank * per_rank + min(rank, extra) for rank in range(ep)]


def rank_pairs(setting: Setting, n: int) -> list[int]:
    """Return the number of token-expert pairs of each expert on the most loaded rank.

    Balanced routing is also even over ranks, as if each rank had every ep-th expert. Skewed routing
    uses the first k experts, which are on the first ranks.
    """
    pairs, experts = routed_pairs(setting, n), setting.experts or 0
    if setting.routing == "balanced":
        return pairs[:: setting.ep]
    return pairs[: local_experts(experts, setting.ep)]


def idle_compute(setting: Setting, balance: float, *, extended: bool = True) -> float:
    """Return N_idle, +inf if the layer stays memory-bound at any N (paper, sec. 3.3, app. B.1).

    N_idle = 2 rho s E_act d_ff / (b (4 k d_ff - rho s (1 + 3 k + eta k))) for the two matrices of
    the paper's experts; extended to the matrices m of gated experts, the 4 and 2 become 2 m and m.
    The first s is that of stored weights, the second that of activations. If whole experts are
    distributed over ep ranks, E_act and k are those of the most loaded rank.
    """
    top_k: float = setting.top_k or 0
    d_ff = setting.d_ff or 0
    gated = extended and setting.gated is not False
    matrices = _GATED_MATRICES if gated else _MATRICES
    active: float = active_experts(setting.routing, setting.experts or 0, setting.top_k or 0)
    if extended and setting.ep > 1:
        active, top_k = _at_rank(setting, active, top_k)
    moved, stored = balance * element_bytes(setting), balance * weight_bytes(setting)
    room = 2 * matrices * top_k * d_ff - moved * (1 + 3 * top_k + ETA * top_k)
    if room <= 0:
        return float("inf")
    return matrices * stored * active * d_ff / (setting.batch * room)


def _at_rank(setting: Setting, active: float, top_k: float) -> tuple[float, float]:
    """Return E_act and k of the most loaded of ep ranks."""
    local = local_experts(setting.experts or 0, setting.ep)
    if setting.routing == "balanced":
        return local, top_k * local / active
    return min(active, local), min(top_k, local)


def principle_terms(
    setting: Setting, balance: float, granularity: Granularity | None, *, extended: bool = True
) -> dict[str, float]:
    """Return the terms of the law of an MoE layer (paper, sec. 4.2).

    Balanced: M_moe E / (b k) positions fill the blocks of all experts, and tau / b keep the
    configuration. Skewed: M_moe / b fill those of k experts. In the paper's form b = 1.
    """
    del balance
    if granularity is None:
        raise EvidenceError("no M_moe is known", remedy="Give the rows of an expert block")
    batch = setting.batch if extended else 1
    experts, top_k = setting.experts or 0, setting.top_k or 1
    if setting.routing == "balanced":
        terms = {SLACK: granularity.rows * experts / (batch * top_k)}
    else:
        terms = {SKEWED_SLACK: granularity.rows / batch}
    if granularity.until is not None:
        terms[VALIDITY] = granularity.until / batch
    return terms


def is_triton_moe(kernel: str | None) -> bool:
    """Return whether a kernel's name is that of Triton's fused MoE; a missing name counts as it."""
    if kernel is None:
        return True
    return bool(re.search(TRITON_MOE, kernel)) and not re.search(OTHER_MOE, kernel)


def printed_granularity(setting: Setting, kernel: str | None = None) -> Granularity:
    """Return M_moe as the paper's tables print it: the block of the fallback rules.

    vLLM (up to 0.16) and SGLang use this block up to E tokens, so tau = E. For skewed routing the
    paper gives no tau.

    Raises
    ------
    EvidenceError
        The paper prints no M_moe for this backend, element type or kernel.
    """
    matches = (name for name in _PRINTED if f"{setting.backend}_".startswith(f"{name}_"))
    table, rows = _PRINTED.get(next(matches, ""), ("", {}))
    if setting.dtype not in rows or setting.weights not in (None, setting.dtype):
        stored = f" with {setting.weights} weights" if setting.weights else ""
        raise _unprinted(f"{setting.backend} for {setting.dtype}{stored}")
    if not is_triton_moe(kernel):
        raise _unprinted(f"the kernel {kernel}")
    experts = local_experts(setting.experts or 0, setting.ep)
    until = experts if setting.routing == "balanced" and setting.experts else None
    place = f"paper sec. 4.2, M_moe of {table}, tau = E"
    return Granularity(rows=rows[setting.dtype], until=until, place=place)


def _unprinted(case: str) -> EvidenceError:
    return EvidenceError(
        f"the paper prints no M_moe of {case}",
        remedy="Choose a backend, element type and kernel of the paper's tables",
    )


MOE_FFN = ModuleKind(
    name="moe_ffn",
    title="MoE FFN",
    several="MoE layers",
    knobs=(
        "backend and its version (M_moe and tau)",
        "tile (a tuned file of your own sets BLOCK_SIZE_M)",
        "top-k (fewer experts a token)",
        "routing (balanced wakes experts with each position; skewed fills the blocks of k alone)",
        "batch (b N tokens share the padding)",
        "hardware",
    ),
    own="top_k",
    main=True,
    routed=True,
    study=MoeStudy,
    padded_work=_work,
    laws=Laws(
        needs=required("moe_ffn"),
        idle_fields=("weights", "batch", "d_ff", "experts", "top_k", "ep", "routing", "gated"),
        idle_compute=idle_compute,
        idle_term="AI(N) = rho with E_act",
        idle_place="paper sec. 3.3, app. B.1",
        idle=Equation(
            "N_idle = 2 rho s E_act d_ff / (b (4 k d_ff - rho s (1 + 3 k + eta k))), unbounded "
            "where 4 k d_ff <= rho s (1 + 3 k + eta k)",
            "sec. 3.3.1 and app. B.1",
        ),
        term_fields=("weights", "batch", "experts", "top_k", "ep", "routing"),
        terms=principle_terms,
        principle_place="paper sec. 4.2",
        principle=Equation(
            "N_max = min(M_moe E / (b k), tau / b) if balanced, M_moe / b if skewed; the paper: "
            "b = 1",
            "sec. 4.2",
        ),
        letter="M_moe",
        printed=printed_granularity,
    ),
    question=MoeQuestion,
)
