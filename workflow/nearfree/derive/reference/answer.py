"""The work model's answers: N_max with its interval, its limit, and the ratios behind it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.core.predictors import WORK_MODEL
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.places import rule_places, stop_terms
from nearfree.derive.reference.record import RecordedReference, rows_of_bands
from nearfree.derive.reference.regimes import AT_ONE_POSITION, NEAREST_TEXT, R0, R2, R3, select_rows
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.collective import COLLECTIVE_FAMILIES
from nearfree.derive.work_model.constants import fitted
from nearfree.derive.work_model.family import (
    Array,
    Fitted,
    Flags,
    Integers,
    boundaries,
    times_of,
)
from nearfree.derive.work_model.launches import eager_us
from nearfree.derive.work_model.own import Own, hosts, own_text, with_own
from nearfree.derive.work_model.prepare import CARRIED_BAND, Prepared, Refused, prepare
from nearfree.log.events import ConstantsCalibrated, Event, RegimeBand

FIRST_BY_CURVES = (ATTENTION_CACHED.name,)
"""Families whose T(1) follows from a kernel's own curves, and the increase with N from shared
constants: curves of one position do not show the rows of a tile."""
_RULE_FEATURES = {
    "moe_triton": "block_m",
    **dict.fromkeys(("attention_cached", "mla_cached", "mla_selected"), "tile_rows"),
}
"""The feature of a family that a release's rules give: rows of a block or tile."""


class Timed(Struct, frozen=True, kw_only=True):
    """T(N) of questions of one family, with the evidence of each row.

    `latency_us` and `ratio`, T(N) / T(baseline), are [rows, grid]; `band` bounds the error of the
    ratio's logarithm, [rows]. `regime` is the evidence class of a row. `kernels` are those whose
    curves or constants are used, none for shared constants; `at_one_position` says whether these
    are curves of one position on this GPU or a sibling. `constants` describes the calibration,
    `calibration` lists its events, and `in_sample` says whether it includes the row's platform.
    `host_us` [rows, 1] is the launch time of single kernels, below which `latency_us` never is; 0
    in a graph.
    """

    part: Prepared
    latency_us: Array
    ratio: Array
    band: Array
    regime: list[str]
    kernels: list[tuple[str, ...]]
    constants: list[str]
    calibration: list[list[str]]
    in_sample: list[bool]
    host_us: Array
    at_one_position: Flags | None = None

    @property
    def asked(self) -> list[int]:
        """The keys of the questions."""
        return self.part.rows["asked"].to_list()

    @property
    def rows(self) -> Array | None:
        """Rows of a block or tile by a rule, [rows, grid]; None without such a rule."""
        return self.part.features.get(_RULE_FEATURES.get(self.part.family.name, ""))

    @property
    def packed(self) -> Array | None:
        """Rows of such a tile per position, [rows, grid]; None without such a rule."""
        has_rule = self.part.family.name in _RULE_FEATURES
        return self.part.features.get("rows_per_position") if has_rule else None


