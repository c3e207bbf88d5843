"""Leave one platform out: a platform's T(N) with constants fitted on all other platforms.

It measures how well the forms transfer to a platform without curves; the forms themselves were
chosen before.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import polars as pl
from msgspec import structs

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
    family_for_dtype,
    ratios_of,
)
from nearfree.derive.work_model.fit import Measured, band, fit
from nearfree.derive.work_model.prepare import Prepared, prepare
from nearfree.derive.work_model.samples import joined, parts, spread
from nearfree.public.curves import ImportedCurves

LEFT_OUT = "work_model_left_out"
"""The name of the prediction."""
_FAMILIES = {
    name: family_for_dtype(family, CALIBRATED_DTYPES[0]) for name, family in FAMILIES.items()
}
"""Families with the constants that curves of 16 bits determine."""
MOST = 40
"""Most curves per platform and family that are fitted, evenly spread over its settings."""
SCORED_SCHEMA = {
    **{name: ANSWERS_SCHEMA[name]
       for name in ("asked", "predictor", "epsilon", "n_max", "low", "high", "constants")},
    "in_sample": pl.Boolean,
}  # fmt: skip
"""The columns of an answer that scores read."""


class LeftOut:
    """The work model with constants fitted on all platforms but the question's own.

    A question without T(N) has no answer, which a score counts as refused.

    Parameters
    ----------
    curves
        The curves of all platforms; those of a question's platform are not fitted.
    facts
        phi, beta and the number of SMs, a row per platform and dtype.
    epsilon
        The tolerance of N_max: curves are fitted up to four times it.
    """

    def __init__(
        self, curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver, *, epsilon: float
    ) -> None:
        self._facts, self._resolver, self._epsilon = facts, resolver, epsilon
        samples: dict[str, dict[str, list[Measured]]] = {}
        for platform, family, sample in parts(curves, facts, resolver):
            samples.setdefault(family, {}).setdefault(platform, []).append(spread(sample, MOST))
        self._measured = {
            family: {platform: joined(measured) for platform, measured in by_platform.items()}
            for family, by_platform in samples.items()
        }
        self.fitted: Callable[[str, str], Fitted | None] = cache(self._without)
        """Returns a family's constants without a platform; None if no other one has curves."""

    def answers(
        self, questions: pl.DataFrame, epsilons: Sequence[float], predictors: Sequence[str]
    ) -> pl.DataFrame:
        """Return a row per answered question and tolerance, with the columns ANSWERED."""
        del predictors
        frames = [pl.DataFrame(schema=SCORED_SCHEMA)]
        for part, fitted, ratio in self._predicted(questions):
            text = f"{part.family.name} on every platform but the one asked of"
            text += f", at most {MOST} curves each" + (f"; {part.carried}" if part.carried else "")
            frames += [
                answers_at(part, ratio, epsilon, fitted.band, (LEFT_OUT, text))
                for epsilon in epsilons
            ]
        return pl.concat(frames)

    def ratios(self, questions: pl.DataFrame) -> pl.DataFrame:
        """Return T(N) / T(baseline) over each grid: asked, n, ratio."""
        return ratio_rows((part, ratio) for part, _, ratio in self._predicted(questions))

    def _without(self, family: str, platform: str) -> Fitted | None:
        others = {
            name: measured
            for name, measured in self._measured.get(family, {}).items()
            if name != platform
        }
        return _fit(_FAMILIES[family], others, self._epsilon) if others else None

    def _predicted(self, questions: pl.DataFrame) -> Iterator[tuple[Prepared, Fitted, Array]]:
        """Yield questions of one family, its constants, and T(N) / T(baseline), [rows, grid]."""
        rows = with_facts(questions, self._facts)
        for (platform,), platform_rows in rows.group_by("platform", maintain_order=True):
            for part in prepare(platform_rows, self._resolver):
                if not isinstance(part, Prepared):
                    continue
                fitted = self.fitted(part.family.name, str(platform))
                if fitted is not None:
                    yield part, part.fitted(fitted), ratios_of(part.family, fitted, part.features)


def _fit(family: Family, others: dict[str, Measured], epsilon: float) -> Fitted:
    together = joined(list(others.values()))
    # Cross-validate by two halves of the platforms: a fit per platform would take minutes.
    groups = [
        str(index % 2)
        for index, measured in enumerate(others.values())
        for _ in range(measured.counts.shape[0])
    ]
    fitted = fit(family, together, epsilon)
    return structs.replace(fitted, band=band(family, together, groups, epsilon))


def answers_at(
    part: Prepared, ratio: Array, epsilon: float, band: float | Array, labels: tuple[str, str]
) -> pl.DataFrame:
    """Return answers at a tolerance, with ANSWERED; `labels` are predictor and constants."""
    edges = boundaries(ratio, part.counts, epsilon, band)
    grid, rows = part.features["n"], np.arange(part.rows.height)
    indices = {"n_max": edges.last, "low": edges.low, "high": edges.high}
    predictor, constants = labels
    return part.rows.select(
        "asked",
        pl.lit(predictor).alias("predictor"),
        pl.lit(float(epsilon)).alias("epsilon"),
        *(pl.Series(name, grid[rows, index]) for name, index in indices.items()),
        pl.lit(constants).alias("constants"),
        pl.lit(value=False).alias("in_sample"),
    )
