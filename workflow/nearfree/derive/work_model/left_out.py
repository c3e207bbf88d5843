"""Leave one platform out: a platform's T(N) with constants fitted on all other platforms.

It says how well the forms carry over to a platform that no constant has seen; the forms themselves
were chosen before.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Array, Family
from nearfree.derive.work_model.fit import Measured, band, fit
from nearfree.derive.work_model.model import Fitted, boundaries, ratios_of
from nearfree.derive.work_model.prepare import Prepared, prepare
from nearfree.derive.work_model.samples import joined, parts, spread
from nearfree.public.curves import ImportedCurves

LEFT_OUT = "work_model_left_out"
"""The name of the prediction."""
MOST = 40
"""Curves of a platform and family that are fitted, evenly spread over its settings."""
_ANSWERS = {
    "asked": pl.Int64,
    "predictor": pl.String,
    "epsilon": pl.Float64,
    "n_max": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "constants": pl.String,
    "in_sample": pl.Boolean,
}


class _Timed(NamedTuple):
    part: Prepared
    fitted: Fitted
    ratio: Array


class LeftOut:
    """The work model with constants fitted on all platforms but the one that is asked of.

    A question that no T(N) is known of has no answer, which a score counts as refused.

    Parameters
    ----------
    curves
        The curves of all platforms; those of the platform asked of are never fitted.
    facts
        phi, beta and the number of SMs, a row a platform and dtype.
    resolver
        The rules of releases.
    epsilon
        The tolerance up to four times whose N_max curves are fitted.
    """

    def __init__(
        self, curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver, *, epsilon: float
    ) -> None:
        self._facts, self._resolver, self._epsilon = facts, resolver, epsilon
        every: dict[str, dict[str, list[Measured]]] = {}
        for platform, family, sample in parts(curves, facts, resolver):
            every.setdefault(family, {}).setdefault(platform, []).append(spread(sample, MOST))
        self._measured = {
            family: {platform: joined(each) for platform, each in of.items()}
            for family, of in every.items()
        }
        self._fitted: dict[tuple[str, str], Fitted | None] = {}

    def answers(
        self, asked: pl.DataFrame, epsilons: Sequence[float], predictors: Sequence[str]
    ) -> pl.DataFrame:
        """Return a row an answered question and tolerance: what a score reads of an answer."""
        del predictors
        frames = [pl.DataFrame(schema=_ANSWERS)]
        for timed in self._timed(asked):
            frames += [_judged(timed, epsilon) for epsilon in epsilons]
        return pl.concat(frames)

    def ratios(self, asked: pl.DataFrame) -> pl.DataFrame:
        """Return T(N) / T(baseline) over each grid: asked, n, ratio."""
        frames = [pl.DataFrame(schema={"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64})]
        for part, _, ratio in self._timed(asked):
            flat = pl.Series("ratio", ratio[part.counts], dtype=pl.Float64)
            lists = part.rows.select("asked", pl.col("grid").alias("n"))
            frames.append(lists.explode("n").with_columns(flat))
        return pl.concat(frames)

    def fitted(self, family: str, platform: str) -> Fitted | None:
        """Return a family's constants without a platform; None where no other one has curves."""
        key = family, platform
        if key not in self._fitted:
            others = {
                name: each
                for name, each in self._measured.get(family, {}).items()
                if name != platform
            }
            self._fitted[key] = _fit(FAMILIES[family], others, self._epsilon) if others else None
        return self._fitted[key]

    def _timed(self, asked: pl.DataFrame) -> Iterator[_Timed]:
        rows = with_facts(asked, self._facts)
        for (platform,), mine in rows.group_by("platform", maintain_order=True):
            for part in prepare(mine, self._resolver):
                if not isinstance(part, Prepared):
                    continue
                fitted = self.fitted(part.family.name, str(platform))
                if fitted is not None:
                    yield _Timed(part, fitted, ratios_of(part.family, fitted, part.features))


def _fit(family: Family, others: dict[str, Measured], epsilon: float) -> Fitted:
    together = joined(list(others.values()))
    # Two halves of the platforms judge each other: a fit for each platform would take minutes.
    groups = [
        str(place % 2)
        for place, each in enumerate(others.values())
        for _ in range(each.counts.shape[0])
    ]
    found = fit(family, together, epsilon)
    return Fitted(
        family=found.family, values=found.values, band=band(family, together, groups, epsilon)
    )


def _judged(timed: _Timed, epsilon: float) -> pl.DataFrame:
    part, fitted, ratio = timed
    found = boundaries(ratio, part.counts, epsilon, fitted)
    grid, rows = part.features["grid"], np.arange(part.rows.height)
    text = f"{part.family.name} on every platform but the one asked of, at most {MOST} curves each"
    places = {"n_max": found.last, "low": found.low, "high": found.high}
    return part.rows.select(
        "asked",
        pl.lit(LEFT_OUT).alias("predictor"),
        pl.lit(float(epsilon)).alias("epsilon"),
        *(pl.Series(name, grid[rows, place]) for name, place in places.items()),
        pl.lit(text).alias("constants"),
        pl.lit(value=False).alias("in_sample"),
    )
