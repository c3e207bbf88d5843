"""Three ways from isolated modules to a model's boundary: two compose curves, the third is a law.

The time-weighted sum adds T(N) of every module, as often as a forward runs it. The minimum is the
paper's rule (sec. 4): the smallest boundary of attention and the FFN, each by itself.

The law takes the granularity that the modules' own runs counted. Dense models: N = min(rho s / 2 b,
M_attn); MoE, balanced: min(M_moe E / (b k), tau / b, M_attn), skewed: min(M_moe / b, tau / b,
M_attn). It has no L, and no time: no measured latency enters it.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from nearfree.core.boundary import Boundary, boundary, median, ratios
from nearfree.core.modules.kind import Granularity
from nearfree.core.modules.moe_ffn import VALIDITY
from nearfree.core.modules.registry import kind_of
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.decoders.modules import ModuleUse
from nearfree.errors import EvidenceError
from nearfree.log.curves import curve_samples, curves
from nearfree.log.events import LatencyMeasured, WorkCounted
from nearfree.log.evidence import Take

Rounds = dict[int, dict[int, float]]
"""Microseconds by N and round."""


class IsolatedModules:
    """The newest take of a model's modules.

    Its rounds visit every point of every module, so that the modules of one round can be summed.
    """

    def __init__(self, take: Take) -> None:
        self.name = str(take.name)
        self._rounds = {curve.setting: curve_samples(curve).rounds for curve in curves([take])}
        self._warm = {e.data.setting for e in take.of(LatencyMeasured) if e.data.cache == "warm"}
        self._work: dict[Setting, dict[int, ExecutedWork]] = {}
        for event in take.of(WorkCounted):
            self._work.setdefault(event.data.setting, {})[event.data.n] = event.data.work

    @property
    def dtype(self) -> str:
        """The element type that the machine really used."""
        return next(iter(self._rounds)).dtype

    def rounds(self, use: ModuleUse) -> Rounds:
        """Return a module's T(N), run once; EvidenceError if it was not measured."""
        if use.setting not in self._rounds:
            raise EvidenceError(
                f"{use.role} was not measured apart", remedy="Measure the modules of this study"
            )
        return self._rounds[use.setting]

    def has(self, use: ModuleUse) -> bool:
        """Return whether a module was measured."""
        return use.setting in self._rounds

    def evidence(self, uses: Sequence[ModuleUse]) -> str:
        """Return the take, and which modules read their weights or keys from a warm cache."""
        warm = [use.role for use in uses if use.setting in self._warm]
        return f"{self.name}; from a warm cache: {', '.join(warm)}" if warm else self.name

    def work(self, use: ModuleUse) -> dict[int, ExecutedWork]:
        """Return what a module's kernels execute, by N."""
        return self._work.get(use.setting, {})


SUM, MINIMUM, LAW = "modules_sum", "modules_minimum", "principle_counted"


class Composed(Struct, frozen=True, kw_only=True):
    """A model's boundary as its modules say it, and which of them limits it.

    `margin` is how far beyond it the next N would be: T(N) over T(baseline) for the sum, for the
    minimum the next smallest module boundary over the smallest. `curve` is T(N) in microseconds
    where there is one.
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
    """Return the boundary of the sum of all modules' times, each as often as it runs.

    The sum is taken round by round, so that its ratios have an interval as a measured curve's. What
    limits is the module whose time grows most from the baseline to the N after the boundary.

    Raises
    ------
    EvidenceError
        A module was not measured apart, or without the baseline.
    """
    parts = [(use, modules.rounds(use)) for use in uses]
    total = _total(parts)
    result = boundary(ratios(total, baseline), epsilon, baseline)
    after = result.next_n or max(total)
    curve = {n: median(list(by_round.values())) for n, by_round in total.items()}
    grown = {use.role: use.count * (_at(r, after) - _at(r, baseline)) for use, r in parts}
    role = max(grown, key=lambda name: grown[name])
    return Composed(
        n_max=result.last_pass,
        low=result.low,
        high=result.high,
        limiting_module=role,
        limiting_term=f"{grown[role]:.0f} of the {curve[after] - curve[baseline]:.0f} us by which "
        f"the sum grows from N = {baseline} to {after}",
        margin=curve[after] / curve[baseline],
        curve=curve,
    )


def by_minimum(
    uses: Sequence[ModuleUse], modules: IsolatedModules, baseline: int, epsilon: float
) -> Composed:
    """Return the smallest boundary of the modules that the paper's law speaks of.

    Raises
    ------
    EvidenceError
        A module was not measured apart, or without the baseline.
    """
    by_role: dict[str, Boundary] = {
        use.role: boundary(ratios(modules.rounds(use), baseline), epsilon, baseline)
        for use in uses
        if use.main
    }
    role, *others = sorted(by_role, key=lambda name: by_role[name].last_pass)
    least = by_role[role].last_pass
    listed = ", ".join(f"{name} {limit.last_pass}" for name, limit in by_role.items())
    return Composed(
        n_max=least,
        low=min(limit.low for limit in by_role.values()),
        high=min(limit.high for limit in by_role.values()),
        limiting_module=role,
        limiting_term=f"the smallest of {listed}",
        margin=min((by_role[name].last_pass / least for name in others), default=None),
    )


def _total(parts: Sequence[tuple[ModuleUse, Rounds]]) -> Rounds:
    """Return the sum of modules' times by N and round, where every module has both."""
    first = parts[0][1]
    summed = {
        n: {
            number: sum(use.count * rounds[n][number] for use, rounds in parts)
            for number in first[n]
            if all(number in rounds.get(n, {}) for _, rounds in parts)
        }
        for n in first
    }
    return {n: by_round for n, by_round in summed.items() if by_round}


def _at(rounds: Rounds, n: int) -> float:
    return median(list(rounds[n].values()))


def by_law(
    uses: Sequence[ModuleUse], modules: IsolatedModules, baseline: int, balance_flop_per_byte: float
) -> Composed:
    """Return the smallest term of the law, rounded down.

    Raises
    ------
    EvidenceError
        A module's run counted no block or tile.
    """
    terms = [
        term for use in uses if use.main for term in _terms(use, modules, balance_flop_per_byte)
    ]
    value, role, equation = min(terms)
    nearest = min((other for other, name, _ in terms if name != role), default=None)
    least = max(int(value), baseline)
    return Composed(
        n_max=least,
        low=least,
        high=least,
        limiting_module=role,
        limiting_term=f"{equation} = {value:.4g}",
        margin=None if nearest is None else nearest / value,
    )


def _terms(
    use: ModuleUse, modules: IsolatedModules, balance_flop_per_byte: float
) -> Iterator[tuple[float, str, str]]:
    """Yield the value of each term of a module's law, its role and its name."""
    laws = kind_of(use.setting).laws
    if laws is None:
        return
    granularity, until = (None, "") if laws.letter is None else _counted(use, modules.work(use))
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
