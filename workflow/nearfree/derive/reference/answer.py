"""The work model's answers: N_max with its interval, what limits it, and the ratios behind it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.other_caches import other_caches
from nearfree.derive.reference.places import rule_places, stop_terms
from nearfree.derive.reference.record import RecordedReference, rows_of_bands
from nearfree.derive.reference.regimes import AT_ONE_POSITION, LEANS_ON, R0, R2, R3, rows_of
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.collective import COLLECTIVE_FAMILIES
from nearfree.derive.work_model.constants import fitted
from nearfree.derive.work_model.family import (
    Array,
    Fitted,
    Flags,
    Places,
    boundaries,
    times_of,
)
from nearfree.derive.work_model.launches import eager_us
from nearfree.derive.work_model.own import Own, hosts, own_text, with_own
from nearfree.derive.work_model.prepare import CARRIED_BAND, Prepared, Refused, prepare
from nearfree.log.events import ConstantsCalibrated, Event, RegimeBand

PREDICTOR = "work_model"
FIRST_ALONE = (ATTENTION_CACHED.name,)
"""Families of which a kernel's own curves say T(1), and shared constants how much longer more
positions take: one position tells nothing of rows of a tile."""
_RULED = {
    "moe_triton": "block_m",
    **dict.fromkeys(("attention_cached", "mla_cached", "mla_selected"), "tile_rows"),
}
"""The feature of a family that the rules of a release say: rows of a block or tile."""


class Timed(Struct, frozen=True, kw_only=True):
    """T(N) of questions of one family, and what each rests on.

    `latency_us` and `ratio`, T(N) / T(baseline), [rows, grid]; `band` is how far its logarithm may
    be off, [rows]. `regime` says on what a row stands, `kernels` whose curves or constants speak of
    it, none where shared ones do, `at_one_position` whether those are curves of one position on
    this GPU or a sibling, `constants` on what they were calibrated, in the events
    `calibration`, and `in_sample` whether its platform was among it. `host_us` is what launches one
    by one take at least, [rows, 1], which `latency_us` is not below; 0 in a graph.
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
        """The questions, by their keys."""
        return self.part.rows["asked"].to_list()

    @property
    def rows(self) -> Array | None:
        """Rows of a block or tile as a rule says them, [rows, grid]; None without such a rule."""
        return self.part.features.get(_RULED.get(self.part.family.name, ""))

    @property
    def packed(self) -> Array | None:
        """Rows of such a tile that a position takes, [rows, grid]."""
        ruled = self.part.family.name in _RULED
        return self.part.features.get("rows_per_position") if ruled else None


