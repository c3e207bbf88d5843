"""Two ways in which the curves of modules compose to a model's boundary.

The time-weighted sum adds T(N) of every module, as often as a forward runs it. The minimum is the
paper's rule (sec. 4): the smallest boundary of attention and the FFN, each by itself.
"""

from collections.abc import Sequence

from msgspec import Struct

from nearfree.core.boundary import Boundary, boundary, median, ratios
from nearfree.decoders.modules import ModuleUse
from nearfree.preregister.isolated_modules import Apart, Rounds

SUM, MINIMUM = "modules_sum", "modules_minimum"


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


def by_sum(uses: Sequence[ModuleUse], apart: Apart, baseline: int, epsilon: float) -> Composed:
    """Return the boundary of the sum of all modules' times, each as often as it runs.

    The sum is taken round by round, so that its ratios have an interval as a measured curve's. What
    limits is the module whose time grows most from the baseline to the N after the boundary.

    Raises
    ------
    EvidenceError
        A module was not measured apart, or without the baseline.
    """
    parts = [(use, apart.rounds(use)) for use in uses]
    total = _total(parts)
    found = boundary(ratios(total, baseline), epsilon, baseline)
    after = found.next_n or max(total)
    curve = {n: median(list(by_round.values())) for n, by_round in total.items()}
    grown = {use.role: use.count * (_at(r, after) - _at(r, baseline)) for use, r in parts}
    role = max(grown, key=lambda each: grown[each])
    return Composed(
        n_max=found.last_pass,
        low=found.low,
        high=found.high,
        limiting_module=role,
        limiting_term=f"{grown[role]:.0f} of the {curve[after] - curve[baseline]:.0f} us by which "
        f"the sum grows from N = {baseline} to {after}",
        margin=curve[after] / curve[baseline],
        curve=curve,
    )


def by_minimum(uses: Sequence[ModuleUse], apart: Apart, baseline: int, epsilon: float) -> Composed:
    """Return the smallest boundary of the modules that the paper's law speaks of.

    Raises
    ------
    EvidenceError
        A module was not measured apart, or without the baseline.
    """
    each: dict[str, Boundary] = {
        use.role: boundary(ratios(apart.rounds(use), baseline), epsilon, baseline)
        for use in uses
        if use.main
    }
    role, *others = sorted(each, key=lambda name: each[name].last_pass)
    least = each[role].last_pass
    said = ", ".join(f"{name} {found.last_pass}" for name, found in each.items())
    return Composed(
        n_max=least,
        low=min(found.low for found in each.values()),
        high=min(found.high for found in each.values()),
        limiting_module=role,
        limiting_term=f"the smallest of {said}",
        margin=min((each[name].last_pass / least for name in others), default=None),
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
        if all(n in rounds for _, rounds in parts)
    }
    return {n: by_round for n, by_round in summed.items() if by_round}


def _at(rounds: Rounds, n: int) -> float:
    return median(list(rounds[n].values()))
