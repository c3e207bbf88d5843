"""Tables `accuracy` and `drift`: predictors and versions on the imported curves."""

import polars as pl

from nearfree.config.files import Config
from nearfree.derive.predict.answers import Answerer, sources_digest
from nearfree.derive.reference.left_out import LEFT_OUT
from nearfree.derive.score.evaluation import EVERY, evaluate, twins
from nearfree.derive.score.scores import groups
from nearfree.derive.tables.columns import amount, count, flag, number, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import seals_digest, tolerances_digest, write_table
from nearfree.derive.truth.datasets import Grids, load_aiconfigurator, newest_release
from nearfree.derive.truth.truth import Truth, narrowed
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.derive.work_model.samples import LEAST_MB
from nearfree.log.names import Layout
from nearfree.public.curves import read_curves

DTYPE = "bfloat16"
"""The scored element type: the constants are those of 16-bit products."""
_GROUPINGS: dict[str, tuple[str, ...]] = {
    "module": ("predictor", "module", "routing", "seen"),
    "platform": ("predictor", "module", "routing", "seen", "platform"),
    "version": (
        *("predictor", "module", "routing", "seen", "platform"),
        *("backend", "backend_version"),
    ),
}
_KEYS = ("predictor", "module", "seen", "platform", "backend", "backend_version", "routing")
ACCURACY = Table(
    name="accuracy",
    row="one predictor on a group of imported curves",
    key=("grouping", *_KEYS),
    formula="scores of the function that answers users, which never sees the curves",
    code="nearfree.derive.score.accuracy",
    body={
        "grouping": text("by module and routing; by platform, too; by version, too",
                         one_of=tuple(_GROUPINGS)),
        "predictor": text("which predictor; twin_version is another version's curve: the noise "
                          "ceiling; work_model_left_out has constants fitted on all platforms but "
                          "the one asked of", one_of=(*EVERY, LEFT_OUT)),
        "module": text("gemm, moe_ffn or attention"),
        "seen": flag("whether constants were calibrated on these platforms"),
        "platform": text("the kind of machine", nullable=True),
        "backend": text("the backend that ran it", nullable=True),
        "backend_version": text("its version", nullable=True),
        "routing": text("balanced, skewed or power_law:EXPONENT", nullable=True),
        "epsilon": amount("tolerance"),
        "settings": count("how many curves"),
        "answered": count("of them, those with a prediction", at_least=0),
        "undecided": count("of them, those that the curve leaves undecided", at_least=0),
        "hits": count("predictions in [N_max, next N); a refused or undecided setting is a miss",
                      at_least=0),
        "hit_share": number("hits / settings"),
        "within_1_31": number("share of settings within a factor of 1.31 of that interval"),
        "within_2": number("share within a factor of two"),
        "t_ratio_error": number("median error of T(N) / T(baseline) up to 4 N_max",
                                nullable=True),
        "interval_coverage": number("share of stated intervals that meet the true one",
                                    nullable=True),
        "interval_width": number("median high / low", nullable=True),
    },
)  # fmt: skip
DRIFT = Table(
    name="drift",
    row="the curves whose N_max went from one N to another between two versions",
    key=(
        *("platform", "module", "backend", "backend_version"),
        *("other_backend", "other_version", "other_n_max", "n_max"),
    ),
    formula="boundaries of two versions' imported curves of one setting",
    code="nearfree.derive.score.accuracy",
    body={
        "platform": text("the kind of machine"),
        "module": text("gemm, moe_ffn or attention"),
        "backend": text("the backend that ran it"),
        "backend_version": text("its version"),
        "other_backend": text("the backend that ran its twin"),
        "other_version": text("the version before, or after where there is none"),
        "epsilon": amount("tolerance"),
        "other_n_max": count("N_max with the other version"),
        "n_max": count("N_max with this one"),
        "settings": count("how many curves"),
    },
)


def write_accuracy(layout: Layout, scope: str, config: Config) -> None:
    """Write the predictors' scores on the imported curves, and boundaries' drift between versions.

    Raises EvidenceError if nothing is imported.
    """
    epsilon = config.site.epsilon
    answerer = Answerer(layout, config, log_alone=True, blind=True)
    scores, drift, event_ids = accuracy(layout, answerer, epsilon)
    made_from = seals_digest(layout, scope) | tolerances_digest([epsilon]) | sources_digest(layout)
    write_table(layout, scope, ACCURACY, ACCURACY.build(scores, event_ids), made_from)
    write_table(layout, scope, DRIFT, DRIFT.build(drift, event_ids), made_from)


def accuracy(
    layout: Layout, answerer: Answerer, epsilon: float
) -> tuple[pl.DataFrame, pl.DataFrame, set[str]]:
    """Return the rows of `accuracy` and of `drift`, and the ids of the events behind them.

    Raises EvidenceError if no release of AIConfigurator is imported.
    """
    _, imported_truth = load_aiconfigurator(layout, [epsilon], Grids(minimum_mb=LEAST_MB))
    truth = narrowed(imported_truth, pl.col("dtype") == DTYPE)
    # The first event of a segment is the run's start, which names the artefact and its digest.
    run_ids = truth.settings["event_id"].str.replace(r"#\d+$", "#1").unique().sort().to_list()
    constants = recorded_constants(layout, collectives=False).values()
    from_ids = [*run_ids, *sorted(event.event_id for event in constants)]
    calibrated_platforms = sorted({name for event in constants for name in event.data.platforms})
    left_out = answerer.left_out(read_curves(layout, newest_release(layout)), epsilon=epsilon)
    evaluation = evaluate(truth, answerer, [epsilon], EVERY, left_out)
    scores = evaluation.scores.with_columns(
        pl.col("platform").is_in(calibrated_platforms).alias("seen")
    )
    rows = [
        {**dict.fromkeys(_KEYS), **row, "grouping": grouping, "from_ids": from_ids}
        for grouping, by in _GROUPINGS.items()
        for row in groups(scores, by)
    ]
    drift = _drift_rows(truth, epsilon).with_columns(
        pl.concat_list(pl.lit(event_id) for event_id in run_ids).alias("from_ids")
    )
    return _finite(ACCURACY.frame(rows)), drift, set(from_ids)


def _drift_rows(truth: Truth, epsilon: float) -> pl.DataFrame:
    boundaries = truth.boundaries.filter(~pl.col("undecided")).join(
        truth.settings, on="curve", how="inner"
    )
    names = ("curve", "backend", "backend_version", "n_max")
    curve_columns = boundaries.select("platform", "module", *names)
    twin_columns = boundaries.select(pl.col("curve").alias("twin"),
                      pl.col("backend").alias("other_backend"),
                      pl.col("backend_version").alias("other_version"),
                      pl.col("n_max").alias("other_n_max"))  # fmt: skip
    pairs = (
        twins(truth)
        .join(curve_columns, on="curve", how="inner")
        .join(twin_columns, on="twin", how="inner")
    )
    return pairs.group_by(DRIFT.key).agg(
        pl.len().cast(pl.Int64).alias("settings"), pl.lit(epsilon).alias("epsilon")
    )


def _finite(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows whose numbers are finite or null."""
    numbers = pl.selectors.float()
    return rows.with_columns(pl.when(numbers.is_finite()).then(numbers))
