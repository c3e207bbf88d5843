"""Prediction of a GGUF file's forward on a CPU before it runs: its rules, and T(N) by curves."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from nearfree.derive.granularity.engine import Change, EngineRules
from nearfree.derive.laws.engine_law import principle_of_engine
from nearfree.derive.predict.engine_answers import EngineTimed, timed_forward
from nearfree.derive.work_model.engine import (
    EngineCurve,
    covered_kernels,
    needed_kernels,
    shares_constants,
)
from nearfree.errors import NearfreeError

MOST_ROWS = 33
"""Largest number of rows b N up to which steps are listed."""
SHOWN_N = (1, 2, 4, 8, 16)
"""The N whose T(N) is shown."""


class EngineForecast(Struct, frozen=True, kw_only=True):
    """The prediction of one forward.

    `resolved` is the answer of `principle_resolved`. `changes` are the steps that rules name up to
    33 rows. `timed` is T(N) by the work model, None with a `refusal`.
    """

    rules: EngineRules
    resolved: dict[str, Any]
    changes: list[Change]
    timed: EngineTimed | None
    refusal: str | None

    def latency_us(self) -> dict[int, float]:
        """Return T(N) in microseconds at SHOWN_N; empty where the work model refuses."""
        timed = self.timed
        if timed is None:
            return {}
        by_n = dict(zip(timed.grid, timed.latency_us, strict=True))
        return {n: by_n[n] for n in SHOWN_N}


def engine_forecast(
    rules: EngineRules, platform: str, curves: Sequence[EngineCurve]
) -> EngineForecast:
    """Return the prediction of a forward from N = 1.

    The work model answers at the N up to 33 whose kernels ran in measured curves of such forwards;
    N = 1, 2, 4, 8 and 16 must be among them.

    Raises
    ------
    NearfreeError
        A rule is missing, or the CPU or a type has kernels that are not read.
    """
    all_kernels = needed_kernels(rules, range(1, MOST_ROWS + 1))
    usable = (curve for curve in curves if shares_constants(curve.rules, rules))
    measured_kernels = set().union(
        *(covered_kernels(rules, all_kernels, curve) for curve in usable)
    )
    grid = [
        n
        for n in range(1, MOST_ROWS + 1)
        if n in SHOWN_N or needed_kernels(rules, [n]) <= measured_kernels
    ]
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
