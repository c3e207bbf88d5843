"""A platform's modules as they were measured apart: T(N) by round, and what their kernels do."""

from collections.abc import Sequence

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
