"""Table `predictions`: what each predictor says of each setting, or why it refuses."""

from collections.abc import Mapping, Sequence

import polars as pl

from nearfree.config.files import Config
from nearfree.core.protocols import EAGER
from nearfree.derive.granularity.facts import datasheet_facts, of_formats, probed_facts
from nearfree.derive.predict.answers import PREDICTORS, RECORDED, Answerer, calibrated, read_from
from nearfree.derive.predict.engine_answers import MODULE
from nearfree.derive.predict.formulas import prediction_equation
from nearfree.derive.predict.model_predictions import law_rows, recorded_rows, releases_that_ran
from nearfree.derive.tables.columns import (
    ORIGINS,
    SETTING_COLUMNS,
    amount,
    count,
    flag,
    number,
    text,
    told,
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
    "unbounded": flag("whether it says that no N is too large"),
    "n_max_extended": amount("the same with the extensions of the formulas", nullable=True),
    "low": amount("lower end of its interval", nullable=True),
    "high": amount("upper end of it", nullable=True),
}
REASON = {
    "limiting_module": text("what stops it", nullable=True),
    "limiting_term": text("the term that is smallest, or what changes there", nullable=True),
    "evidence": text("file and lines of the rule, or where the paper states it", nullable=True),
    "margin": number("the next smallest term, or T(N) at the next N, over what limits",
                     nullable=True),
    "constants": text("which constants, and what they were calibrated on", nullable=True),
    "regime": text("what T(N) stands on, from R0, where nothing is known of the GPU and kernel, to "
                   "R3, their own curve of the shape", nullable=True),
    "in_sample": flag("whether its constants were calibrated on this platform"),
    "refusal": text("which rule or fact is missing", nullable=True),
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
        "predictor": text("which predictor", one_of=(*PREDICTORS, *RECORDED)),
        "basis": text("which facts: datasheet, or probed by one of two methods; none where there "
                      "are none of the platform and dtype", nullable=True),
        "epsilon": amount("tolerance; a law says the same at each"),
        **VALUE,
        "balance_flop_per_byte": amount("rho that it used", nullable=True),
        **REASON,
    },
)  # fmt: skip
_ANSWERED = ("predictor", "epsilon", "n_max", "n_max_extended", "low", "high", "limiting_module",
         "limiting_term", "evidence", "margin", "constants", "regime", "calibration", "in_sample",
         "refusal")  # fmt: skip
_NUMBERS = ("n_max", "n_max_extended", "low", "high", "margin")


def write_predictions(layout: Layout, scope: str, config: Config) -> None:
    """Write a scope's predictions, by the rules and constants of the log alone."""
    tolerances = config.site.tolerances
    settings = with_launch(read_table(layout, scope, SETTINGS), read_table(layout, scope, LATENCY))
    platforms = read_table(layout, scope, PLATFORMS)
    answerer = Answerer(layout, config, log_alone=True)
    takes = read_scope(layout, scope, only=(PredictionRecorded,))
    rows = predict(settings, platforms, config.datasheets(scope), answerer, tolerances, takes=takes)
    constants = calibrated(layout)
    recorded = {event.event_id for take in takes for event in take.of(PredictionRecorded)}
    engines = settings.filter(pl.col("module") == MODULE)["platform"].unique()
    loaded = {each for name in engines for each in answerer.engines.event_ids(name)}
    known = {*settings["row_id"], *platforms["row_id"], *constants, *recorded, *loaded}
    made_from = (
        digests(layout, scope, SETTINGS, PLATFORMS, LATENCY)
        | seals_digest(layout, scope)
        | tolerances_digest(tolerances)
        | read_from(layout)
    )
    write_table(layout, scope, PREDICTIONS, PREDICTIONS.build(rows, known), made_from)


def with_launch(settings: pl.DataFrame, latency: pl.DataFrame) -> pl.DataFrame:
    """Return settings with `launch`: `eager` where a GPU's kernels were launched one by one.

    So the paper's were (app. C).
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
    """Return the rows of `predictions` for every setting, with every basis of its platform.

    Parameters
    ----------
    settings
        Rows of the table `settings`, and how their kernels were launched, `launch`, if it is known.
    platforms
        Rows of the table `platforms`; of several probes the newest counts.
    answerer
        The predictors; it is put on the facts of each basis.
    takes
        The scope's, which hold the models that were measured and what is on record of them.
    """
    models = [name for take in takes for name in getattr(take.started.data.plan, "models", ())]
    whole = settings.filter((pl.col("module") == "model") & pl.col("model").is_in(models))
    settings = settings.join(whole, on="row_id", how="anti")
    newest = of_formats(newest_balances(platforms))
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
        known = _known(basis, newest, sheets)
        answers = answerer.on(known).answers(part, epsilons, PREDICTORS)
        frames.append(part.join(answers.select("asked", *_ANSWERED), on="asked", how="inner"))
    modelled = list(recorded_rows(takes, whole))
    pair = ["platform", "dtype"]
    without = whole.join(facts, on=pair, how="anti")  # has one refusal, on no basis
    modelled += law_rows(
        takes, without, facts.clear(), answerer.on(datasheet_facts(sheets)), epsilons
    )
    for (basis,), part in facts.group_by("basis", maintain_order=True):
        informed = answerer.on(_known(basis, newest, sheets))
        modelled += law_rows(takes, whole.join(part, on=pair, how="semi"), part, informed, epsilons)
    empty = questions.clear().with_columns(pl.lit(None).alias(name) for name in _ANSWERED)
    of_modules = _rows(pl.concat(frames) if frames else empty)
    of_models = PREDICTIONS.frame(modelled).select(of_modules.columns)
    return pl.concat([of_modules.cast(of_models.schema), of_models])


def _known(basis: object, newest: pl.DataFrame, sheets: Mapping[str, Platform]) -> pl.DataFrame:
    """Return the facts of a basis: a probe's, or those of datasheets."""
    if basis in (None, "datasheet"):
        return datasheet_facts(sheets)
    return probed_facts(newest.filter(pl.col("basis") == basis), sheets)


def _rows(answered: pl.DataFrame) -> pl.DataFrame:
    """Return answers as rows of the table: what is infinite has no number, but a flag."""
    numbers = answered.with_columns(pl.col(_NUMBERS).cast(pl.Float64))
    return numbers.with_columns(
        *told(*_NUMBERS),
        pl.col("stated").alias("baseline"),
        pl.concat_list("row_id", "fact_id", pl.col("calibration").fill_null([]))
        .list.drop_nulls()
        .alias("from_ids"),
    ).select(*(name for name in PREDICTIONS.body), "from_ids")
