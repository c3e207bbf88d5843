"""Tables `lookup` and `forecast`: the answers of all predictors on deployments.yaml."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.outlook.about import (
    CONDITION,
    GRAPHS,
    MEMORY_COLUMNS,
    MEMORY_FORMULA,
    condition_rows,
    model_ids,
)
from nearfree.derive.outlook.drift import STUDIES, VERSION_DRIFT, version_drift
from nearfree.derive.outlook.lookup import PUBLISHED_LOOKUP, published_answers
from nearfree.derive.outlook.trend import TREND, trend
from nearfree.derive.predict.answers import Answerer, calibration_ids, sources_digest
from nearfree.derive.predict.forecast.expand_deployments import deployments, entry
from nearfree.derive.predict.forecast.forecast import Forecast, forecast
from nearfree.derive.predict.forecast.total import MINIMUM, SUM
from nearfree.derive.predict.formulas import lookup_equation
from nearfree.derive.predict.predictions import REASON, VALUE
from nearfree.derive.tables.columns import IDS, amount, count, finite_numbers, flag, text
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import (
    digests,
    read_table,
    seals_digest,
    tolerances_digest,
    write_table,
)
from nearfree.derive.work_model.family import Integers
from nearfree.log.names import Layout

LOOKUP = Table(
    name="lookup",
    row="one predictor's N_max for a model on a platform under one serving condition",
    key=(*CONDITION, "baseline", "predictor", "composition", "epsilon"),
    formula="minimum of the modules' boundaries, or the boundary of the sum of their T(N)",
    paper="sec. 4",
    code="nearfree.derive.outlook.outlook",
    equation=lookup_equation,
    beside=MEMORY_FORMULA,
    body={
        **CONDITION,
        **MEMORY_COLUMNS,
        **GRAPHS,
        "baseline": count("the N that ratios refer to: 1, and the paper's where it is another"),
        "predictor": text("the predictor", one_of=PREDICTORS),
        "composition": text("how modules make the model: the sum of their times, or the minimum of "
                            "their boundaries", one_of=(SUM, MINIMUM)),
        "epsilon": amount("tolerance; a law gives the same N_max at each"),
        **VALUE,
        "censored": flag("whether it is the largest N of the grid"),
        **REASON,
        "drawn": flag("whether figures show it"),
    },
)  # fmt: skip
FORECAST = Table(
    name="forecast",
    row="a module's part of T(N) of a model, by the work model, at one N",
    key=(*CONDITION, "n", "module"),
    formula="T(N) of each module by the work model; the forward's is their sum",
    code="nearfree.derive.outlook.outlook",
    body={
        **CONDITION,
        "fits": MEMORY_COLUMNS["fits"],
        "n": count("N, positions in one forward"),
        "module": text("the role of the module in the forward"),
        "latency_us": amount("time of the module in all its layers together"),
        "share": amount("of the forward's T(N)"),
        "ratio": amount("T(N) / T(1) of the whole forward"),
        **GRAPHS,
        "tokens": count("rows of a rank's step, for an engine with graphs", nullable=True),
        "rows": count("rows that run: those of the graph, or its own", nullable=True),
        "unpadded_us": amount("the forward's T(N) without padding", nullable=True),
    },
)
SHOWN_N = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""The N of the table `forecast`; `nearfree predict` prints T at every N."""


def write_outlook(layout: Layout, scope: str, config: Config) -> None:
    """Write the tables that follow from models, datasheets, rules and constants, without samples.

    Releases' rules are compared at the headline tolerance.
    """
    epsilon = config.site.epsilon
    platforms = read_table(layout, scope, PLATFORMS)
    answerer = Answerer(layout, config, log_alone=True)
    result = outlook(config, answerer, platforms)
    published, event_ids = published_answers(layout, config.platforms, platforms)
    drift = version_drift(
        STUDIES,
        config.releases,
        config.platforms,
        platforms,
        answerer=answerer,
        resolver=Resolver(layout),
        epsilon=epsilon,
    )
    made_from = outlook_inputs(layout, scope, [epsilon, *config.site.tolerances], result.models)
    source_ids = {*platforms["row_id"], *calibration_ids(layout), *result.models, *event_ids}
    for table, rows in (
        (LOOKUP, result.lookup),
        (FORECAST, result.forecast),
        (PUBLISHED_LOOKUP, published),
        (TREND, trend(config.platforms, platforms, answerer)),
        (VERSION_DRIFT, drift),
    ):
        write_table(layout, scope, table, table.build(rows, source_ids), made_from)


