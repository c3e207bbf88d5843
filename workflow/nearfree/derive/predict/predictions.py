"""Table `predictions`: each predictor's N_max of each setting, or its refusal."""

from collections.abc import Mapping, Sequence

import polars as pl

from nearfree.config.files import Config
from nearfree.core.modules.engine import ENGINE
from nearfree.core.predictors import PREDICTORS
from nearfree.core.protocols import EAGER
from nearfree.derive.granularity.facts import datasheet_facts, facts_by_format, probed_facts
from nearfree.derive.predict.answers import (
    ANSWER_COLUMNS,
    RECORDED,
    Answerer,
    calibration_ids,
    sources_digest,
)
from nearfree.derive.predict.formulas import prediction_equation
from nearfree.derive.predict.model_predictions import (
    NUMBER_COLUMNS,
    law_rows,
    recorded_rows,
    releases_that_ran,
)
from nearfree.derive.tables.columns import (
    ORIGINS,
    SETTING_COLUMNS,
    amount,
    count,
    finite_numbers,
    flag,
    number,
    text,
)
from nearfree.derive.tables.latency import LATENCY, launched_on_gpu
from nearfree.derive.tables.platforms import PLATFORMS, newest_balances
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import (
    digests,
    read_table,
    seals_digest,
    tolerances_digest,
    write_table,
)
from nearfree.hardware.platforms import Platform
from nearfree.log.events import PredictionRecorded
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout

_IDENTITY = ("platform", "origin", "setting_key", "baseline")
VALUE = {
    "n_max": amount("the prediction, a real number", nullable=True),
    "unbounded": flag("whether the predictor sets no limit on N"),
    "n_max_extended": amount("the same with the extensions of the formulas", nullable=True),
    "low": amount("lower end of its interval", nullable=True),
    "high": amount("upper end of it", nullable=True),
}
REASON = {
    "limiting_module": text("the module that limits N_max", nullable=True),
    "limiting_term": text("the smallest term, or the change at the next N", nullable=True),
    "evidence": text("file and lines of the rule, or where the paper states it", nullable=True),
    "margin": number("the next smallest term, or T(N) at the next N, over the limit",
                     nullable=True),
    "constants": text("the constants, and the data of their calibration", nullable=True),
    "regime": text("what T(N) stands on, from R0, where nothing is known of the GPU and kernel, to "
                   "R3, their own curve of the shape", nullable=True),
    "in_sample": flag("whether its constants were calibrated on this platform"),
    "refusal": text("the missing rule or fact", nullable=True),
}  # fmt: skip
PREDICTIONS = Table(
    name="predictions",
    row="one predictor's N_max for one setting at one tolerance, on one basis of hardware facts",
    key=(*_IDENTITY, "predictor", "basis", "epsilon"),
    formula="what a predictor says of N_max, from facts, rules and constants",
    paper="sec. 2.3, 3 and 4",
    code="nearfree.derive.predict.predictions",
    equation=prediction_equation,
    body={
        "platform": text("the kind of machine"),
        "origin": text("where the setting's boundary comes from", one_of=ORIGINS),
        **SETTING_COLUMNS,
        "baseline": count("the N that ratios refer to"),
        "predictor": text("the predictor", one_of=(*PREDICTORS, *RECORDED)),
        "basis": text("which facts: datasheet, or probed by one of two methods; none where there "
                      "are none of the platform and dtype", nullable=True),
        "epsilon": amount("tolerance; a law gives the same N_max at each"),
        **VALUE,
        "balance_flop_per_byte": amount("rho that it used", nullable=True),
        **REASON,
    },
)  # fmt: skip


def write_predictions(layout: Layout, scope: str, config: Config) -> None:
    """Write a scope's predictions, from the rules and constants of the log alone."""
    tolerances = config.site.tolerances
    settings = with_launch(read_table(layout, scope, SETTINGS), read_table(layout, scope, LATENCY))
    platforms = read_table(layout, scope, PLATFORMS)
    answerer = Answerer(layout, config, log_alone=True)
    takes = read_scope(layout, scope, only=(PredictionRecorded,))
    rows = predict(settings, platforms, config.datasheets(scope), answerer, tolerances, takes=takes)
    constants = calibration_ids(layout)
    recorded_ids = {
        event.event_id for take in takes for event in take.events_of(PredictionRecorded)
    }
    engines = settings.filter(pl.col("module") == ENGINE.name)["platform"].unique()
    engine_ids = {event_id for name in engines for event_id in answerer.engines.event_ids(name)}
    source_ids = {*settings["row_id"], *platforms["row_id"], *constants, *recorded_ids, *engine_ids}
    made_from = (
        digests(layout, scope, SETTINGS, PLATFORMS, LATENCY)
        | seals_digest(layout, scope)
        | tolerances_digest(tolerances)
        | sources_digest(layout)
    )
    write_table(layout, scope, PREDICTIONS, PREDICTIONS.build(rows, source_ids), made_from)