class TimedQuestions:
    """T(N) of questions, and their answers at any tolerance.

    Parameters
    ----------
    rows
        Questions with the facts of their platform.
    constants
        The newest calibration of each family.
    own
        Platforms' own constants, by family and platform; none by default.
    reference
        The groups of kernels with public curves; none by default.
    """

    def __init__(
        self,
        rows: pl.DataFrame,
        resolver: Resolver,
        constants: Mapping[str, Event],
        own: Mapping[str, Mapping[str, Own]] | None = None,
        reference: RecordedReference | None = None,
    ) -> None:
        self._resolver, self._constants, self._own = resolver, constants, own or {}
        self._reference = reference
        self._parts: list[Timed] = []
        self._refused: list[pl.DataFrame] = []
        for part in prepare(rows, resolver):
            if isinstance(part, Refused):
                self._refused.append(part.rows)
            elif part.family.stated is not None:
                self._parts.append(self._by_statement(part, part.family.stated))
            elif part.family.name in constants:
                self._parts.append(self._timed(part))
            else:
                self._by_kernels(part)

    def _by_statement(self, part: Prepared, stated: Fitted) -> Timed:
        """Return T(N) by constants that the family states with their source."""
        times = np.maximum(times_of(part.family, stated, part.features), eager_us(part.rows))
        text = f"{part.family.name} by constants of its form, {part.family.meaning}"
        return _uncalibrated(part, times, stated.band, text)

    def _by_kernels(self, part: Prepared) -> None:
        """Add T(N) of a family without shared constants, where groups of kernels cover it."""
        name = part.family.name
        reference = self._reference.reference if self._reference else None
        covered = np.zeros(part.rows.height, dtype=bool)
        if reference is not None:
            covered = reference.covers(part)
        uncovered = part.rows.filter(pl.Series(~covered))
        alternatives = reference.other_caches(uncovered, name, self._resolver) if reference else ""
        reason = pl.lit(f"no constants of {name} in the log{alternatives}")
        self._refused.append(uncovered.select("asked", reason.alias("refusal")))
        if self._reference is None or not covered.any():
            return
        covered_part = select_rows(part, covered)
        placeholder = _uncalibrated(covered_part, np.ones_like(covered_part.features["n"]))
        self._parts.append(_with_kernels(placeholder, self._reference))

    def _timed(self, part: Prepared) -> Timed:
        """Return T(N) by the family's shared constants, and by groups of kernels if any."""
        event = self._constants[part.family.name]
        shared_constants = part.fitted(fitted(event.data))
        own_constants = self._own.get(part.family.name, {})
        host_measured = part.rows["platform"].is_in(hosts(own_constants)).to_numpy()[:, None]
        host_us = np.where(host_measured, 0.0, eager_us(part.rows))
        times = np.maximum(times_of(part.family, shared_constants, part.features), host_us)
        own_texts = own_text(own_constants)
        text = pl.concat_str(
            pl.lit(_calibrated_on(event.data, part.carried)), own_texts, ignore_nulls=True
        )
        texts = part.rows.select(
            text.alias("constants"), _in_sample(part, event.data, own_texts).alias("in_sample")
        )
        is_collective = part.family.name in COLLECTIVE_FAMILIES
        shared = Timed(
            part=part,
            latency_us=times,
            ratio=with_own(part, shared_constants, times / times[:, :1], self._own),
            band=np.full(part.rows.height, shared_constants.band),
            regime=[R2 if is_collective and in_sample else R0 for in_sample in texts["in_sample"]],
            kernels=[()] * part.rows.height,
            constants=texts["constants"].to_list(),
            calibration=[[event.event_id]] * part.rows.height,
            in_sample=texts["in_sample"].to_list(),
            host_us=host_us,
        )
        return shared if self._reference is None else _with_kernels(shared, self._reference)

    def answers(self, epsilons: Sequence[float]) -> pl.DataFrame:
        """Return a row per question and tolerance, with the columns of an answer."""
        frames = [self._answers_at(timed, epsilon) for timed in self._parts for epsilon in epsilons]
        return pl.concat([*frames, *self._refusals(epsilons)], how="diagonal")

    def ratios(self) -> pl.DataFrame:
        """Return T(N) / T(baseline) over the grid of every question: asked, n, ratio."""
        return ratio_rows((timed.part, timed.ratio) for timed in self._parts)

    def curves(self) -> Iterator[Timed]:
        """Yield T(N) by family."""
        yield from self._parts

    def refusals(self) -> dict[int, str]:
        """Return the reasons of questions without T(N), by question."""
        return {question: reason for rows in self._refused for question, reason in rows.rows()}

    def regime_score(self, question: int) -> tuple[RegimeBand | None, str]:
        """Return the score of a question's regime, None without one, and the kind of its curves."""
        timed, row = self._part_of(question)
        (kind,) = rows_of_bands(timed.part.rows[[row]])
        band_record = self._reference.band(timed.regime[row], kind) if self._reference else None
        if band_record is None:
            return None, ""
        words = band_record.module, band_record.formats, band_record.routing.replace("_", " ")
        suffix = " without a cache" if timed.part.family.name in AT_ONE_POSITION else ""
        return band_record, " ".join(filter(None, words)) + suffix

    def at_one_position(self, question: int) -> bool:
        """Return whether a question's kernel has curves of one position only."""
        timed, row = self._part_of(question)
        return timed.at_one_position is not None and bool(timed.at_one_position[row])

    def kernels_of(self, question: int) -> tuple[str, ...]:
        """Return the kernels whose curves or constants are used, none for shared constants."""
        timed, row = self._part_of(question)
        return timed.kernels[row]

    def _part_of(self, question: int) -> tuple[Timed, int]:
        """Return the part that holds a question, and its row there."""
        timed = next(part for part in self._parts if question in part.asked)
        return timed, timed.asked.index(question)

    def limits(self, exits: pl.DataFrame) -> pl.DataFrame:
        """Return the term that changes between two N of a question, and the source of its rule.

        Parameters
        ----------
        exits
            asked, last and after: two successive indices into the question's grid.

        Returns
        -------
        The rows with `limiting_term` and `evidence`; none for questions without T(N).
        """
        frames = [exits.clear().with_columns(
            pl.lit(None, pl.String).alias(name) for name in ("limiting_term", "evidence")
        )]  # fmt: skip
        for part in (timed.part for timed in self._parts):
            joined = part.rows.select("asked").with_row_index("at").join(exits, on="asked")
            rows, last, after = (joined[name].to_numpy() for name in ("at", "last", "after"))
            frames.append(joined.select(*exits.columns, *self._limits(part, rows, last, after)))
        return pl.concat(frames)

    def _limits(
        self, part: Prepared, rows: Integers, last: Integers, after: Integers
    ) -> tuple[pl.Series, pl.Series]:
        """Return `limiting_term` and `evidence` of rows between two indices into their grids."""
        positions = part.features["n"][rows, after].astype(int).tolist()
        evidence = rule_places(part.family, part.rows[rows.tolist()], positions, self._resolver)
        terms = stop_terms(part, rows, last, after)
        return (
            pl.Series("limiting_term", terms, dtype=pl.String),
            pl.Series("evidence", evidence, dtype=pl.String),
        )

    def _answers_at(self, timed: Timed, epsilon: float) -> pl.DataFrame:
        part = timed.part
        edges = boundaries(timed.ratio, part.counts, epsilon, timed.band[:, None])
        grid, rows = part.features["n"], np.arange(part.rows.height)
        last = grid[rows, edges.last]
        after = np.minimum(edges.last + 1, part.counts.sum(axis=1) - 1)
        return part.rows.select(
            "asked",
            pl.lit(WORK_MODEL).alias("predictor"),
            pl.lit(float(epsilon)).alias("epsilon"),
            pl.Series("n_max", last),
            pl.Series("n_max_extended", last),
            pl.Series("low", grid[rows, edges.low]),
            pl.Series("high", grid[rows, edges.high]),
            pl.col("module").alias("limiting_module"),
            *self._limits(part, rows, edges.last, after),
            _lists("calibration", timed.calibration),
            pl.Series("margin", timed.ratio[rows, after] / (1.0 + epsilon)),
            pl.Series("constants", _with_launches(timed), dtype=pl.String),
            pl.Series("regime", timed.regime, dtype=pl.String),
            pl.Series("in_sample", timed.in_sample, dtype=pl.Boolean),
            pl.lit(None, pl.String).alias("refusal"),
        )

    def _refusals(self, epsilons: Sequence[float]) -> Iterator[pl.DataFrame]:
        tolerances = pl.DataFrame({"epsilon": [float(epsilon) for epsilon in epsilons]})
        for rows in self._refused:
            yield rows.join(tolerances, how="cross").with_columns(
                pl.lit(WORK_MODEL).alias("predictor"), pl.lit(value=False).alias("in_sample")
            )