class TimedQuestions:
    """Questions whose T(N) is known, ready to be judged at any tolerance.

    Parameters
    ----------
    rows
        Questions with the facts of their platform.
    constants
        The newest calibration of each family.
    own
        Platforms' own constants, by family and platform; none where not given.
    reference
        What public curves say of kernels; nothing where not given.
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

    def _by_statement(self, part: Prepared, known: Fitted) -> Timed:
        """Return T(N) by constants that are stated with their source: R0, out of every sample."""
        height, host_us = part.rows.height, eager_us(part.rows)
        times = np.maximum(times_of(part.family, known, part.features), host_us)
        text = f"{part.family.name} by constants of its form, {part.family.meaning}"
        return Timed(
            part=part, latency_us=times, ratio=times / times[:, :1],
            band=np.full(height, known.band), regime=[R0] * height,
            kernels=[()] * height, constants=[text] * height,
            calibration=[[]] * height, in_sample=[False] * height, host_us=host_us,
        )  # fmt: skip

    def _by_kernels(self, part: Prepared) -> None:
        """Time the questions whose kernels are known, of a family without shared constants."""
        name, none = part.family.name, np.zeros(part.rows.height, dtype=bool)
        reference = self._reference.reference if self._reference else None
        known = none if reference is None else reference.knows(part)
        unknown = part.rows.filter(pl.Series(~known))
        instead = other_caches(unknown, name, reference, self._resolver) if reference else ""
        reason = pl.lit(f"no constants of {name} in the log{instead}")
        self._refused.append(unknown.select("asked", reason.alias("refusal")))
        if self._reference is None or not known.any():
            return
        mine = rows_of(part, known)
        height = mine.rows.height
        blank = np.ones_like(mine.features["grid"])
        empty = Timed(
            part=mine, latency_us=blank, ratio=blank, band=np.ones(height), regime=[R0] * height,
            kernels=[()] * height, constants=[""] * height, calibration=[[]] * height,
            in_sample=[False] * height, host_us=eager_us(mine.rows),
        )  # fmt: skip
        self._parts.append(_with_kernels(empty, self._reference))

    def _timed(self, part: Prepared) -> Timed:
        """Return T(N) by the family's shared constants, and by a kernel's own where it is known."""
        event = self._constants[part.family.name]
        known = part.fitted(fitted(event.data))
        mine = self._own.get(part.family.name, {})
        timed_here = part.rows["platform"].is_in(hosts(mine)).to_numpy()[:, None]
        host_us = np.where(timed_here, 0.0, eager_us(part.rows))
        times = np.maximum(times_of(part.family, known, part.features), host_us)
        own = own_text(mine)
        text = pl.concat_str(
            pl.lit(_calibrated_on(event.data, part.carried)), own, ignore_nulls=True
        )
        told = part.rows.select(
            text.alias("constants"), _in_sample(part, event.data, own).alias("in_sample")
        )
        sent = part.family.name in COLLECTIVE_FAMILIES
        shared = Timed(
            part=part,
            latency_us=times,
            ratio=with_own(part, known, times / times[:, :1], self._own),
            band=np.full(part.rows.height, known.band),
            regime=[R2 if sent and each else R0 for each in told["in_sample"]],
            kernels=[()] * part.rows.height,
            constants=told["constants"].to_list(),
            calibration=[[event.event_id]] * part.rows.height,
            in_sample=told["in_sample"].to_list(),
            host_us=host_us,
        )
        return shared if self._reference is None else _with_kernels(shared, self._reference)

    def answers(self, epsilons: Sequence[float]) -> pl.DataFrame:
        """Return a row a question and tolerance, with the columns of an answer."""
        return pl.concat([*self._judged(epsilons), *self._refusals(epsilons)], how="diagonal")

    def ratios(self) -> pl.DataFrame:
        """Return T(N) / T(baseline) over the grid of every question: asked, n, ratio."""
        return ratio_rows((each.part, each.ratio) for each in self._parts)

    def curves(self) -> Iterator[Timed]:
        """Yield T(N) by family."""
        yield from self._parts

    def refusals(self) -> dict[int, str]:
        """Return why no T(N) is known, by question."""
        return {asked: reason for rows in self._refused for asked, reason in rows.rows()}

    def scored(self, asked: int) -> tuple[RegimeBand | None, str]:
        """Return how good a question's regime was, of which curves; None where nobody scored it."""
        timed, at = self._of(asked)
        (kind,) = rows_of_bands(timed.part.rows[[at]])
        said = self._reference.said(timed.regime[at], kind) if self._reference else None
        if said is None:
            return None, ""
        words = said.module, said.formats, said.routing.replace("_", " ")
        over = " without a cache" if timed.part.family.name in AT_ONE_POSITION else ""
        return said, " ".join(filter(None, words)) + over

    def at_one_position(self, asked: int) -> bool:
        """Return whether curves of one position speak of a question's kernel, and none of more."""
        timed, at = self._of(asked)
        return timed.at_one_position is not None and bool(timed.at_one_position[at])

    def spoken_by(self, asked: int) -> tuple[str, ...]:
        """Return the kernels whose curves or constants speak of a question, none of shared ones."""
        timed, at = self._of(asked)
        return timed.kernels[at]

    def _of(self, asked: int) -> tuple[Timed, int]:
        """Return the part that holds a question, and its place there."""
        timed = next(each for each in self._parts if asked in each.asked)
        return timed, timed.asked.index(asked)

    def stops(self, exits: pl.DataFrame) -> pl.DataFrame:
        """Return what changes between two N of a question, and which lines of a rule say so.

        Parameters
        ----------
        exits
            asked, last and after: places in the question's grid, the second one past the first.

        Returns
        -------
        A row each, with `limiting_term` and `evidence`; none for questions without T(N).
        """
        frames = [exits.clear().with_columns(
            pl.lit(None, pl.String).alias(name) for name in ("limiting_term", "evidence")
        )]  # fmt: skip
        for part in (each.part for each in self._parts):
            mine = part.rows.select("asked").with_row_index("at").join(exits, on="asked")
            rows, last, after = (mine[name].to_numpy() for name in ("at", "last", "after"))
            frames.append(mine.select(*exits.columns, *self._limits(part, rows, last, after)))
        return pl.concat(frames)

    def _limits(
        self, part: Prepared, rows: Places, last: Places, after: Places
    ) -> tuple[pl.Series, pl.Series]:
        """Return `limiting_term` and `evidence` of rows between two places of their grids."""
        positions = part.features["grid"][rows, after].astype(int).tolist()
        evidence = rule_places(part.family, part.rows[rows.tolist()], positions, self._resolver)
        terms = stop_terms(part, rows, last, after)
        return (
            pl.Series("limiting_term", terms, dtype=pl.String),
            pl.Series("evidence", evidence, dtype=pl.String),
        )

    def _judged(self, epsilons: Sequence[float]) -> Iterator[pl.DataFrame]:
        for timed in self._parts:
            for epsilon in epsilons:
                yield self._frame(timed, epsilon)

    def _frame(self, timed: Timed, epsilon: float) -> pl.DataFrame:
        part = timed.part
        found = boundaries(timed.ratio, part.counts, epsilon, timed.band[:, None])
        grid, rows = part.features["grid"], np.arange(part.rows.height)
        last = grid[rows, found.last]
        after = np.minimum(found.last + 1, part.counts.sum(axis=1) - 1)
        return part.rows.select(
            "asked",
            pl.lit(PREDICTOR).alias("predictor"),
            pl.lit(float(epsilon)).alias("epsilon"),
            pl.Series("n_max", last),
            pl.Series("n_max_extended", last),
            pl.Series("low", grid[rows, found.low]),
            pl.Series("high", grid[rows, found.high]),
            pl.col("module").alias("limiting_module"),
            *self._limits(part, rows, found.last, after),
            _lists("calibration", timed.calibration),
            pl.Series("margin", timed.ratio[rows, after] / (1.0 + epsilon)),
            pl.Series("constants", _with_launches(timed), dtype=pl.String),
            pl.Series("regime", timed.regime, dtype=pl.String),
            pl.Series("in_sample", timed.in_sample, dtype=pl.Boolean),
            pl.lit(None, pl.String).alias("refusal"),
        )

    def _refusals(self, epsilons: Sequence[float]) -> Iterator[pl.DataFrame]:
        tolerances = pl.DataFrame({"epsilon": [float(each) for each in epsilons]})
        for rows in self._refused:
            yield rows.join(tolerances, how="cross").with_columns(
                pl.lit(PREDICTOR).alias("predictor"), pl.lit(value=False).alias("in_sample")
            )


