"""The state of a gated delta net: one matrix per head, which each new position reads and updates.

Each of H value heads has a state S [d_k, d_v]. A position decays S by a factor, subtracts the
stored value of its key k, S^T k, from its value v, adds the scaled difference,
S + k (rate (v - S^T k))^T, and reads S^T q (arXiv 2412.06464, eq. 10). Before it a convolution
spans a few positions of queries, keys and values.
"""

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, cache_bytes, element_bytes, unpadded_work

_FLOP_AN_ELEMENT = 7
"""FLOPs per element of S: its decay, and a multiply-add for each of S^T k, k v^T and S^T q."""
MATRICES, MIXED, HEADS = "matrices", "mixed", "values"


def state_elements(setting: Setting) -> dict[str, int]:
    """Return numbers of elements per request: all S, a position's q, k and v, and its values."""
    heads, keys = setting.heads or 0, setting.kv_heads or 0
    values, width = heads * (setting.value_dim or 0), setting.head_dim or 0
    return {MATRICES: values * width, MIXED: 2 * keys * width + values, HEADS: values}


def delta_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of N new positions of each request, with the state after each one stored.

    S is read once, and written once per position, so that drafts can be rejected from any position:
    N + 1 times its bytes. The convolution's last inputs are read, and written with the new ones.
    Inputs and outputs of the kernels count as well.
    Source: vllm 0.32.0, vllm/third_party/flash_linear_attention/ops/fused_sigmoid_gating.py:122-170
    (a state is stored at each position); sglang keeps them as intermediate_ssm beside its states
    (srt/mem_cache/memory_pool.py, MambaPool.SpeculativeState).
    """
    return state_work(setting, n, basis, flop_an_element=_FLOP_AN_ELEMENT)


def state_work(setting: Setting, n: int, basis: str, *, flop_an_element: int) -> ExecutedWork:
    """Return the work of a convolution and a pass over states that are stored at each position."""
    sizes, spanned = state_elements(setting), setting.conv or 0
    flop = n * (flop_an_element * sizes[MATRICES] + 2 * spanned * sizes[MIXED])
    windows = 2 * (spanned - 1) + n - 1
    rows_moved = sizes[MIXED] * (windows + 3 * n) + n * sizes[HEADS]
    moved = (n + 1) * sizes[MATRICES] * cache_bytes(setting) + rows_moved * element_bytes(setting)
    return unpadded_work(setting.batch * flop, setting.batch * moved, basis)


def state_knobs(key: str) -> tuple[str, ...]:
    """Return what moves the boundary of a kind that keeps a state, whose format a key names."""
    return (
        "batch (each request has states of its own)",
        f"format of the state ({key})",
        "tensor parallelism (the fewer heads a rank has, the smaller its states)",
    )


DELTA_NET = ModuleKind(
    name="delta_net",
    title="gated delta net",
    own="heads",
    work=delta_work,
    knobs=state_knobs("mamba_ssm_dtype"),
)
"""The paper has no law for it: its laws are for attention, whose cache is read and not written."""
