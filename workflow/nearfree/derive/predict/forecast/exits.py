"""The boundary at which a model's T(N) leaves a tolerance, and the module that limits it."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.predictors import WORK_MODEL
from nearfree.decoders.ranks.modules import BETWEEN, HOST
from nearfree.derive.predict.forecast.total import MINIMUM, SUM, Total
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.family import Array, Flags, Integers

_MORE_ROWS = "more rows pass through the kernels between modules"
"""The limiting term where the time between modules limits."""


class Exits(Struct, frozen=True, kw_only=True):
    """Indices in the grid, [rows]: last pass, its interval, and the first N after it.

    `censored` says that the last pass is the grid's end.
    """

    last: Integers
    low: Integers
    high: Integers
    after: Integers
    censored: Flags


def exits(ratio: Array, low: Array, high: Array, baseline: Integers, epsilon: float) -> Exits:
    """Return the boundaries of curves at a tolerance, from their baselines on (paper, sec. 2.2).

    Parameters
    ----------
    ratio, low, high
        T(N) / T(baseline) and its interval, [rows, grid].
    baseline
        The index of each baseline, [rows].
    """
    limit = 1.0 + epsilon
    last, end = last_pass(ratio <= limit, baseline), ratio.shape[1] - 1
    return Exits(
        last=last,
        low=np.minimum(last_pass(high <= limit, baseline), last),
        high=np.maximum(last_pass(low <= limit, baseline), last),
        after=np.minimum(last + 1, end),
        censored=last == end,
    )


def total_exits(
    latency: Total, baselines: Sequence[int], epsilons: Sequence[float], composition: str
) -> pl.DataFrame:
    """Return the boundary of each deployment by the work model, one row per tolerance.

    Parameters
    ----------
    baselines
        The baseline N of each deployment; one that the grid lacks is refused.
    composition
        SUM for the boundary of the summed times, MINIMUM for the smallest boundary of modules.
    """
    grid = latency.grid
    answerable = np.isin(baselines, grid) & np.array(
        [refusal is None for refusal in latency.refusals]
    )
    rows = np.flatnonzero(answerable)
    baseline_places = np.searchsorted(grid, np.array(baselines)[rows])
    compose = {SUM: _by_sum, MINIMUM: _by_minimum}[composition]
    frames = [compose(latency, rows, baseline_places, epsilon) for epsilon in epsilons]
    answered = pl.concat(frames)
    reasons = [
        reason or (None if n in grid else f"the baseline N={n} is not on the grid")
        for n, reason in zip(baselines, latency.refusals, strict=True)
    ]
    tolerances = pl.DataFrame({"epsilon": list(epsilons)}, schema={"epsilon": pl.Float64})
    evidence = pl.DataFrame(
        {
            "deployment": range(len(reasons)),
            "constants": latency.constants,
            "calibration": [list(events) for events in latency.calibration],
            "in_sample": latency.in_sample,
            "regime": [latency.regime(place) for place in range(len(reasons))],
            "refusal": reasons,
        },
        schema_overrides={
            "deployment": pl.Int64,
            "calibration": pl.List(pl.String),
            "regime": pl.String,
            "refusal": pl.String,
        },
    )
    refused = evidence.drop_nulls("refusal").select("deployment").join(tolerances, how="cross")
    return (
        pl.concat([answered, refused], how="diagonal")
        .join(evidence, on="deployment", how="left")
        .with_columns(
            pl.lit(WORK_MODEL).alias("predictor"), pl.lit(composition).alias("composition")
        )
    )


def sum_exits(latency: Total, rows: Integers, baseline_places: Integers, epsilon: float) -> Exits:
    """Return the boundaries of deployments' T(N) at a tolerance, with each one's baseline place."""
    model = latency.model_us
    base = model[rows, baseline_places][:, None]
    return exits(
        model[rows] / base,
        latency.moved_us(-1.0)[rows] / base,
        latency.moved_us(1.0)[rows] / base,
        baseline_places,
        epsilon,
    )


def _by_sum(
    latency: Total, rows: Integers, baseline_places: Integers, epsilon: float
) -> pl.DataFrame:
    boundary = sum_exits(latency, rows, baseline_places, epsilon)
    modules = latency.latency_us[rows]
    index = np.arange(len(rows))
    growth_us = modules[index, :, boundary.after] - modules[index, :, baseline_places]
    limiter = growth_us.argmax(axis=1)
    return _boundary_rows(
        latency, rows, limiter, boundary, baseline_places, epsilon=epsilon, summed=True
    )


def _by_minimum(
    latency: Total, rows: Integers, baseline_places: Integers, epsilon: float
) -> pl.DataFrame:
    deployment, place, by_module = _module_exits(latency, rows, baseline_places, epsilon)
    order = np.lexsort((by_module.last, deployment))
    _, starts = np.unique(deployment[order], return_index=True)
    least = order[starts]
    boundary = Exits(
        last=by_module.last[least],
        low=np.minimum.reduceat(by_module.low[order], starts),
        high=np.minimum.reduceat(by_module.high[order], starts),
        after=by_module.after[least],
        censored=by_module.censored[least],
    )
    return _boundary_rows(latency, rows, place[least], boundary, baseline_places, epsilon=epsilon)


def _ratio(us: Array, base_us: Array) -> Array:
    """Return T(N) / T(baseline).

    A module that is fully overlapped at the baseline takes no time there: its ratio is 1 while that
    is so, and infinite from the first N at which it takes time.
    """
    exposed = base_us > 0
    ratio = us / np.where(exposed, base_us, 1.0)
    return np.asarray(np.where(exposed, ratio, np.where(us > 0, np.inf, 1.0)))


def module_exits(latency: Total, deployment: int, epsilon: float) -> pl.DataFrame:
    """Return the boundary of each module of one deployment by itself, from N = 1.

    The columns are those of `total_exits`, the rows are in the order of the forward.
    """
    baseline_places = np.zeros(1, dtype=np.int64)
    _, place, boundary = _module_exits(latency, np.array([deployment]), baseline_places, epsilon)
    rows = np.full(len(place), deployment)
    modules = [latency.roles[deployment][module] for module in place]
    return _boundary_rows(
        latency, rows, place, boundary, np.zeros_like(rows), epsilon=epsilon
    ).with_columns(pl.Series("limiting_module", modules, dtype=pl.String))


def _module_exits(
    latency: Total, rows: Integers, baseline_places: Integers, epsilon: float
) -> tuple[Integers, Integers, Exits]:
    """Return deployment and place of every module, and its boundary."""
    deployment, place = np.nonzero(latency.asked[rows] >= 0)
    modules = latency.latency_us[rows][deployment, place]
    module_baselines = baseline_places[deployment]
    ratio = _ratio(modules, modules[np.arange(len(module_baselines)), module_baselines][:, None])
    factor = np.exp(latency.band[rows][deployment, place])[:, None]
    boundary = exits(ratio, ratio / factor, ratio * factor, module_baselines, epsilon)
    return deployment, place, boundary


def _boundary_rows(
    latency: Total,
    rows: Integers,
    place: Integers,
    boundary: Exits,
    baseline_places: Integers,
    *,
    epsilon: float,
    summed: bool = False,
) -> pl.DataFrame:
    """Return boundaries with their limiters; a boundary at the grid's end has none.

    `place` is that of the limiting module. What limits is its T(N), or with `summed` that of the
    whole forward; without padding it differs only where a graph pads the step. The limiting term is
    that of `_limiting_steps`.
    """
    times_us, unpadded_us = (
        us[rows].sum(axis=1) if summed else us[rows, place]
        for us in (latency.latency_us, latency.unpadded_us)
    )
    row = np.arange(len(rows))
    baseline_us = times_us[row, baseline_places]
    ratio = _ratio(times_us[row, boundary.after], baseline_us)
    unpadded = _ratio(unpadded_us[row, boundary.after], baseline_us)
    roles = [latency.roles[each].get(module) for each, module in zip(rows, place, strict=True)]
    is_host = [role == HOST for role in roles]
    may_be_graph = (unpadded <= 1.0 + epsilon) | np.array(is_host, dtype=bool)
    graphs, graph_evidence = _graph_limits(latency, rows, boundary, may_be_graph)
    step = _limiting_steps(latency.latency_us[rows, place], baseline_places, boundary)
    grid = latency.grid
    boundaries = pl.DataFrame(
        {
            "deployment": rows,
            "epsilon": np.full(len(rows), epsilon),
            "n_max": grid[boundary.last].astype(float),
            "low": grid[boundary.low].astype(float),
            "high": grid[boundary.high].astype(float),
            "censored": boundary.censored,
            "limiting_module": roles,
            "margin": ratio / (1.0 + epsilon),
            "graph": graphs,
            "graph_evidence": graph_evidence,
        },
        schema_overrides={
            "deployment": pl.Int64,
            "limiting_module": pl.String,
            "graph": pl.String,
            "graph_evidence": pl.String,
        },
    ).with_columns(pl.Series("row", row))
    causes = _causes(latency, rows, place, step)
    unlimited = pl.col("censored")
    between = pl.when(pl.col("limiting_module") == BETWEEN).then(pl.lit(_MORE_ROWS))
    return (
        boundaries.join(causes.select("row", "limiting_term", "evidence"), on="row", how="left")
        .sort("row")
        .with_columns(
            pl.coalesce("graph", "limiting_term", between).alias("limiting_term"),
            pl.coalesce("graph_evidence", "evidence").alias("evidence"),
        )
        .with_columns(
            pl.when(~unlimited).then(pl.col(name)).alias(name)
            for name in ("limiting_module", "limiting_term", "margin")
        )
        .drop("row", "graph", "graph_evidence")
    )


def _limiting_steps(times_us: Array, baseline_places: Integers, boundary: Exits) -> Integers:
    """Return the index before the step whose cause limits, [rows].

    It is the one step that makes more than half of the rise of T(N), [rows, grid], from the
    baseline to the first N beyond the boundary, or else the step across the boundary.
    """
    place, row = np.arange(times_us.shape[1]), np.arange(len(times_us))
    within = (place >= baseline_places[:, None]) & (place < boundary.after[:, None])
    rises = np.where(within, np.diff(times_us, axis=1, append=0.0), 0.0)
    total = times_us[row, boundary.after] - times_us[row, baseline_places]
    leads = (2.0 * rises.max(axis=1) > total) & ~boundary.censored
    return np.where(leads, rises.argmax(axis=1), boundary.last)


def _causes(latency: Total, rows: Integers, place: Integers, step: Integers) -> pl.DataFrame:
    """Return the terms that change in a step of modules' T(N), with their sources, by row.

    `step` is the index before it. A module that runs all rows of a graph is asked at the graphs'
    rows, any other at its N.
    """
    padding, end = latency.padding, np.minimum(step + 1, len(latency.grid) - 1)
    at_n, at_rows = list[_Point](), list[_Point]()
    for row, (deployment, module, last, after) in enumerate(
        zip(*(each.tolist() for each in (rows, place, step, end)), strict=True)
    ):
        point = padding.row_step(deployment, module, last, after) if padding else None
        if point is not None:
            at_rows.append((row, *point))
            continue
        at = padding.at[deployment, module] if padding else range(len(latency.grid))
        at_n.append((row, int(latency.asked[deployment, module]), int(at[last]), int(at[after])))
    frames = [latency.timed.limits(_points(at_n))]
    if padding is not None and padding.rows is not None:
        frames.append(padding.rows.timed.limits(_points(at_rows)))
    return pl.concat(frames)


_Point = tuple[int, int, int, int]
"""A row, the number of its query, and two successive indices into the query's grid."""


def _points(points: Iterable[_Point]) -> pl.DataFrame:
    """Return points as the queries of `limits`."""
    return pl.DataFrame(
        [(row, asked, min(last, max(after - 1, 0)), after) for row, asked, last, after in points],
        schema=dict.fromkeys(("row", "asked", "last", "after"), pl.Int64), orient="row",
    )  # fmt: skip


def _graph_limits(
    latency: Total, rows: Integers, boundary: Exits, may_be_graph: Flags
) -> tuple[list[str | None], list[str | None]]:
    """Return the graph that takes each row out of the tolerance, and the lines with its size.

    If no graph holds the step, say that the GPU waits for its launches instead. `may_be_graph` is
    true where the step would still pass without padding, or where the host limits it.
    """
    graphs, evidence, padding = list[str | None](), list[str | None](), latency.padding
    for row, place, candidate in zip(
        rows.tolist(), boundary.after.tolist(), may_be_graph.tolist(), strict=True
    ):
        graph = padding.stopped_by(row, place) if padding and candidate else None
        graphs.append(graph)
        evidence.append(padding.steps[row][place].evidence if padding and graph else None)
    return graphs, evidence
