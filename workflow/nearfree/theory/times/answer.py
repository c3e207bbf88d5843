"""The work model's answers: N_max with its interval, what limits it, and the ratios behind it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from nearfree.events.types import ConstantsCalibrated, Event
from nearfree.theory.resolve import Resolver
from nearfree.theory.times.constants import fitted
from nearfree.theory.times.evidence import rule_places
from nearfree.theory.times.family import Array, Places
from nearfree.theory.times.model import Boundaries, boundaries, ratios_of
from nearfree.theory.times.own import Own, said, with_own
from nearfree.theory.times.prepare import Prepared, Refused, prepare

PREDICTOR = "work_model"
_TERMS = {
    "gemm": "compute of padded rows against the weights' traffic",
    "moe_triton": "padded expert blocks and traffic between L2 and SMs",
    "moe_library": "padded expert blocks and traffic between L2 and SMs",
    "attention_prefill": "waves of query tiles",
    "attention_cached": "padded query tiles over the cache",
}


class Timed:
    """Questions whose T(N) is known, ready to be judged at any tolerance.

    Parameters
    ----------
    rows
        Questions with the facts of their platform.
    resolver
        The rules of releases.
    constants
        The newest calibration of each family.
    own
        Platforms' own constants, by family and platform; none where not given.
    """

    def __init__(
        self,
        rows: pl.DataFrame,
        resolver: Resolver,
        constants: Mapping[str, Event],
        own: Mapping[str, Mapping[str, Own]] | None = None,
    ) -> None:
        self._resolver, self._constants, self._own = resolver, constants, own or {}
        self._parts: list[tuple[Prepared, Array]] = []
        self._refused: list[pl.DataFrame] = []
        for part in prepare(rows, resolver):
            if isinstance(part, Refused):
                self._refused.append(part.rows)
            elif part.family.name not in constants:
                reason = pl.lit(f"no constants of {part.family.name} in the log")
                self._refused.append(part.rows.select("asked", reason.alias("refusal")))
            else:
                known = fitted(constants[part.family.name].data)
                ratio = ratios_of(part.family, known, part.features)
                self._parts.append((part, with_own(part, known, ratio, self._own)))

    def answers(self, epsilons: Sequence[float]) -> pl.DataFrame:
        """Return a row a question and tolerance, with the columns of an answer."""
        return pl.concat([*self._judged(epsilons), *self._refusals(epsilons)], how="diagonal")

    def ratios(self) -> pl.DataFrame:
        """Return T(N) / T(baseline) over the grid of every question: asked, n, ratio."""
        frames = [pl.DataFrame(schema={"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64})]
        for part, ratio in self._parts:
            lists = part.rows.select("asked", pl.col("grid").alias("n"))
            flat = pl.Series("ratio", ratio[part.counts], dtype=pl.Float64)
            frames.append(lists.explode("n").with_columns(flat))
        return pl.concat(frames)

    def _judged(self, epsilons: Sequence[float]) -> Iterator[pl.DataFrame]:
        for part, ratio in self._parts:
            event: ConstantsCalibrated = self._constants[part.family.name].data
            for epsilon in epsilons:
                found = boundaries(ratio, part.counts, epsilon, fitted(event))
                yield self._frame(part, ratio, found, epsilon)

    def _frame(
        self, part: Prepared, ratio: Array, found: Boundaries, epsilon: float
    ) -> pl.DataFrame:
        event, own = self._constants[part.family.name], said(self._own.get(part.family.name, {}))
        text = f"{event.data.family} on {', '.join(event.data.platforms)}"
        grid, rows = part.features["grid"], np.arange(part.rows.height)
        last = grid[rows, found.last]
        after = np.minimum(found.last + 1, part.counts.sum(axis=1) - 1)
        leaves = grid[rows, after].astype(int).tolist()
        places = rule_places(part.family, part.rows, leaves, self._resolver)
        return part.rows.select(
            "asked",
            pl.lit(PREDICTOR).alias("predictor"),
            pl.lit(float(epsilon)).alias("epsilon"),
            pl.Series("n_max", last),
            pl.Series("n_max_extended", last),
            pl.Series("low", grid[rows, found.low]),
            pl.Series("high", grid[rows, found.high]),
            pl.col("module").alias("limiting_module"),
            pl.Series("limiting_term", _terms(part, found.last, after), dtype=pl.String),
            pl.Series("evidence", places, dtype=pl.String),
            pl.lit(event.event_id).alias("calibration"),
            pl.Series("margin", ratio[rows, after] / (1.0 + epsilon)),
            pl.concat_str(pl.lit(text), own, ignore_nulls=True).alias("constants"),
            (pl.col("platform").is_in(event.data.platforms) | own.is_not_null()).alias("in_sample"),
            pl.lit(None, pl.String).alias("refusal"),
        )

    def _refusals(self, epsilons: Sequence[float]) -> Iterator[pl.DataFrame]:
        tolerances = pl.DataFrame({"epsilon": [float(each) for each in epsilons]})
        for rows in self._refused:
            yield rows.join(tolerances, how="cross").with_columns(
                pl.lit(PREDICTOR).alias("predictor"), pl.lit(value=False).alias("in_sample")
            )


def _terms(part: Prepared, last: Places, after: Places) -> list[str]:
    """Return what stops each row: a step of the rule, where block or tile change there."""
    rows = np.arange(part.rows.height)
    plain = _TERMS[part.family.name]
    for name, word in (("block_m", "BLOCK_SIZE_M"), ("tile_rows", "query tile")):
        sizes = part.features.get(name)
        if sizes is not None:
            before, then = sizes[rows, last].astype(int), sizes[rows, after].astype(int)
            return [plain if a == b else f"{word} {a} -> {b}"
                    for a, b in zip(before, then, strict=True)]  # fmt: skip
    return [plain] * len(rows)