def _uncalibrated(part: Prepared, latency_us: Array, band: float = 1.0, text: str = "") -> Timed:
    """Return T(N) without a calibration in the log: R0, never in sample."""
    count = part.rows.height
    return Timed(
        part=part, latency_us=latency_us, ratio=latency_us / latency_us[:, :1],
        band=np.full(count, band), regime=[R0] * count, kernels=[()] * count,
        constants=[text] * count, calibration=[[]] * count, in_sample=[False] * count,
        host_us=eager_us(part.rows),
    )  # fmt: skip


def _with_kernels(shared: Timed, reference: RecordedReference) -> Timed:
    """Return T(N) with that by groups of kernels in place of a family's shared constants."""
    part = shared.part
    latency, ratio, band = (
        np.array(values) for values in (shared.latency_us, shared.ratio, shared.band)
    )
    regime, kernels, constants = [*shared.regime], [*shared.kernels], [*shared.constants]
    calibration, in_sample = [*shared.calibration], [*shared.in_sample]
    at_one_position = np.zeros(part.rows.height, dtype=bool)
    first_by_curves = part.family.name in FIRST_BY_CURVES
    # From a baseline above 1 on, only the shared constants apply.
    from_one = part.features["n"][:, 0] == 1
    eligible = from_one if first_by_curves else np.ones_like(from_one)
    for covered, group_times in reference.reference.times(part):
        rows, times = covered & eligible, group_times.select(eligible[covered])
        (indices,) = np.nonzero(rows)
        latency_us = times.latency_us
        if first_by_curves:
            increase_us = shared.latency_us[rows] - shared.latency_us[rows][:, :1]
            latency_us = latency_us[:, :1] + increase_us
        at_one_position[rows] = times.at_one_position
        latency[rows] = np.maximum(latency_us, shared.host_us[rows])
        ratio[rows] = latency[rows] / latency[rows][:, :1]
        if not first_by_curves:
            factor = CARRIED_BAND if part.family.name in AT_ONE_POSITION else 1.0
            band[rows] = factor * reference.bands_of(times.regime, part.rows[indices.tolist()])
        for row, row_regime, text, events in zip(
            indices.tolist(), times.regime, times.texts(), reference.events_of(times), strict=True
        ):
            shared_platforms = constants[row].removeprefix(f"{part.family.name} ")
            increase = f", of more positions {shared_platforms}" if first_by_curves else ""
            nearest = re.search(NEAREST_TEXT, text)
            end = nearest.start() if nearest else len(text)
            regime[row], constants[row] = row_regime, f"{text[:end]}{increase}{text[end:]}"
            calibration[row] = [*events, *(calibration[row] if first_by_curves else ())]
            kernels[row] = times.kernels
            in_sample[row] = row_regime in (R2, R3)
    return structs.replace(
        shared,
        latency_us=latency,
        ratio=ratio,
        band=band,
        regime=regime,
        kernels=kernels,
        constants=constants,
        calibration=calibration,
        in_sample=in_sample,
        at_one_position=at_one_position,
    )


