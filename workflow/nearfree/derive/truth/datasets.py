"""The data sets that predictors are scored on, from the log or from a file of curves."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.protocols import EAGER
from nearfree.core.scopes import IMPORTED
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.tables.latency import LATENCY, launched_on_gpu
from nearfree.derive.tables.settings import setting_row
from nearfree.derive.tables.store import read_table
from nearfree.derive.truth.truth import EXCLUDED_COLUMNS, Truth, truth
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import Take, open_takes
from nearfree.log.names import Layout
from nearfree.public import published
from nearfree.public.curve_file import curves_from_csv
from nearfree.public.curves import ImportedCurves, read_curves

_SOURCE_COLUMNS = dict.fromkeys(("backend_version", "kernel", "distribution"), pl.String)
SETTINGS = {
    "curve": pl.Int64,
    "event_id": pl.String,
    "platform": pl.String,
    **{name: column.dtype for name, column in SETTING_COLUMNS.items()},
    **_SOURCE_COLUMNS,
    "launch": pl.String,
    "baseline": pl.Int64,
    "grid": pl.List(pl.Int64),
}


class Grids(Struct, frozen=True, kw_only=True):
    """The part of curves that is scored.

    `minimum_mb` is the least size of a gemm's weights, in MB. Grid N below `least_n` are dropped.
    `awake` says whether the baseline is the first N with all experts active; else it is the
    smallest N of each curve.
    """

    minimum_mb: float = 0.0
    least_n: int = 1
    awake: bool = True


_RATIOS = {"curve": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}
_NULLABLE = dict.fromkeys(("first_exit", "next_n", "next_n_first"), pl.Int64)
_CURVE_KEY = ("platform", "stream", "take", "plan8", "setting_key")


def published_truth(take: Take, epsilons: Sequence[float]) -> Truth:
    """Return the paper's printed boundaries, on the grids that their events name.

    Source: paper, app. C: 54 settings of modules on H20 at five tolerances, last pass only; each
    forward was timed between CUDA events, without a CUDA graph. Raises ConfigError if the paper
    prints nothing at a tolerance.
    """
    events = take.events_of(BoundaryPublished)
    printed = [(event, event.data) for event in events if event.data.quantity == "n_max"]
    _check_tolerances(
        epsilons, {data.epsilon for _, data in printed if data.epsilon}, "the paper prints"
    )
    curves: dict[tuple[str, str], int] = {}
    settings, rows = [], []
    for event, data in printed:
        grid = sorted(data.grid)
        baseline = min(n for n in grid if n >= data.baseline)
        key = data.table, data.row
        if key not in curves:
            curves[key] = len(curves)
            settings.append(
                {"curve": curves[key], "event_id": event.event_id, "platform": data.platform}
                | setting_row(data.setting)
                | dict.fromkeys(_SOURCE_COLUMNS)
                | {
                    "launch": EAGER,
                    "baseline": baseline,
                    "grid": [n for n in grid if n >= baseline],
                }
            )
        rows.append(
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
    boundaries = pl.DataFrame(rows, schema_overrides=_NULLABLE)
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

    A boundary whose interval is wider than its protocol allows is undecided. Raises ConfigError if
    the tables do not hold a tolerance.
    """
    BOUNDARIES.fits(boundaries, "boundaries")
    LATENCY.fits(latency, "latency")
    newest = boundaries.filter("newest", pl.col("origin") != "published")
    _check_tolerances(epsilons, set(newest["epsilon"]), "the tables hold")
    points = latency.filter("newest", pl.col("n") >= pl.col("baseline")).sort(*_CURVE_KEY, "n")
    curves = (
        points.group_by(_CURVE_KEY, maintain_order=True)
        .agg(
            *(
                pl.col(name).first()
                for name in (*SETTING_COLUMNS, "baseline")
                if name not in _CURVE_KEY
            ),
            pl.col("row_id").first().alias("event_id"),
            launched_on_gpu().first(),
            pl.col("n").alias("grid"),
        )
        .with_row_index("curve")
        .with_columns(
            pl.col("curve").cast(pl.Int64),
            *(pl.lit(None, dtype).alias(name) for name, dtype in _SOURCE_COLUMNS.items()),
        )
    )
    keys = curves.select("curve", "grid", *_CURVE_KEY)
    selected = newest.filter(pl.col("epsilon").is_in(list(epsilons))).join(keys, on=_CURVE_KEY)
    after_exit = (
        selected.select("curve", "epsilon", "first_exit", pl.col("grid").alias("next_n_first"))
        .explode("next_n_first")
        .filter(pl.col("next_n_first") > pl.col("first_exit"))
        .group_by("curve", "epsilon")
        .agg(pl.col("next_n_first").min())
    )
    return Truth(
        settings=curves.select(*SETTINGS),
        boundaries=selected.join(after_exit, on=["curve", "epsilon"], how="left").select(
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
        ratios=points.join(keys, on=_CURVE_KEY, maintain_order="left").select(
            *_RATIOS, "ratio_low", "ratio_high"
        ),
        excluded=pl.DataFrame(schema=EXCLUDED_COLUMNS),
    )


def _check_tolerances(epsilons: Sequence[float], available: set[float], source: str) -> None:
    for epsilon in epsilons:
        if epsilon not in available:
            raise ConfigError(
                f"no boundary at the tolerance {epsilon:g}: {source} "
                f"{', '.join(f'{tolerance:g}' for tolerance in sorted(available)) or 'none'}",
                remedy="Choose one of them with --epsilon",
            )


AICONFIGURATOR = "aiconfigurator"
"""Prefix of the streams of imported AIConfigurator releases."""
BYTES_PER_MB = 1e6


def load_published(layout: Layout, epsilons: Sequence[float]) -> tuple[str, Truth]:
    """Return the name of the paper's printed boundaries, and the boundaries.

    Raises EvidenceError if they are not in the log.
    """
    newest = published.newest_take(layout)
    return f"published ({newest.name})", published_truth(newest, epsilons)


def load_aiconfigurator(
    layout: Layout, epsilons: Sequence[float], grids: Grids
) -> tuple[str, Truth]:
    """Return the name and the truth of the newest imported release of AIConfigurator.

    Raises EvidenceError if none is imported.
    """
    newest = newest_release(layout)
    curves = read_curves(layout, stream=newest)
    return _named_truth(f"aiconfigurator ({newest})", curves, epsilons, grids)


def newest_release(layout: Layout) -> str:
    """Return the stream of the newest imported release of AIConfigurator.

    Raises EvidenceError if none is imported.
    """
    streams = {name.stream for name, _, _ in open_takes(layout, IMPORTED)}
    releases = [stream for stream in streams if stream.startswith(AICONFIGURATOR)]
    if not releases:
        raise EvidenceError(
            "no curve of AIConfigurator is in the log",
            remedy="Run `nearfree import aiconfigurator`, with --take 2 if the first is retracted",
        )
    return max(releases, key=lambda stream: [*map(int, filter(str.isdigit, stream.split("_")))])


def load_file(
    path: Path, config: Config, epsilons: Sequence[float], grids: Grids
) -> tuple[str, Truth]:
    """Return the name and the truth of a CSV file of curves; nothing goes into the log."""
    curves = curves_from_csv(path, config)
    return _named_truth(path.name, curves, epsilons, grids)


def load_measured(layout: Layout, config: Config, epsilons: Sequence[float]) -> tuple[str, Truth]:
    """Return the name and the measured boundaries of modules on all platforms that have tables.

    Whole models are left out: the table `composition` covers them. Raises EvidenceError if no
    platform has tables.
    """
    scopes = [name for name in config.platforms if layout.table(name, BOUNDARIES.name).exists()]
    if not scopes:
        raise EvidenceError(
            f"{layout.root} holds no table of a platform's boundaries",
            remedy="Run the workflow, or `nearfree tables` stage by stage",
        )
    boundaries = pl.concat(read_table(layout, scope, BOUNDARIES) for scope in scopes)
    latency = pl.concat(read_table(layout, scope, LATENCY) for scope in scopes)
    modules = boundaries.filter(pl.col("module") != "model")
    origins = modules.filter(pl.col("origin") != "published")["origin"].unique().sort()
    name = " and ".join(origins) or "measured"
    return f"{name} modules ({', '.join(scopes)})", measured_truth(modules, latency, epsilons)


def heavy_enough(settings: pl.DataFrame, minimum_mb: float) -> pl.DataFrame:
    """Return the curves without those of `gemm` that have small weights.

    Small weights can stay in a GPU's last-level cache between calls, so that their curves do not
    show the memory's bandwidth. `minimum_mb` is the least size of a gemm's weights as stored,
    d_model d_ff s, in decimal MB.
    """
    stored = pl.col("weights").fill_null(pl.col("dtype"))
    weight_bytes = stored.replace_strict(ELEMENT_BYTES, return_dtype=pl.Float64)
    weights = pl.col("d_model") * pl.col("d_ff") * weight_bytes
    return settings.filter((pl.col("module") != "gemm") | (weights >= minimum_mb * BYTES_PER_MB))


def _named_truth(
    name: str, curves: ImportedCurves, epsilons: Sequence[float], grids: Grids
) -> tuple[str, Truth]:
    settings = curves.settings.filter(pl.col("module") != "collective")  # scored by T itself
    large = heavy_enough(settings, grids.minimum_mb)
    if grids.minimum_mb:
        left_out = settings.height - large.height
        name += f", gemm weights of {grids.minimum_mb:g} MB or more: {left_out} curves left out"
    if grids.least_n > 1:
        name += f", N of {grids.least_n} or more"
    if not grids.awake:
        name += ", ratios from the smallest N"
    points = curves.points.filter((pl.col("n") >= grids.least_n) | pl.col("context").is_not_null())
    return name, truth(large, points, epsilons, awake=grids.awake)
