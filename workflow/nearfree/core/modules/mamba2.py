"""The state of a Mamba-2 mixer: one matrix per head, which each new position decays and adds to.

Each of H heads has a state S [p, s]. A position has x [p] and a step d per head, and B and C [s]
per group of heads. It multiplies S by exp(A d), adds x (d B)^T, and reads S C (arXiv 2405.21060,
eq. 16 with a scalar A). Before it a convolution spans a few positions of x, B and C. In a setting
`kv_heads` are the groups, `head_dim` is s and `value_dim` is p. The bytes moved equal those of a
gated delta net of these sizes.
"""

from nearfree.core.modules.delta_net import state_knobs, state_work
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork

_FLOP_AN_ELEMENT = 5
"""FLOPs per element of S: its decay, and a multiply-add for each of x (d B)^T and S C."""


def mamba2_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of N new positions of each request, with the state after each one stored.

    S is read once, and written once per position, so that drafts can be rejected from any position.
    Source: vllm 0.33.0, vllm/model_executor/layers/mamba/ops/mamba_ssm.py:393-447 (a state is
    stored at each position) and mamba_mixer2.py:949-1106; sglang keeps them beside its states
    (srt/mem_cache/memory_pool.py, MambaPool.SpeculativeState).
    """
    return state_work(setting, n, basis, flop_an_element=_FLOP_AN_ELEMENT)


MAMBA2 = ModuleKind(
    name="mamba2",
    title="Mamba-2 state",
    own="heads",
    work=mamba2_work,
    knobs=state_knobs("mamba_ssm_cache_dtype"),
)
"""The paper has no law for it, as for a gated delta net."""
