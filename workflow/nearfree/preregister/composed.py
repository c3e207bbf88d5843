"""A model's boundary from its isolated modules, composed in three ways: two use curves, one a law.

The sum adds T(N) of every module, times the number of its runs per forward. The minimum is the
paper's rule (sec. 4): the smallest boundary of attention and the FFN, each by itself.

The law uses the granularity that the modules' own runs counted. Dense models: N = min(rho s / 2 b,
M_attn); MoE, balanced: min(M_moe E / (b k), tau / b, M_attn), skewed: min(M_moe / b, tau / b,
M_attn). It depends neither on L nor on any measured latency.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from nearfree.core.boundary import Boundary, boundary, median, ratios
from nearfree.core.modules.kind import Granularity
from nearfree.core.modules.moe_ffn import VALIDITY
from nearfree.core.modules.registry import kind_of
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.errors import EvidenceError
from nearfree.log.curves import curve_samples, curves
from nearfree.log.events import LatencyMeasured, WorkCounted
from nearfree.log.evidence import Take

Rounds = dict[int, dict[int, float]]
"""Microseconds by N and round."""


class IsolatedModules:
    """The newest take of a model's modules, each measured in isolation.

    Its rounds visit every point of every module, so that T(N) can be summed within a round.
    """

    def __init__(self, take: Take) -> None:
        self.name = str(take.name)
        self._rounds = {curve.setting: curve_samples(curve).rounds for curve in curves([take])}
        self._warm = {
            e.data.setting for e in take.events_of(LatencyMeasured) if e.data.cache == "warm"
        }
        self._work: dict[Setting, dict[int, ExecutedWork]] = {}
        for event in take.events_of(WorkCounted):
            self._work.setdefault(event.data.setting, {})[event.data.n] = event.data.work

    @property
    def dtype(self) -> str:
        """The element type of the measured modules."""
        return next(iter(self._rounds)).dtype

    def rounds(self, use: ModuleUse) -> Rounds:
        """Return T(N) of one run of a module; EvidenceError if it was not measured."""
        if use.setting not in self._rounds:
            raise EvidenceError(
                f"{use.role} was not measured in isolation",
                remedy="Measure the modules of this study",
            )
        return self._rounds[use.setting]

    def has(self, use: ModuleUse) -> bool:
        """Return whether a module was measured."""
        return use.setting in self._rounds

    def evidence(self, uses: Sequence[ModuleUse]) -> str:
        """Return the take's name, and the modules that read weights or keys from a warm cache."""
        warm = [use.role for use in uses if use.setting in self._warm]
        return f"{self.name}; from a warm cache: {', '.join(warm)}" if warm else self.name

    def work(self, use: ModuleUse) -> dict[int, ExecutedWork]:
        """Return the work that a module's kernels execute, by N."""
        return self._work.get(use.setting, {})


SUM, MINIMUM, LAW = "modules_sum", "modules_minimum", "principle_counted"


class Composed(Struct, frozen=True, kw_only=True):
    """A model's boundary composed from its modules, and the module that limits it.

    `margin` is, for the sum, T(N) / T(baseline) at the N after the boundary; for the minimum and
    the law, the next smallest module's value over the smallest. `curve` is T(N) in microseconds;
    the sum alone has one.
    """

    n_max: int
    low: int
    high: int
    limiting_module: str
    limiting_term: str
    margin: float | None
    curve: dict[int, float] = {}


def by_sum(
    uses: Sequence[ModuleUse], modules: IsolatedModules, baseline: int, epsilon: float
) -> Composed:
    """Return the boundary of the sum of all modules' times, each times its runs per forward.

    The sum is taken round by round, so that its ratios have an interval like a measured curve's.
    The limiting module is the one whose time grows most from the baseline to the N after the
    boundary. Raises EvidenceError if a module was not measured in isolation, or without the
    baseline.
    """
    parts = [(use, modules.rounds(use)) for use in uses]
    total = _summed_rounds(parts)
    result = boundary(ratios(total, baseline), epsilon, baseline)
    next_n = result.next_n or max(total)
    curve = {n: median(list(by_round.values())) for n, by_round in total.items()}
    growth_us = {
        use.role: use.count * (_median_us(rounds, next_n) - _median_us(rounds, baseline))
        for use, rounds in parts
    }
    role = max(growth_us, key=lambda name: growth_us[name])
    return Composed(
        n_max=result.last_pass,
        low=result.low,
        high=result.high,
        limiting_module=role,
        limiting_term=f"{growth_us[role]:.0f} of the {curve[next_n] - curve[baseline]:.0f} us "
        f"by which the sum grows from N = {baseline} to {next_n}",
        margin=curve[next_n] / curve[baseline],
        curve=curve,
    )