def with_launch(settings: pl.DataFrame, latency: pl.DataFrame) -> pl.DataFrame:
    """Return settings with `launch`: `eager` where a GPU's kernels were launched one by one.

    The paper's settings are eager (app. C).
    """
    measured = latency.filter("newest").unique(_IDENTITY, keep="last", maintain_order=True)
    launched = measured.select(*_IDENTITY, launched_on_gpu())
    joined = settings.join(launched, on=_IDENTITY, how="left", maintain_order="left")
    printed = pl.col("origin") == "published"
    return joined.with_columns(
        pl.when(printed).then(pl.lit(EAGER)).otherwise("launch").alias("launch")
    )


def predict(
    settings: pl.DataFrame,
    platforms: pl.DataFrame,
    sheets: Mapping[str, Platform],
    answerer: Answerer,
    epsilons: Sequence[float],
    *,
    takes: Sequence[Take] = (),
) -> pl.DataFrame:
    """Return the rows of `predictions` for every setting and every basis of its platform.

    Parameters
    ----------
    settings
        Rows of the table `settings`, with the column `launch` where it is known.
    platforms
        Rows of the table `platforms`; of several probes the newest counts.
    takes
        The scope's takes, which hold the measured models and the recorded predictions.
    """
    model_names = [name for take in takes for name in getattr(take.started.data.plan, "models", ())]
    model_settings = settings.filter(
        (pl.col("module") == "model") & pl.col("model").is_in(model_names)
    )
    settings = settings.join(model_settings, on="row_id", how="anti")
    newest = facts_by_format(newest_balances(platforms))
    facts = newest.select(
        "platform", "dtype", "basis", "balance_flop_per_byte", pl.col("row_id").alias("fact_id")
    )
    questions = (
        settings.join(facts, on=["platform", "dtype"], how="left", maintain_order="left_right")
        .with_row_index("asked")
        .with_columns(
            pl.col("asked").cast(pl.Int64),
            pl.col("baseline").alias("stated"),
            pl.col("grid").list.first().alias("baseline"),
            pl.lit(None, pl.String).alias("kernel"),
        )
        .join(releases_that_ran(settings, takes), on="row_id", how="left", maintain_order="left")
    )
    frames = []
    for (basis,), part in questions.group_by("basis", maintain_order=True):
        basis_facts = _basis_facts(basis, newest, sheets)
        answers = answerer.on(basis_facts).answers(part, epsilons, PREDICTORS)
        frames.append(part.join(answers.select(*ANSWER_COLUMNS), on="asked", how="inner"))
    model_rows = list(recorded_rows(takes, model_settings))
    # A model without facts of its platform and dtype has one refusal, on no basis.
    models = model_settings.join(facts, on=["platform", "dtype"], how="left")
    for (basis,), part in models.group_by("basis", maintain_order=True):
        on_basis = answerer.on(_basis_facts(basis, newest, sheets))
        model_rows += law_rows(takes, part, on_basis, epsilons)
    empty = questions.clear().with_columns(pl.lit(None).alias(name) for name in ANSWER_COLUMNS)
    module_rows = _prediction_rows(pl.concat(frames) if frames else empty)
    model_frame = PREDICTIONS.frame(model_rows).select(module_rows.columns)
    return pl.concat([module_rows.cast(model_frame.schema), model_frame])


def _basis_facts(
    basis: object, newest: pl.DataFrame, sheets: Mapping[str, Platform]
) -> pl.DataFrame:
    """Return the facts of a basis: those of a probe, or of datasheets."""
    if basis in (None, "datasheet"):
        return datasheet_facts(sheets)
    return probed_facts(newest.filter(pl.col("basis") == basis), sheets)


def _prediction_rows(answered: pl.DataFrame) -> pl.DataFrame:
    """Return answers as rows of the table: an infinite number becomes a flag and null."""
    numbers = answered.with_columns(pl.col(NUMBER_COLUMNS).cast(pl.Float64))
    return numbers.with_columns(
        *finite_numbers(*NUMBER_COLUMNS),
        pl.col("stated").alias("baseline"),
        pl.concat_list("row_id", "fact_id", pl.col("calibration").fill_null([]))
        .list.drop_nulls()
        .alias("from_ids"),
    ).select(*(name for name in PREDICTIONS.body), "from_ids")