def _with_kernels(shared: Timed, reference: RecordedReference) -> Timed:
    """Return T(N) with what is known of kernels in place of a family's shared constants."""
    latency, ratio, band = (np.array(each) for each in (shared.latency_us, shared.ratio,
                                                        shared.band))  # fmt: skip
    regime, kernels, constants = [*shared.regime], [*shared.kernels], [*shared.constants]
    calibration, in_sample = [*shared.calibration], [*shared.in_sample]
    at_one_position = np.zeros(shared.part.rows.height, dtype=bool)
    first_alone = shared.part.family.name in FIRST_ALONE
    # From a later baseline on constants alone speak.
    from_one = shared.part.features["n"][:, 0] == 1
    spoken_of = from_one if first_alone else np.ones_like(from_one)
    for told, said in reference.reference.timed(shared.part):
        rows, known = told & spoken_of, said.of(spoken_of[told])
        (places,) = np.nonzero(rows)
        times = known.latency_us
        if first_alone:
            more = shared.latency_us[rows] - shared.latency_us[rows][:, :1]
            times = times[:, :1] + more
        at_one_position[rows] = known.at_one_position
        latency[rows] = np.maximum(times, shared.host_us[rows])
        ratio[rows] = latency[rows] / latency[rows][:, :1]
        if not first_alone:
            asked = shared.part.rows[places.tolist()]
            wider = CARRIED_BAND if shared.part.family.name in AT_ONE_POSITION else 1.0
            band[rows] = wider * reference.bands_of(known.regime, asked)
        for place, each, text, events in zip(
            places.tolist(), known.regime, known.texts(), reference.events_of(known), strict=True
        ):
            shared_on = constants[place].removeprefix(f"{shared.part.family.name} ")
            of_more = f", of more positions {shared_on}" if first_alone else ""
            leans = re.search(LEANS_ON, text)
            end = leans.start() if leans else len(text)
            regime[place], constants[place] = each, f"{text[:end]}{of_more}{text[end:]}"
            calibration[place] = [*events, *(calibration[place] if first_alone else ())]
            kernels[place] = known.kernels
            in_sample[place] = each in (R2, R3)
    return Timed(
        part=shared.part,
        latency_us=latency,
        ratio=ratio,
        band=band,
        regime=regime,
        kernels=kernels,
        constants=constants,
        calibration=calibration,
        in_sample=in_sample,
        host_us=shared.host_us,
        at_one_position=at_one_position,
    )


