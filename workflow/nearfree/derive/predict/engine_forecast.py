"""What a GGUF file's forward costs on a CPU before it is run: its rules, and T(N) by curves."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from nearfree.derive.granularity.engine import Change, EngineRules
from nearfree.derive.laws.engine_law import principle_of_engine
from nearfree.derive.predict.engine_answers import EngineTimed, timed_forward
from nearfree.derive.work_model.engine import EngineCurve, alike, covered, kernels
from nearfree.errors import NearfreeError

MOST_ROWS = 33
"""Rows b N up to which steps are listed."""
TOLD = (1, 2, 4, 8, 16)
"""The N whose T(N) is told."""


class EngineForecast(Struct, frozen=True, kw_only=True):
    """What is said of one forward.

    `resolved` is the answer of `principle_resolved`, `changes` are the steps that rules name up to
    33 rows; `timed` is T(N) by the work model, None with a `refusal`.
    """

    rules: EngineRules
    resolved: dict[str, Any]
    changes: list[Change]
    timed: EngineTimed | None
    refusal: str | None

    def latency_us(self) -> dict[int, float]:
        """Return T(N) in microseconds at the N that are told; none without the work model."""
        timed = self.timed
        if timed is None:
            return {}
        every = dict(zip(timed.grid, timed.latency_us, strict=True))
        return {n: every[n] for n in TOLD}


def engine_forecast(
    rules: EngineRules, platform: str, curves: Sequence[EngineCurve]
) -> EngineForecast:
    """Return what is said of a forward from N = 1.

    The work model answers over the N up to 33 whose kernels curves of such forwards ran; N = 1, 2,
    4, 8 and 16 must be among them.

    Raises
    ------
    NearfreeError
        A rule is missing, or the CPU or a type has kernels that are not read.
    """
    every = kernels(rules, range(1, MOST_ROWS + 1))
    usable = (curve for curve in curves if alike(curve.rules, rules))
    ran = set().union(*(covered(rules, every, curve) for curve in usable))
    grid = [n for n in range(1, MOST_ROWS + 1) if n in TOLD or kernels(rules, [n]) <= ran]
    timed, refusal = None, None
    try:
        timed = timed_forward(rules, grid, platform, curves)
    except NearfreeError as error:
        refusal = str(error)
    return EngineForecast(
        rules=rules,
        resolved=principle_of_engine(rules, 1, MOST_ROWS),
        changes=rules.changes(MOST_ROWS // rules.forward.batch),
        timed=timed,
        refusal=refusal,
    )