def _with_launches(timed: Timed) -> list[str]:
    """Return each question's calibration text, preceded by its launch time if there is one."""
    texts = zip(timed.host_us[:, 0].tolist(), timed.constants, strict=True)
    return [f"launches of {us:g} us at least; {text}" if us else text for us, text in texts]


def _lists(name: str, lists: Sequence[Sequence[str]]) -> pl.Series:
    """Return a column of lists of texts; each distinct list is built once, as few differ."""
    index_of = {items: index for index, items in enumerate(dict.fromkeys(map(tuple, lists)))}
    distinct = pl.Series(name, [list(items) for items in index_of], dtype=pl.List(pl.String))
    return distinct.gather([index_of[tuple(items)] for items in lists])


def ratio_rows(parts: Iterable[tuple[Prepared, Array]]) -> pl.DataFrame:
    """Return T(N) / T(baseline) over the grid of every question: asked, n, ratio.

    `parts` are questions of one family each, and their ratios, [rows, grid].
    """
    frames = [pl.DataFrame(schema={"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64})]
    for part, ratio in parts:
        lists = part.rows.select("asked", pl.col("grid").alias("n"))
        flat = pl.Series("ratio", ratio[part.counts], dtype=pl.Float64)
        frames.append(lists.explode("n").with_columns(flat))
    return pl.concat(frames)


def _in_sample(part: Prepared, event: ConstantsCalibrated, own_texts: pl.Expr) -> pl.Expr:
    """Return whether constants were fitted to a row's platform, in its formats.

    Constants of collectives were fitted to one machine's GPUs at most: the public tables of GB200
    end at 4 GPUs and the others at 8, of one node each. Only those of GB300 reach 16, and no
    constants were fitted to these (AIConfigurator 0.12.0).
    """
    fitted_to = pl.col("platform").is_in(event.platforms) | own_texts.is_not_null()
    if part.family.name in COLLECTIVE_FAMILIES:
        fitted_to &= pl.col("gpus").le(pl.col("machine_gpus")).fill_null(value=True)
        fitted_to &= pl.col("nodes").le(1).fill_null(value=True)
    return fitted_to & pl.lit(part.carried is None)


def _calibrated_on(event: ConstantsCalibrated, carried: str | None) -> str:
    """Return the family and the platforms of its calibration; some lack the collective."""
    platforms = event.platforms
    if event.family in COLLECTIVE_FAMILIES:
        platforms = tuple(
            name for name in platforms if any(f"/{name}" in member for member in event.members)
        )
    text = f"{event.family} on {', '.join(platforms)}"
    return text if carried is None else f"{text}; {carried}, in {CARRIED_BAND:g} times the band"