def _with_launches(timed: Timed) -> list[str]:
    """Return what each question's constants were calibrated on, and what its launches take."""
    texts = zip(timed.host_us[:, 0].tolist(), timed.constants, strict=True)
    return [f"launches of {us:g} us at least; {text}" if us else text for us, text in texts]


def _lists(name: str, lists: Sequence[Sequence[str]]) -> pl.Series:
    """Return a column of lists of texts, of which few differ: each is made once."""
    places = {each: place for place, each in enumerate(dict.fromkeys(map(tuple, lists)))}
    distinct = pl.Series(name, [list(each) for each in places], dtype=pl.List(pl.String))
    return distinct.gather([places[tuple(each)] for each in lists])


def ratio_rows(parts: Iterable[tuple[Prepared, Array]]) -> pl.DataFrame:
    """Return T(N) / T(baseline) over the grid of every question: asked, n, ratio.

    Parameters
    ----------
    parts
        Questions of one family each, and their ratios, [rows, grid].
    """
    frames = [pl.DataFrame(schema={"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64})]
    for part, ratio in parts:
        lists = part.rows.select("asked", pl.col("grid").alias("n"))
        flat = pl.Series("ratio", ratio[part.counts], dtype=pl.Float64)
        frames.append(lists.explode("n").with_columns(flat))
    return pl.concat(frames)


def _in_sample(part: Prepared, event: ConstantsCalibrated, own: pl.Expr) -> pl.Expr:
    """Return whether constants were fitted to a row's platform, in its formats.

    Those of collectives were to no more GPUs than a machine has: the public tables of GB200 end at
    4, and those of others at 8, of one node each, but for GB300's, which reach 16 and which none
    were fitted to (AIConfigurator 0.12.0).
    """
    seen = pl.col("platform").is_in(event.platforms) | own.is_not_null()
    if part.family.name in COLLECTIVE_FAMILIES:
        seen &= pl.col("gpus").le(pl.col("machine_gpus")).fill_null(value=True)
        seen &= pl.col("nodes").le(1).fill_null(value=True)
    return seen & pl.lit(part.carried is None)


def _calibrated_on(event: ConstantsCalibrated, carried: str | None) -> str:
    """Return the constants and the platforms that were fitted to; some have no such collective."""
    on = event.platforms
    if event.family in COLLECTIVE_FAMILIES:
        on = tuple(name for name in on if any(f"/{name}" in member for member in event.members))
    text = f"{event.family} on {', '.join(on)}"
    return text if carried is None else f"{text}; {carried}, in {CARRIED_BAND:g} times the band"
