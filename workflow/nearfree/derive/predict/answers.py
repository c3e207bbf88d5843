"""The answerer: one interface to all predictors, for users' queries and for scoring.

It reads settings, facts, rules, constants and the public curves on record; a blind answerer reads
none of these curves, for scores on them. Of the latencies in a results root it reads only those
that the constants of a platform's engine are fitted to.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from nearfree.config.files import Config
from nearfree.core.modules.engine import ENGINE
from nearfree.core.predictors import LAWS, WORK_MODEL
from nearfree.core.scopes import SOURCES
from nearfree.derive.engine_step.recorded import recorded_steps
from nearfree.derive.granularity.facts import datasheet_facts, with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.laws.laws import ANSWERS_SCHEMA, answer_laws
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.reference.record import recorded_kernels, recorded_reference
from nearfree.derive.reference.siblings import chips
from nearfree.derive.tables.store import seals_digest
from nearfree.derive.work_model.collective import COLLECTIVE_FAMILIES
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.derive.work_model.families import carried
from nearfree.derive.work_model.own import Own, recorded_own
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.sources.fetching.cache import Cache, default_cache

if TYPE_CHECKING:
    from nearfree.derive.predict.engine_answers import EngineAnswers
    from nearfree.derive.reference.left_out import LeftOut
    from nearfree.derive.work_model.engine_curves import EngineLog
    from nearfree.public.curves import ImportedCurves

ANSWER_COLUMNS = {**ANSWERS_SCHEMA, "in_sample": pl.Boolean}
"""The columns of answers; `in_sample` says whether the constants were calibrated on the platform,
in the query's formats."""
_IS_ENGINE = pl.col("module") == ENGINE.name