def by_minimum(
    uses: Sequence[ModuleUse], modules: IsolatedModules, baseline: int, epsilon: float
) -> Composed:
    """Return the smallest boundary of the model's main modules, attention and FFN.

    Raises EvidenceError if a module was not measured in isolation, or without the baseline.
    """
    by_role: dict[str, Boundary] = {
        use.role: boundary(ratios(modules.rounds(use), baseline), epsilon, baseline)
        for use in uses
        if use.main
    }
    role, *other_roles = sorted(by_role, key=lambda name: by_role[name].last_pass)
    n_max = by_role[role].last_pass
    limits = ", ".join(f"{name} {result.last_pass}" for name, result in by_role.items())
    return Composed(
        n_max=n_max,
        low=min(result.low for result in by_role.values()),
        high=min(result.high for result in by_role.values()),
        limiting_module=role,
        limiting_term=f"the smallest of {limits}",
        margin=min((by_role[name].last_pass / n_max for name in other_roles), default=None),
    )


def _summed_rounds(parts: Sequence[tuple[ModuleUse, Rounds]]) -> Rounds:
    """Return the sum of modules' times by N and round, where every module was timed."""
    first_rounds = parts[0][1]
    totals = {
        n: {
            number: sum(use.count * rounds[n][number] for use, rounds in parts)
            for number in first_rounds[n]
            if all(number in rounds.get(n, {}) for _, rounds in parts)
        }
        for n in first_rounds
    }
    return {n: by_round for n, by_round in totals.items() if by_round}


def _median_us(rounds: Rounds, n: int) -> float:
    return median(list(rounds[n].values()))


def by_law(
    uses: Sequence[ModuleUse], modules: IsolatedModules, baseline: int, balance_flop_per_byte: float
) -> Composed:
    """Return the smallest term of the law, rounded down.

    Raises EvidenceError if a module's run counted no block or tile.
    """
    terms = [
        term for use in uses if use.main for term in _law_terms(use, modules, balance_flop_per_byte)
    ]
    value, role, equation = min(terms)
    next_value = min((other for other, name, _ in terms if name != role), default=None)
    n_max = max(int(value), baseline)
    return Composed(
        n_max=n_max,
        low=n_max,
        high=n_max,
        limiting_module=role,
        limiting_term=f"{equation} = {value:.4g}",
        margin=None if next_value is None else next_value / value,
    )


def _law_terms(
    use: ModuleUse, modules: IsolatedModules, balance_flop_per_byte: float
) -> Iterator[tuple[float, str, str]]:
    """Yield the value of each term of a module's law, the module's role and the term's name."""
    laws = kind_of(use.setting).laws
    if laws is None:
        return
    granularity, validity = (
        (None, "") if laws.letter is None else _counted_granularity(use, modules.work(use))
    )
    terms = laws.terms(use.setting, balance_flop_per_byte, granularity, extended=True)
    for name, value in terms.items():
        yield value, use.role, f"{name}{validity}" if name == VALIDITY else name


def _counted_granularity(
    use: ModuleUse, work_by_n: dict[int, ExecutedWork]
) -> tuple[Granularity, str]:
    """Return the granularity at the smallest N that was run, and a text with its valid range.

    If heads share a tile there are fewer blocks than heads, and each holds fewer positions.
    """
    smallest = work_by_n[min(work_by_n)] if work_by_n else None
    if smallest is None or smallest.block_rows is None:
        raise EvidenceError(
            f"the run of {use.role} counted no block or tile",
            remedy="Choose a backend whose adapter reports its granularity",
        )
    rows, batch = smallest.block_rows, use.setting.batch
    if use.setting.heads:
        heads = use.setting.heads * batch
        return Granularity(rows=rows * (smallest.blocks or heads) / heads), ""
    changed_at = [n for n, work in work_by_n.items() if work.block_rows != rows]
    if not changed_at:
        return Granularity(rows=rows), ""
    last_n = max(n for n in work_by_n if n < min(changed_at))
    validity = f", by the last N that was run with blocks of {rows},"
    return Granularity(rows=rows, until=batch * last_n), validity
