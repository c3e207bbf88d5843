"""Unnamed steps of engines' curves: rises that neither the work model nor a rule explains.

A step is named where a rule says that some matrix changes its path or its number of passes at N.
"""

from collections.abc import Collection, Mapping
from itertools import pairwise
from math import hypot

import polars as pl
from msgspec import Struct

from nearfree.core.modules.engine import ENGINE
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.truth.truth import Truth, questions

TOLERATED = 0.15
"""Share of T(1) by which T may rise more than the work model's before the rise is listed."""


class UnnamedStep(Struct, frozen=True, kw_only=True):
    """A rise of T to N that exceeds the model's by over TOLERATED of T(1), and that no rule names.

    `excess` is in units of T(1). `since` is the N of the grid where the rise begins; `sure` says
    whether even the lower end of its interval exceeds TOLERATED.
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
    """Return the rises of T that exceed the model's by over 15 % of T at the smallest N.

    Parameters
    ----------
    curve, model
        T(N) by N, measured and predicted by the work model, in one unit; an N that one of them
        lacks is ignored.
    steps
        The N at which a rule names a step; one explains a rise if it lies beyond the rise's first N
        and not beyond its last.
    half_widths
        Half widths of the intervals of T(N), by N, in the same unit, taken to be independent.
        Without them every rise is sure.
    """
    grid, widths = sorted({*curve} & {*model}), half_widths or {}
    unnamed = []
    for previous, n in pairwise(grid):
        excess = (curve[n] - curve[previous] - (model[n] - model[previous])) / curve[grid[0]]
        if excess <= TOLERATED or any(previous < step <= n for step in steps):
            continue
        half = hypot(widths.get(previous, 0.0), widths.get(n, 0.0)) / curve[grid[0]]
        sure = excess - half > TOLERATED
        unnamed.append(UnnamedStep(n=n, excess=excess, since=previous, sure=sure))
    return unnamed


class CurveSteps(Struct, frozen=True, kw_only=True):
    """The unnamed steps of an engine's curve.

    `curve` describes the curve in words; `in_sample` says whether the model was fitted to it.
    """

    curve: str
    in_sample: bool
    steps: list[UnnamedStep]


def curve_steps(truth: Truth, answerer: Answerer) -> list[CurveSteps]:
    """Return the unnamed steps of every engine curve whose T(N) is predicted.

    Curve and model are compared as T(N) / T(baseline), so a wrong level makes no step.
    """
    queries = questions(truth).filter(pl.col("module") == ENGINE.name)
    if queries.is_empty():
        return []
    query_by_curve = {row["asked"]: row for row in queries.to_dicts()}
    half_width = (pl.col("ratio_high") - pl.col("ratio_low")) / 2
    result = []
    for curve, timed in answerer.engine_forwards(queries).timed().items():
        points = truth.ratios.filter(pl.col("curve") == curve)
        model = dict(zip(timed.grid, timed.ratio[0].tolist(), strict=True))
        steps = unnamed_steps(
            dict(points.select("n", "ratio").iter_rows()),
            model,
            timed.rules.step_positions(timed.grid[-1]),
            dict(points.select("n", half_width).iter_rows()),
        )
        result.append(
            CurveSteps(
                curve=_curve_name(query_by_curve[curve]),
                in_sample=timed.calibration.in_sample,
                steps=steps,
            )
        )
    return result


def _curve_name(row: dict[str, object]) -> str:
    order = "" if row["repack"] else " not repacked"
    return (
        f"{row['model']} {row['file_type']}{order}, {row['backend']} {row['release']}, "
        f"b = {row['batch']}, L = {row['context']}, threads = {row['threads']}, {row['platform']}"
    )