def outlook_inputs(
    layout: Layout, scope: str, tolerances: Sequence[float], models: Iterable[str]
) -> dict[str, str]:
    """Return the inputs of tables of models and datasheets, digests by name."""
    return (
        digests(layout, scope, PLATFORMS)
        | seals_digest(layout, scope)
        | tolerances_digest(tolerances)
        | sources_digest(layout)
        | dict(model.rsplit("@", 1) for model in models)
    )


class Outlook(Struct, frozen=True, kw_only=True):
    """The rows of `lookup` and of `forecast`, and the ids of their models."""

    lookup: pl.DataFrame
    forecast: pl.DataFrame
    models: tuple[str, ...]


def outlook(config: Config, answerer: Answerer, platforms: pl.DataFrame) -> Outlook:
    """Return the predictors' answers on all entries of deployments.yaml, at every tolerance.

    `platforms` are rows of the table of that name, whose datasheets answers rest on.
    """
    rows, curves, models = [LOOKUP.frame([])], [FORECAST.frame([])], set()
    for name, spec in config.deployments.items():
        with entry(config, name):
            queries = deployments(config, spec, any_class=True)
            answers = forecast(queries, answerer, config.site.tolerances)
        ids = model_ids(config, spec)
        about = condition_rows(name, answers.deployments, ids, platforms)
        rows.append(_lookup_rows(answers, about.with_columns(drawn=pl.lit(spec.drawn))))
        curves.append(_forecast_rows(answers, about))
        models |= {*ids.values()}
    return Outlook(lookup=pl.concat(rows), forecast=pl.concat(curves), models=tuple(sorted(models)))


def _lookup_rows(answers: Forecast, about: pl.DataFrame) -> pl.DataFrame:
    """Return answers as rows of `lookup`: an infinite number becomes a flag and null."""
    rows = answers.answers.join(about, left_on="deployment", right_on="place")
    return rows.with_columns(
        pl.col("deployment_right").alias("deployment"),
        pl.col("censored", "in_sample").fill_null(value=False),
        *finite_numbers("n_max", "n_max_extended", "low", "high", "margin"),
        pl.concat_list("sources", pl.col("calibration").fill_null([])).alias("from_ids"),
    ).select(*LOOKUP.body, "from_ids")


def _forecast_rows(answers: Forecast, about: pl.DataFrame) -> pl.DataFrame:
    total = answers.total
    shown = np.flatnonzero(np.isin(total.grid, SHOWN_N))
    parts = [
        (deployment, place, role)
        for deployment, roles in enumerate(total.roles)
        if total.refusals[deployment] is None
        for place, role in roles.items()
    ]
    index = np.array([part[:2] for part in parts], dtype=np.int64).reshape(-1, 2).T
    model, latency = total.model_us[index[0]], total.latency_us[index[0], index[1]][:, shown]
    frame = pl.DataFrame(
        {
            "place": index[0].repeat(len(shown)),
            "module": pl.Series([role for *_, role in parts for _ in shown], dtype=pl.String),
            "n": np.tile(total.grid[shown], len(parts)),
            "latency_us": latency.ravel(),
            "share": (latency / model[:, shown]).ravel(),
            "ratio": (model[:, shown] / model[:, :1]).ravel(),
        }
    )
    frame = frame.filter(pl.col("latency_us") > 0)  # overlapped modules take no time
    frame = frame.join(_step_rows(answers, shown), on=["place", "n"], how="left")
    calibration = pl.Series("calibration", [[*ids] for ids in total.calibration], dtype=IDS)
    about_with_ids = about.with_columns(from_ids=pl.concat_list("sources", calibration))
    return frame.join(about_with_ids, on="place").select(*FORECAST.body, "from_ids")


def _step_rows(answers: Forecast, shown: Integers) -> pl.DataFrame:
    """Return the steps' rows of deployments with graphs, by `place` and `n`."""
    total, padding = answers.total, answers.total.padding
    rows = [
        (place, n, step.tokens, step.rows, unpadded)
        for place, deployment in enumerate(answers.deployments)
        if padding and deployment.graphs and padding.steps[place]
        for n, step, unpadded in zip(
            total.grid[shown].tolist(),
            [padding.steps[place][position] for position in shown],
            total.unpadded_us[place][:, shown].sum(axis=0).tolist(),
            strict=True,
        )
    ]
    columns = ("tokens", "rows", "unpadded_us")
    types = {"place": pl.Int64, "n": pl.Int64} | {
        deployment: FORECAST.body[deployment].dtype for deployment in columns
    }
    return pl.DataFrame(rows, schema=types, orient="row")
