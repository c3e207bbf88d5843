"""Leave one platform out: a platform's T(N) with constants fitted on all other platforms.

It says how well the forms carry over to a platform that no constant has seen; the forms themselves
were chosen before.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.laws.laws import ANSWERS_SCHEMA
from nearfree.derive.reference.answer import ratio_rows
from nearfree.derive.work_model.families import CALIBRATED_DTYPES, FAMILIES
from nearfree.derive.work_model.family import (
    Array,
    Family,
    Fitted,
    boundaries,
    ratios_of,
    told_in,
)
from nearfree.derive.work_model.fit import Measured, band, fit
from nearfree.derive.work_model.prepare import Prepared, prepare
from nearfree.derive.work_model.samples import joined, parts, spread
from nearfree.public.curves import ImportedCurves

LEFT_OUT = "work_model_left_out"
"""The name of the prediction."""
_OF_CURVES = {name: told_in(each, CALIBRATED_DTYPES[0]) for name, each in FAMILIES.items()}
"""Families with the constants that curves of 16 bits tell."""
MOST = 40
"""Curves of a platform and family that are fitted, evenly spread over its settings."""
ANSWERED = {
    **{name: ANSWERS_SCHEMA[name]
       for name in ("asked", "predictor", "epsilon", "n_max", "low", "high", "constants")},
    "in_sample": pl.Boolean,
}  # fmt: skip
"""What a score reads of an answer."""


class LeftOut:
    """The work model with constants fitted on all platforms but the one that is asked of.

    A question that no T(N) is known of has no answer, which a score counts as refused.

    Parameters
    ----------
    curves
        The curves of all platforms; those of the platform asked of are never fitted.
    facts
        phi, beta and the number of SMs, a row a platform and dtype.
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
        frames = [pl.DataFrame(schema=ANSWERED)]
        for part, fitted, ratio in self._predicted(asked):
            text = f"{part.family.name} on every platform but the one asked of"
            text += f", at most {MOST} curves each" + (f"; {part.carried}" if part.carried else "")
            frames += [
                judged(part, ratio, each, fitted.band, (LEFT_OUT, text)) for each in epsilons
            ]
        return pl.concat(frames)

    def ratios(self, asked: pl.DataFrame) -> pl.DataFrame:
        """Return T(N) / T(baseline) over each grid: asked, n, ratio."""
        return ratio_rows((part, ratio) for part, _, ratio in self._predicted(asked))

    def fitted(self, family: str, platform: str) -> Fitted | None:
        """Return a family's constants without a platform; None where no other one has curves."""
        key = family, platform
        if key not in self._fitted:
            others = {
                name: each
                for name, each in self._measured.get(family, {}).items()
                if name != platform
            }
            self._fitted[key] = _fit(_OF_CURVES[family], others, self._epsilon) if others else None
        return self._fitted[key]

    def _predicted(self, asked: pl.DataFrame) -> Iterator[tuple[Prepared, Fitted, Array]]:
        """Yield questions of one family, its constants, and T(N) / T(baseline), [rows, grid]."""
        rows = with_facts(asked, self._facts)
        for (platform,), mine in rows.group_by("platform", maintain_order=True):
            for part in prepare(mine, self._resolver):
                if not isinstance(part, Prepared):
                    continue
                fitted = self.fitted(part.family.name, str(platform))
                if fitted is not None:
                    yield part, part.fitted(fitted), ratios_of(part.family, fitted, part.features)


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


def judged(
    part: Prepared, ratio: Array, epsilon: float, band: float | Array, said: tuple[str, str]
) -> pl.DataFrame:
    """Return answers at a tolerance, those of ANSWERED; `said` are predictor and constants."""
    found = boundaries(ratio, part.counts, epsilon, band)
    grid, rows = part.features["grid"], np.arange(part.rows.height)
    places = {"n_max": found.last, "low": found.low, "high": found.high}
    predictor, constants = said
    return part.rows.select(
        "asked",
        pl.lit(predictor).alias("predictor"),
        pl.lit(float(epsilon)).alias("epsilon"),
        *(pl.Series(name, grid[rows, place]) for name, place in places.items()),
        pl.lit(constants).alias("constants"),
        pl.lit(value=False).alias("in_sample"),
    )
