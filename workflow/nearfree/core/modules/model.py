"""A model's whole forward: its study, and its law, the smallest of its modules' terms."""

from typing import Annotated

from msgspec import Meta

from nearfree.core.modules import attention, dense_ffn, moe_ffn
from nearfree.core.modules.kind import Granularity, ModuleKind
from nearfree.core.modules.study import Axis, StudyBase
from nearfree.core.names import Name
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Interleaved
from nearfree.core.routing_names import ModelRouting, Routing
from nearfree.core.setting import Mask, Setting


class ModelStudy(StudyBase, frozen=True, kw_only=True, tag="model"):
    """A model's whole forward over batch sizes, contexts and k (paper, sec. 5).

    `model` is a file of models/. `backend` runs its attention and `moe` its routed experts. `top_k`
    overrides the file's own k. `apart` is the protocol of the isolated modules, from which the
    model's boundary is predicted.
    """

    model: Name
    context: Axis
    mask: Mask = "causal"
    moe: Name | None = None
    routing: Annotated[tuple[ModelRouting, ...], Meta(min_length=1)] | None = None
    top_k: Axis | None = None
    apart: Interleaved = Interleaved(rounds=9, forwards=1)


def ffn_setting(
    *,
    dtype: Dtype,
    batch: int,
    experts: int | None,
    top_k: int | None,
    routing: Routing | None,
    d_ff: int | None = None,
) -> Setting:
    """Return the setting of a model's FFN for its law; without experts it is dense."""
    kind = dense_ffn.DENSE_FFN if experts is None else moe_ffn.MOE_FFN
    return Setting(
        module=kind.name,
        backend="",
        dtype=dtype,
        batch=batch,
        experts=experts,
        top_k=top_k,
        routing=routing,
        d_ff=d_ff,
    )


def idle_compute(ffn: Setting, balance: float) -> float:
    """Return N_idle of a model's FFN in the paper's form (paper, sec. 3.2 and 3.3)."""
    law = moe_ffn.idle_compute if ffn.experts else dense_ffn.idle_compute
    return law(ffn, balance, extended=False)


def principle_terms(
    ffn: Setting,
    balance: float | None,
    m_moe: int | None,
    tau: int | None,
    m_attn: int | None,
) -> dict[str, float]:
    """Return the terms of a model's law: those of its FFN, and M_attn (paper, sec. 4.1 and 4.2).

    Parameters
    ----------
    balance
        rho in FLOP per byte, which a dense FFN needs.
    m_moe, tau
        Rows per expert block, and the last number of tokens with it; None for no limit.
    m_attn
        Positions per query tile; None for no limit.
    """
    terms: dict[str, float] = {}
    if ffn.experts is None and balance is not None:
        terms |= dense_ffn.principle_terms(ffn, balance)
    elif ffn.experts is not None and m_moe is not None:
        terms |= moe_ffn.principle_terms(ffn, 0.0, Granularity(rows=m_moe, until=tau))
    return terms if m_attn is None else {**terms, attention.M_ATTN: m_attn}


MODEL = ModuleKind(
    name="model", title="whole models", several="whole models", own="context", study=ModelStudy
)
"""It has no law of its own: the terms of its attention and its FFN compete."""
