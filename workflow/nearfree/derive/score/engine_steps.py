"""What curves of engines have beyond the work model and the rules: steps without a name.

Named is an N at which some matrix takes another path or another number of passes than before.
"""

from collections.abc import Collection, Mapping
from itertools import pairwise
from math import hypot

import polars as pl
from msgspec import Struct

from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.engine_answers import MODULE
from nearfree.derive.truth.truth import Truth, questions

TOLERATED = 0.15
"""Of T(1): by what T may rise more than the work model's before the rise is listed."""


class UnnamedStep(Struct, frozen=True, kw_only=True):
    """A rise of T to N that is above the model's by a share of T(1), and that no rule names.

    `since` is the N of the grid that it rises from; `sure` says whether it is above that share
    even at the lower end of its interval.
    """

    n: int
    excess: float
    since: int
    sure: bool = True


def unnamed_steps(
    curve: Mapping[int, float],
    model: Mapping[int, float],
    steps: Collection[int],
    half_widths: Mapping[int, float] | None = None,
) -> list[UnnamedStep]:
    """Return every N to which T rises by more than the model's, by over 15 % of T at the least N.

    Parameters
    ----------
    curve, model
        T(N) by N, measured and as the work model says it, in one unit; N that one of them lacks are
        left out.
    steps
        The N at which a rule names a step: a rise has that of any N past the one before.
    half_widths
        Of the intervals of T(N), by N, in the same unit; those of two N are taken for independent.
        Without them every rise is sure.
    """
    grid, halves = sorted({*curve} & {*model}), half_widths or {}
    found = []
    for before, n in pairwise(grid):
        excess = (curve[n] - curve[before] - (model[n] - model[before])) / curve[grid[0]]
        if excess <= TOLERATED or any(before < step <= n for step in steps):
            continue
        half = hypot(halves.get(before, 0.0), halves.get(n, 0.0)) / curve[grid[0]]
        sure = excess - half > TOLERATED
        found.append(UnnamedStep(n=n, excess=excess, since=before, sure=sure))
    return found


class CurveSteps(Struct, frozen=True, kw_only=True):
    """The unnamed steps of a curve of an engine, in words what curve it is.

    `in_sample` says whether the model was fitted to the curve.
    """

    curve: str
    in_sample: bool
    steps: list[UnnamedStep]


def curve_steps(known: Truth, answerer: Answerer) -> list[CurveSteps]:
    """Return the unnamed steps of every curve of an engine whose T(N) is predicted.

    Curve and model are compared as T(N) / T(baseline), so that a level that is off is none.
    """
    asked = questions(known).filter(pl.col("module") == MODULE)
    if asked.is_empty():
        return []
    about = {row["asked"]: row for row in asked.to_dicts()}
    half = (pl.col("ratio_high") - pl.col("ratio_low")) / 2
    found = []
    for curve, timed in answerer.engine_forwards(asked).timed().items():
        points = known.ratios.filter(pl.col("curve") == curve)
        model = dict(zip(timed.grid, timed.ratio[0].tolist(), strict=True))
        steps = unnamed_steps(
            dict(points.select("n", "ratio").iter_rows()),
            model,
            timed.rules.stepped(timed.grid[-1]),
            dict(points.select("n", half).iter_rows()),
        )
        found.append(
            CurveSteps(
                curve=_named(about[curve]), in_sample=timed.calibration.in_sample, steps=steps
            )
        )
    return found


def _named(row: dict[str, object]) -> str:
    order = "" if row["repack"] else " not repacked"
    return (
        f"{row['model']} {row['file_type']}{order}, {row['backend']} {row['release']}, "
        f"b = {row['batch']}, L = {row['context']}, threads = {row['threads']}, {row['platform']}"
    )
