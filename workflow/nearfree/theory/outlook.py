"""Tables `lookup` and `forecast`: what deployments.yaml asks about, answered by every predictor."""

from collections.abc import Sequence

import msgspec
import polars as pl
from msgspec import Struct

from nearfree.config import Config
from nearfree.decoders.decoder import Decoder
from nearfree.events.line import sha256
from nearfree.tables.schema import IDS, Table, amount, count, flag, text
from nearfree.theory.answers import Answerer
from nearfree.theory.forecast.asked import deployments
from nearfree.theory.forecast.deployment import Deployment
from nearfree.theory.forecast.forecast import PREDICTORS, Forecast, forecast
from nearfree.theory.forecast.total import MINIMUM, SUM
from nearfree.theory.predictions import REASON, VALUE

_ABOUT = {
    "deployment": text("the entry of deployments.yaml"),
    "model": text("the model file's name"),
    "platform": text("the kind of machine"),
    "attention": text("what runs attention, with its version"),
    "moe": text("what runs the experts, with its version", nullable=True),
    "routing": text("how tokens fall on experts", nullable=True),
    "dtype": text("element type"),
    "batch": count("b, requests in one forward"),
    "context": count("L, cached positions a request"),
}
LOOKUP = Table(
    name="lookup",
    row="one predictor's N_max for a model on a platform under one serving condition",
    key=(*_ABOUT, "baseline", "predictor", "composition", "epsilon"),
    body={
        **_ABOUT,
        "baseline": count("the N that ratios refer to: 1, and the paper's where it is another"),
        "predictor": text("which predictor", one_of=PREDICTORS),
        "composition": text("how modules make the model: the sum of their times, or the minimum of "
                            "their boundaries", one_of=(SUM, MINIMUM)),
        "epsilon": amount("tolerance; a law says the same at each"),
        **VALUE,
        "censored": flag("whether it is the largest N that was looked at"),
        **REASON,
    },
)  # fmt: skip
FORECAST = Table(
    name="forecast",
    row="a module's part of T(N) of a model, by the work model, at one N",
    key=(*_ABOUT, "n", "module"),
    body={
        **_ABOUT,
        "n": count("N, positions in one forward"),
        "module": text("the role of the module in the forward"),
        "latency_us": amount("what it takes, all its layers together"),
        "share": amount("of the forward's T(N)"),
        "ratio": amount("T(N) / T(1) of the whole forward"),
    },
)
MODELS = "config/models:"
"""What the ids of model files begin with."""
SHOWN_N = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""The N of the table `forecast`; `nearfree predict` prints T at every N."""


class Outlook(Struct, frozen=True, kw_only=True):
    """The rows of `lookup` and of `forecast`, and the ids of the models that they speak of."""

    lookup: pl.DataFrame
    forecast: pl.DataFrame
    models: tuple[str, ...]


def outlook(config: Config, answerer: Answerer, epsilon: float, platforms: pl.DataFrame) -> Outlook:
    """Return what predictors say of all that deployments.yaml lists.

    Parameters
    ----------
    epsilon
        The tolerance.
    platforms
        Rows of the table `platforms`, whose datasheets answers rest on.
    """
    said, curves, models = [_empty(LOOKUP)], [_empty(FORECAST)], set()
    for name, asked in config.deployments.items():
        found = forecast(deployments(config, asked), answerer, [epsilon])
        about = _about(name, found.deployments, platforms)
        said.append(_lookup(found, about))
        curves.append(_forecast(found, about))
        models |= {model_id(each.decoder) for each in found.deployments}
    return Outlook(lookup=pl.concat(said), forecast=pl.concat(curves), models=tuple(sorted(models)))


def model_id(decoder: Decoder) -> str:
    """Return the id by which a row names a decoder: the file's name and a digest of its shape."""
    shape = sha256(msgspec.json.encode(decoder, order="deterministic"))
    return f"{MODELS}{decoder.name}@{shape[:12]}"


def _lookup(found: Forecast, about: pl.DataFrame) -> pl.DataFrame:
    """Return answers as rows of the table: what is infinite has no number, but a flag."""
    numbers = ("n_max", "n_max_extended", "low", "high", "margin")
    rows = found.answers.join(about, left_on="deployment", right_on="place")
    return rows.with_columns(
        pl.col("deployment_right").alias("deployment"),
        pl.col("n_max").is_infinite().fill_null(value=False).alias("unbounded"),
        pl.col("censored", "in_sample").fill_null(value=False),
        *(pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in numbers),
        pl.concat_list("sources", pl.col("calibration").fill_null([])).alias("from_ids"),
    ).select(*LOOKUP.body, "from_ids")


def _forecast(found: Forecast, about: pl.DataFrame) -> pl.DataFrame:
    frames = [_empty(FORECAST)]
    for place in range(len(found.deployments)):
        curve = found.curve(place).filter(pl.col("n").is_in(SHOWN_N))
        shares = curve.unpivot(
            index=["n", "ratio", "latency_us"], variable_name="module", value_name="share"
        )
        part = shares.with_columns(
            pl.col("latency_us") * pl.col("share"),
            pl.lit(place).cast(pl.Int64).alias("place"),
            pl.lit(list(found.total.calibration[place])).alias("calibration"),
        )
        rows = part.join(about, on="place").with_columns(
            pl.concat_list("sources", "calibration").alias("from_ids")
        )
        frames.append(rows.select(*FORECAST.body, "from_ids"))
    return pl.concat(frames)


def _about(name: str, asked: Sequence[Deployment], platforms: pl.DataFrame) -> pl.DataFrame:
    sheets = platforms.filter(basis="datasheet").select("platform", "dtype", "row_id")
    facts = {(platform, dtype): row for platform, dtype, row in sheets.rows()}
    rows: list[dict[str, object]] = [
        {
            "place": place,
            "deployment": name,
            "model": each.decoder.name,
            "platform": each.platform,
            "attention": str(each.attention),
            "moe": None if each.moe is None else str(each.moe),
            "routing": each.routing,
            "dtype": each.dtype or each.decoder.dtype,
            "batch": each.batch,
            "context": each.context,
            "sources": [
                *filter(None, [facts.get((each.platform, each.dtype or each.decoder.dtype))]),
                model_id(each.decoder),
            ],
        }
        for place, each in enumerate(asked)
    ]
    types = {name: column.dtype for name, column in _ABOUT.items()}
    return pl.DataFrame(rows, schema={"place": pl.Int64, **types, "sources": IDS})


def _empty(table: Table) -> pl.DataFrame:
    names = (*table.body, "from_ids")
    return pl.DataFrame(schema={name: table.dtypes[name] for name in names})
