"""Boundaries that stand in tables, printed or measured, as truths."""

from collections.abc import Sequence

import polars as pl

from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.truth.truth import EXCLUDED_COLUMNS, Truth
from nearfree.errors import ConfigError
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import Take

_ABSENT = dict.fromkeys(("backend_version", "kernel", "distribution"), pl.String)
SETTINGS = {
    "curve": pl.Int64,
    "event_id": pl.String,
    "platform": pl.String,
    **{name: column.dtype for name, column in SETTING_COLUMNS.items()},
    **_ABSENT,
    "baseline": pl.Int64,
    "grid": pl.List(pl.Int64),
}
_RATIOS = {"curve": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}
_UNKNOWN = dict.fromkeys(("first_exit", "next_n", "next_n_first"), pl.Int64)
_CURVE = ("platform", "stream", "take", "plan8", "setting_key")


def published_truth(take: Take, epsilons: Sequence[float]) -> Truth:
    """Return the boundaries that were printed, on the grids that their events name.

    Source: paper, app. C: 54 settings of modules on H20 at five tolerances, last pass alone.

    Raises
    ------
    ConfigError
        A tolerance at which nothing was printed.
    """
    printed_events = [(event, event.data) for event in take.of(BoundaryPublished)]
    printed = [(event, data) for event, data in printed_events if data.quantity == "n_max"]
    _known(epsilons, {data.epsilon for _, data in printed if data.epsilon}, "the paper prints")
    curves: dict[tuple[str, str], int] = {}
    settings, found = [], []
    for event, data in printed:
        grid = sorted(data.grid)
        baseline = min(n for n in grid if n >= data.baseline)
        key = data.table, data.row
        if key not in curves:
            curves[key] = len(curves)
            settings.append(
                {"curve": curves[key], "event_id": event.event_id, "platform": data.platform}
                | setting_row(data.setting)
                | dict.fromkeys(_ABSENT)
                | {"baseline": baseline, "grid": [n for n in grid if n >= baseline]}
            )
        found.append(
            {
                "curve": curves[key],
                "epsilon": data.epsilon,
                "baseline": baseline,
                "n_max": int(data.n_max),
                "first_exit": None,
                "next_n": min((n for n in grid if n > data.n_max), default=None),
                "next_n_first": None,
                "censored": data.n_max >= grid[-1],
                "undecided": False,
            }
        )
    boundaries = pl.DataFrame(found, schema_overrides=_UNKNOWN)
    return Truth(
        settings=pl.DataFrame(settings, schema=SETTINGS),
        boundaries=boundaries.filter(pl.col("epsilon").is_in(list(epsilons))),
        ratios=pl.DataFrame(schema=_RATIOS),
        excluded=pl.DataFrame(schema=EXCLUDED_COLUMNS),
    )


def measured_truth(
    boundaries: pl.DataFrame, latency: pl.DataFrame, epsilons: Sequence[float]
) -> Truth:
    """Return the newest measured boundaries of the tables `boundaries` and `latency`.

    A boundary whose interval is wider than its protocol was to leave it is undecided.

    Raises
    ------
    ConfigError
        A tolerance that the tables do not hold.
    """
    BOUNDARIES.fits(boundaries, "boundaries")
    LATENCY.fits(latency, "latency")
    newest = boundaries.filter("newest", pl.col("origin") != "published")
    _known(epsilons, set(newest["epsilon"]), "the tables hold")
    points = latency.filter("newest", pl.col("n") >= pl.col("baseline")).sort(*_CURVE, "n")
    curves = (
        points.group_by(_CURVE, maintain_order=True)
        .agg(
            *(
                pl.col(name).first()
                for name in (*SETTING_COLUMNS, "baseline")
                if name not in _CURVE
            ),
            pl.col("row_id").first().alias("event_id"),
            pl.col("n").alias("grid"),
        )
        .with_row_index("curve")
        .with_columns(
            pl.col("curve").cast(pl.Int64),
            *(pl.lit(None, dtype).alias(name) for name, dtype in _ABSENT.items()),
        )
    )
    keys = curves.select("curve", "grid", *_CURVE)
    known = newest.filter(pl.col("epsilon").is_in(list(epsilons))).join(keys, on=_CURVE)
    after_exit = (
        known.select("curve", "epsilon", "first_exit", pl.col("grid").alias("next_n_first"))
        .explode("next_n_first")
        .filter(pl.col("next_n_first") > pl.col("first_exit"))
        .group_by("curve", "epsilon")
        .agg(pl.col("next_n_first").min())
    )
    return Truth(
        settings=curves.select(*SETTINGS),
        boundaries=known.join(after_exit, on=["curve", "epsilon"], how="left").select(
            "curve",
            "epsilon",
            "baseline",
            "n_max",
            "first_exit",
            "next_n",
            "next_n_first",
            pl.col("next_n").is_null().alias("censored"),
            (pl.col("verdict") == "undecided").alias("undecided"),
        ),
        ratios=points.join(keys, on=_CURVE, maintain_order="left").select(*_RATIOS),
        excluded=pl.DataFrame(schema=EXCLUDED_COLUMNS),
    )


def _known(epsilons: Sequence[float], known: set[float], who: str) -> None:
    for epsilon in epsilons:
        if epsilon not in known:
            raise ConfigError(
                f"no boundary at the tolerance {epsilon:g}: {who} "
                f"{', '.join(f'{each:g}' for each in sorted(known)) or 'none'}",
                remedy="Choose one of them with --epsilon",
            )
