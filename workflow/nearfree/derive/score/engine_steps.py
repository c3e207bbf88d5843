"""What curves of engines have beyond the work model and the rules: steps without a name."""

import polars as pl
from msgspec import Struct

from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.engine_answers import MODULE
from nearfree.derive.truth.truth import Truth, questions
from nearfree.derive.work_model.engine_steps import UnnamedStep, unnamed_steps


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
