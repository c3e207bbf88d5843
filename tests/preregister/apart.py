"""Modules of small models as they were measured apart, with curves that are known."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from derive.tables.logs import make_take
from nearfree.config.model_studies import model_sweeps, uses
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.log.events import LatencyMeasured, Payload
from nearfree.preregister.composed import IsolatedModules
from whole_models import DENSE, curve, curves_of, model_study, small

GRID = (1, 2, 4, 8)
Times = Callable[[str, int], float]
"""Microseconds of a role at N."""


def modules_of(kind: str = DENSE, **changes: Any) -> tuple[ModuleUse, ...]:
    """Return the modules of the first setting of a small model's study."""
    model = small(kind)
    return uses(model_sweeps(model_study(kind, **changes), model)[0].setting, model)


def measured(*payloads: Payload) -> IsolatedModules:
    """Return the modules that these payloads of a take describe."""
    return IsolatedModules(make_take(*payloads))


def timed(
    modules: Iterable[ModuleUse], us: Times, *more: Payload, baseline: int = 1
) -> IsolatedModules:
    """Return modules whose T(N) a function gives."""
    return measured(*curves_of(modules, us, GRID, baseline=baseline), *more)


def by_round(use: ModuleUse, times: dict[int, Sequence[float]]) -> list[LatencyMeasured]:
    """Return the visits of a module whose time differs by N and round."""
    return curve(use.setting, times)


def knee(at: int) -> Callable[[int], float]:
    """Return a factor that is one up to some N, and then rises with N."""
    return lambda n: max(1.0, n / at)
