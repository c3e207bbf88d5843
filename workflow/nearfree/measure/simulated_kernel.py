"""A setting on a simulated machine: T(N) as its curve file says, and nothing is computed."""

from collections.abc import Iterable
from typing import Any, Literal

from nearfree.core.modules.registry import kind_of
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.hardware.simulated import Curve, Machine


class SimulatedKernel:
    """One setting; EvidenceError if the machine has no curve of it, or none at one of its N.

    Weights and keys are read from memory, as the predictor has it.
    """

    cache: Literal["cold", "warm"] = "cold"

    def __init__(self, setting: Setting, positions: Iterable[int], machine: Machine) -> None:
        self.setting = setting
        self._parts = machine.parts(setting)
        self._latency_us = {n: self._sum(n, machine) for n in positions}

    def _sum(self, n: int, machine: Machine) -> float:
        return sum(count * machine.at(curve, n) for count, curve in self._parts)

    def latency_us(self, n: int) -> float:
        """Return T(N) without noise, in microseconds."""
        return self._latency_us[n]

    def forward(self, n: int) -> Any:  # noqa: ARG002 (any N is the same nothing)
        """Compute nothing."""
        return None

    def work(self, n: int) -> ExecutedWork:
        """Return what the real kernels would execute, as far as the curves say.

        Keys that only fill a tile, splits of the keys, and tiles over SMs are not counted.
        """
        works = [(count, _work(curve, n)) for count, curve in self._parts]
        if self.setting.module != "model":
            return works[0][1]
        return ExecutedWork(
            flop_logical=sum(work.flop_logical * count for count, work in works),
            flop_executed=sum(work.flop_executed * count for count, work in works),
            bytes_compulsory=sum(work.bytes_compulsory * count for count, work in works),
            basis=f"simulated: the sum of {len(works)} kinds of modules",
        )


def _work(curve: Curve, n: int) -> ExecutedWork:
    setting, place = curve.setting, curve.n.index(n)
    basis = f"simulated: {curve.release or setting.backend}"
    rows = curve.block_rows[place] if curve.block_rows else None
    group = curve.rows_per_position[place] if curve.rows_per_position else 1
    return kind_of(setting).executed(setting, n, basis, rows=rows, group=group)
