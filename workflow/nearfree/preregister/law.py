"""The paper's law with the granularity that the modules' own runs counted (paper, sec. 4).

Dense models: N = min(rho s / 2 b, M_attn); MoE, balanced: min(M_moe E / (b k), tau / b, M_attn),
skewed: min(M_moe / b, tau / b, M_attn). It has no L, and no time: no measured latency enters it.
"""

from collections.abc import Iterator, Sequence

from nearfree.core.work import ExecutedWork
from nearfree.decoders.modules import ModuleUse
from nearfree.errors import EvidenceError
from nearfree.preregister.composed import Composed
from nearfree.preregister.isolated_modules import Apart
from nearfree.units import BYTES_PER_ELEMENT

LAW = "principle_counted"


def by_law(
    uses: Sequence[ModuleUse], apart: Apart, baseline: int, balance_flop_per_byte: float
) -> Composed:
    """Return the smallest term of the law, rounded down.

    Raises
    ------
    EvidenceError
        A module's run counted no block or tile.
    """
    terms = [term for use in uses if use.main for term in _terms(use, apart, balance_flop_per_byte)]
    value, role, said = min(terms)
    others = sorted(other for other, name, _ in terms if name != role)
    least = max(int(value), baseline)
    return Composed(
        n_max=least,
        low=least,
        high=least,
        limiting_module=role,
        limiting_term=f"{said} = {value:.4g}",
        margin=others[0] / value if others else None,
    )


def _terms(
    use: ModuleUse, apart: Apart, balance_flop_per_byte: float
) -> Iterator[tuple[float, str, str]]:
    setting, batch = use.setting, use.setting.batch
    if setting.module == "dense_ffn":
        size = BYTES_PER_ELEMENT[setting.dtype]
        yield balance_flop_per_byte * size / (2 * batch), use.role, "rho s / 2 b"
        return
    counted = apart.work(use)
    rows = _block_rows(use, counted)
    if setting.module == "attention":
        # Packed heads share a tile: there are fewer blocks than heads, and fewer positions in each.
        heads = (setting.heads or 1) * batch
        yield rows * (counted[min(counted)].blocks or heads) / heads, use.role, "M_attn"
        return
    experts, top_k = setting.experts or 1, setting.top_k or 1
    if setting.routing == "balanced":
        yield rows * experts / (batch * top_k), use.role, "M_moe E / (b k)"
    else:
        yield rows / batch, use.role, "M_moe / b"
    changed = [n for n, work in counted.items() if work.block_rows != rows]
    if changed:
        last = max(n for n in counted if n < min(changed))
        yield last, use.role, f"tau / b, by the last N that was run with blocks of {rows},"


def _block_rows(use: ModuleUse, counted: dict[int, ExecutedWork]) -> int:
    """Return the rows of a block or tile at the smallest N that was run."""
    rows = counted[min(counted)].block_rows if counted else None
    if rows is None:
        raise EvidenceError(
            f"the run of {use.role} counted no block or tile",
            remedy="Choose a backend whose adapter tells its granularity",
        )
    return rows
