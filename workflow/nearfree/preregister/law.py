"""The paper's law with the granularity that the modules' own runs counted (paper, sec. 4).

Dense models: N = min(rho s / 2 b, M_attn); MoE, balanced: min(M_moe E / (b k), tau / b, M_attn),
skewed: min(M_moe / b, tau / b, M_attn). It has no L, and no time: no measured latency enters it.
"""

from collections.abc import Iterator, Sequence

from nearfree.core.modules.kind import Granularity
from nearfree.core.modules.moe_ffn import VALIDITY
from nearfree.core.modules.registry import kind_of
from nearfree.core.work import ExecutedWork
from nearfree.decoders.modules import ModuleUse
from nearfree.errors import EvidenceError
from nearfree.preregister.composed import Composed
from nearfree.preregister.isolated_modules import Apart

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
    """Yield the value of each term of a module's law, its role and its name."""
    laws = kind_of(use.setting).laws
    if laws is None:
        return
    granularity, until = (None, "") if laws.letter is None else _counted(use, apart.work(use))
    terms = laws.terms(use.setting, balance_flop_per_byte, granularity, extended=True)
    for name, value in terms.items():
        yield value, use.role, f"{name}{until}" if name == VALIDITY else name


def _counted(use: ModuleUse, counted: dict[int, ExecutedWork]) -> tuple[Granularity, str]:
    """Return the granularity at the smallest N that was run, and what says how far it holds.

    Where heads share a tile there are fewer blocks than heads, and fewer positions in each.
    """
    first = counted[min(counted)] if counted else None
    if first is None or first.block_rows is None:
        raise EvidenceError(
            f"the run of {use.role} counted no block or tile",
            remedy="Choose a backend whose adapter tells its granularity",
        )
    rows, batch = first.block_rows, use.setting.batch
    if use.setting.heads:
        heads = use.setting.heads * batch
        return Granularity(rows=rows * (first.blocks or heads) / heads), ""
    changed = [n for n, work in counted.items() if work.block_rows != rows]
    if not changed:
        return Granularity(rows=rows), ""
    last = max(n for n in counted if n < min(changed))
    until = f", by the last N that was run with blocks of {rows},"
    return Granularity(rows=rows, until=batch * last), until