class Answerer:
    """All predictors, on the datasheets of a config and the rules and constants of a log.

    Parameters
    ----------
    layout
        The results root: rules of releases, and constants.
    config
        The platforms.
    offline
        Never fetch a release that the log lacks.
    log_alone
        Use rules from the log only, whatever this machine has cached.
    own
        Use platforms' own constants where the log has some, and no public curves.
    blind
        Ignore public curves: T(N) follows from shared constants alone.
    """

    def __init__(
        self,
        layout: Layout,
        config: Config,
        *,
        offline: bool = False,
        log_alone: bool = False,
        own: bool = False,
        blind: bool = False,
    ) -> None:
        cache = None if log_alone else Cache(default_cache())
        self._layout = layout
        self._facts = datasheet_facts(config.platforms)
        self.resolver = Resolver(layout, cache=cache, offline=offline)
        """The rules of releases."""
        self._constants = recorded_constants(layout)
        self._own = recorded_own(layout, self._constants) if own else {}
        known_chips = chips(config.platforms)
        self._reference = None if own or blind else recorded_reference(layout, known_chips)
        self.engine_steps = recorded_steps(layout)
        """The constants of engines' steps, by engine."""
        self.bandwidths_gb_s = {
            name: sheet.bandwidth_gb_s for name, sheet in config.platforms.items()
        }

    @cached_property
    def engines(self) -> "EngineLog":
        """Forwards of real engines on record."""
        from nearfree.derive.work_model.engine_curves import EngineLog

        return EngineLog(self._layout, self.resolver)

    def on(self, facts: pl.DataFrame) -> "Answerer":
        """Return an answerer with the same rules and constants on other facts.

        They are one row per platform and dtype.
        """
        other = copy(self)
        other._facts = facts  # noqa: SLF001 (its own class)
        return other

    def answers(
        self, questions: pl.DataFrame, epsilons: Sequence[float], predictors: Sequence[str]
    ) -> pl.DataFrame:
        """Return ANSWER_COLUMNS, one row per query, predictor and tolerance.

        Parameters
        ----------
        questions
            Queries: asked (their key), platform, the setting's columns, backend_version, kernel,
            baseline, and grid: the N over which N_max is sought, rising from the baseline.
        """
        engine_questions = questions.filter(_IS_ENGINE)
        questions = questions.filter(~_IS_ENGINE)
        laws = [name for name in predictors if name in LAWS]
        frames = [
            answer_laws(questions, self._facts, epsilons, self.resolver, laws).with_columns(
                pl.lit(value=False).alias("in_sample")
            )
        ]
        if WORK_MODEL in predictors:
            timed = self._seen(questions, self.timed(questions, self._own).answers(epsilons))
            empty = pl.DataFrame(schema=ANSWER_COLUMNS)
            frames.append(pl.concat([empty, timed], how="diagonal").select(empty.columns))
        if not engine_questions.is_empty():
            engines = self.engine_forwards(engine_questions).answers(epsilons, predictors)
            frames.append(engines.select(frames[0].columns))
        return pl.concat(frames)

    def ratios(self, questions: pl.DataFrame) -> pl.DataFrame:
        """Return the work model's T(N) / T(baseline) over each grid: asked, n, ratio."""
        ratios = self.timed(questions.filter(~_IS_ENGINE), self._own).ratios()
        engine_questions = questions.filter(_IS_ENGINE)
        if engine_questions.is_empty():
            return ratios
        return ratios.extend(self.engine_forwards(engine_questions).ratios())

    def engine_forwards(self, questions: pl.DataFrame) -> "EngineAnswers":
        """Return the answers on the queries that are forwards of engines."""
        from nearfree.derive.predict.engine_answers import EngineAnswers

        return EngineAnswers(questions.filter(_IS_ENGINE), self.engines)

    def timed(
        self, questions: pl.DataFrame, own: Mapping[str, Mapping[str, Own]] | None = None
    ) -> TimedQuestions:
        """Return the work model's T(N) of queries, with platforms' `own` constants if given."""
        rows = with_facts(questions, self._facts)
        return TimedQuestions(rows, self.resolver, self._constants, own, self._reference)

    def left_out(self, curves: "ImportedCurves", *, epsilon: float) -> "LeftOut":
        """Return the work model that uses for each platform constants fitted to all others."""
        from nearfree.derive.reference.left_out import LeftOut

        return LeftOut(curves, self._facts, self.resolver, epsilon=epsilon)

    def _seen(self, questions: pl.DataFrame, timed: pl.DataFrame) -> pl.DataFrame:
        """Return answers with `in_sample` set for refused queries on calibrated platforms, too."""
        platforms = {
            platform
            for family, event in self._constants.items()
            if family not in COLLECTIVE_FAMILIES
            for platform in event.data.platforms
        }
        on_calibrated = pl.col("platform").is_in(platforms), carried().is_null()
        in_sample = questions.filter(*on_calibrated)["asked"]
        return timed.with_columns(pl.col("in_sample") | pl.col("asked").is_in(in_sample.implode()))


RECORDED = ("principle_counted", "modules_minimum", "modules_sum")
"""Predictors whose answers are recorded before a model is measured."""


def sources_digest(layout: Layout) -> dict[str, str]:
    """Return the rules, constants and kernels behind answers, digests by name."""
    kernels = recorded_kernels(layout)
    return (
        seals_digest(layout, SOURCES)
        | {
            f"constants/{name}": sha256(event_id.encode())
            for name, event_id in _shared_event_ids(layout).items()
        }
        | ({"constants/kernels": sha256("\n".join(kernels).encode())} if kernels else {})
    )


def calibration_ids(layout: Layout) -> set[str]:
    """Return the ids of the events of all constants, shared ones and those of kernels."""
    return {*_shared_event_ids(layout).values(), *recorded_kernels(layout)}


def _shared_event_ids(layout: Layout) -> dict[str, str]:
    """Return the ids of the events of shared constants, by family or engine."""
    families = {name: event.event_id for name, event in recorded_constants(layout).items()}
    return families | {name: step.event.event_id for name, step in recorded_steps(layout).items()}
