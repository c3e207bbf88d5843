"""Where a model's T(N) leaves a tolerance, and which module takes it there."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.decoders.modules import BETWEEN, HOST
from nearfree.derive.predict.forecast.total import MINIMUM, PREDICTOR, SUM, Total
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.family import Array, Flags, Places

_MORE_ROWS = "more rows pass through the kernels between modules"
"""What takes T(N) out of a tolerance where no module does."""


class Exits(Struct, frozen=True, kw_only=True):
    """Places in the grid, [rows]: last pass, its interval, and the first N after it.

    `censored` says that the last pass is the grid's end.
    """

    last: Places
    low: Places
    high: Places
    after: Places
    censored: Flags


def exits(ratio: Array, low: Array, high: Array, baseline: Places, epsilon: float) -> Exits:
    """Return where curves leave a tolerance, from their baselines on (paper, sec. 2.2).

    Parameters
    ----------
    ratio, low, high
        T(N) / T(baseline) and its interval, [rows, grid].
    baseline
        The place of each baseline, [rows].
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
    """Return the boundary of each deployment by the work model, a row a tolerance.

    Parameters
    ----------
    baselines
        N of each deployment that ratios refer to; one that the grid lacks is refused.
    composition
        The sum of the modules' times, or the minimum of the modules' boundaries.
    """
    grid = latency.grid
    known = np.isin(baselines, grid) & np.array([refusal is None for refusal in latency.refusals])
    rows = np.flatnonzero(known)
    begin = np.searchsorted(grid, np.array(baselines)[rows])
    judge = {SUM: _by_sum, MINIMUM: _by_minimum}[composition]
    frames = [judge(latency, rows, begin, epsilon) for epsilon in epsilons]
    judged = pl.concat(frames)
    reasons = [
        reason or (None if n in grid else f"the baseline N={n} is not on the grid")
        for n, reason in zip(baselines, latency.refusals, strict=True)
    ]
    refused = pl.DataFrame(
        {"deployment": range(len(reasons)), "refusal": reasons},
        schema={"deployment": pl.Int64, "refusal": pl.String},
    ).drop_nulls("refusal")
    tolerances = pl.DataFrame({"epsilon": list(epsilons)}, schema={"epsilon": pl.Float64})
    behind = pl.DataFrame(
        {
            "deployment": range(len(reasons)),
            "constants": latency.constants,
            "calibration": [list(events) for events in latency.calibration],
            "in_sample": latency.in_sample,
            "regime": [latency.regime(place) for place in range(len(reasons))],
        },
        schema_overrides={
            "deployment": pl.Int64,
            "calibration": pl.List(pl.String),
            "regime": pl.String,
        },
    )
    return (
        pl.concat([judged, refused.join(tolerances, how="cross")], how="diagonal")
        .join(behind, on="deployment", how="left")
        .with_columns(
            pl.lit(PREDICTOR).alias("predictor"), pl.lit(composition).alias("composition")
        )
    )


def sum_exits(latency: Total, rows: Places, begin: Places, epsilon: float) -> Exits:
    """Return where the T(N) of whole forwards leave a tolerance.

    Parameters
    ----------
    rows
        The deployments, and with `begin` the place of each one's baseline.
    """
    model = latency.model_us
    base = model[rows, begin][:, None]
    return exits(
        model[rows] / base,
        latency.moved_us(-1.0)[rows] / base,
        latency.moved_us(1.0)[rows] / base,
        begin,
        epsilon,
    )


def _by_sum(latency: Total, rows: Places, begin: Places, epsilon: float) -> pl.DataFrame:
    model, out = latency.model_us, sum_exits(latency, rows, begin, epsilon)
    modules = latency.latency_us[rows]
    at = np.arange(len(rows))
    grown = modules[at, :, out.after] - modules[at, :, begin]
    place = grown.argmax(axis=1)
    base = model[rows, begin]
    own = latency.unpadded_us[rows].sum(axis=1)[at, out.after] / base
    return _rows(latency, rows, place, out, (model[rows, out.after] / base, own), epsilon=epsilon)


def _by_minimum(latency: Total, rows: Places, begin: Places, epsilon: float) -> pl.DataFrame:
    deployment, place, own, ratio = _modules(latency, rows, begin, epsilon)
    order = np.lexsort((own.last, deployment))
    _, first = np.unique(deployment[order], return_index=True)
    least = order[first]
    out = Exits(
        last=own.last[least],
        low=np.minimum.reduceat(own.low[order], first),
        high=np.minimum.reduceat(own.high[order], first),
        after=own.after[least],
        censored=own.censored[least],
    )
    own_ratio = _unpadded(latency, rows, place[least], begin, out)
    stepped = ratio[least, out.after], own_ratio
    return _rows(latency, rows, place[least], out, stepped, epsilon=epsilon)


def _unpadded(latency: Total, rows: Places, place: Places, begin: Places, out: Exits) -> Array:
    """Return modules' T(N) without padding over T(baseline), at the first N after each boundary."""
    base = latency.latency_us[rows, place, begin]
    return _over(latency.unpadded_us[rows, place, out.after], base)


def _over(us: Array, base_us: Array) -> Array:
    """Return T(N) over T(baseline); of what runs beside others at the baseline, 1 until it is seen.

    Then it is infinite.
    """
    seen = base_us > 0
    ratio = us / np.where(seen, base_us, 1.0)
    return np.asarray(np.where(seen, ratio, np.where(us > 0, np.inf, 1.0)))


def module_exits(latency: Total, deployment: int, epsilon: float) -> pl.DataFrame:
    """Return where T(N) / T(1) of each module of one deployment leaves a tolerance, by itself.

    The rows are those of `total_exits`, in the order of the forward.
    """
    rows = np.array([deployment])
    begin = np.zeros(1, dtype=np.int64)
    _, place, out, ratio = _modules(latency, rows, begin, epsilon)
    which = np.full(len(place), deployment)
    at = ratio[np.arange(len(place)), out.after]
    named = [latency.roles[deployment][at] for at in place]
    own = _unpadded(latency, which, place, np.zeros_like(which), out)
    return _rows(latency, which, place, out, (at, own), epsilon=epsilon).with_columns(
        pl.Series("limiting_module", named, dtype=pl.String)
    )


def _modules(
    latency: Total, rows: Places, begin: Places, epsilon: float
) -> tuple[Places, Places, Exits, Array]:
    """Return deployment and place of every module, its exits, and its T(N) / T(baseline)."""
    deployment, place = np.nonzero(latency.asked[rows] >= 0)
    modules = latency.latency_us[rows][deployment, place]
    start = begin[deployment]
    ratio = _over(modules, modules[np.arange(len(start)), start][:, None])
    moved = np.exp(latency.band[rows][deployment, place])[:, None]
    return deployment, place, exits(ratio, ratio / moved, ratio * moved, start, epsilon), ratio


def _rows(
    latency: Total,
    rows: Places,
    place: Places,
    out: Exits,
    ratios: tuple[Array, Array],
    *,
    epsilon: float,
) -> pl.DataFrame:
    """Return boundaries with their limiter; where the grid ends first, nothing limits.

    `ratios` are T(N) / T(baseline) at the first N after each boundary, as the step runs and with
    the rows that it has; only where a graph pads it do they differ.
    """
    ratio, own = ratios
    hosts = [latency.roles[row].get(at) == HOST for row, at in zip(rows, place, strict=True)]
    may = (own <= 1.0 + epsilon) | np.array(hosts, dtype=bool)
    graphs, said = _graphs(latency, rows, out, may)
    grid, at, row = latency.grid, _timed_places(latency, rows, place), np.arange(len(rows))
    judged = pl.DataFrame(
        {
            "deployment": rows,
            "epsilon": np.full(len(rows), epsilon),
            "n_max": grid[out.last].astype(float),
            "low": grid[out.low].astype(float),
            "high": grid[out.high].astype(float),
            "censored": out.censored,
            "limiting_module": [
                latency.roles[row][at] for row, at in zip(rows, place, strict=True)
            ],
            "margin": ratio / (1.0 + epsilon),
            "asked": latency.asked[rows, place],
            "last": np.minimum(at[row, out.last], np.maximum(at[row, out.after] - 1, 0)),
            "after": at[row, out.after],
            "graph": graphs,
            "graph_evidence": said,
        },
        schema_overrides={
            "deployment": pl.Int64,
            "limiting_module": pl.String,
            "graph": pl.String,
            "graph_evidence": pl.String,
        },
    ).with_row_index("row")
    stopped = latency.timed.stops(judged.select("row", "asked", "last", "after"))
    free = pl.col("censored")
    between = pl.when(pl.col("limiting_module") == BETWEEN).then(pl.lit(_MORE_ROWS))
    return (
        judged.join(stopped.select("row", "limiting_term", "evidence"), on="row", how="left")
        .sort("row")
        .with_columns(
            pl.coalesce("graph", "limiting_term", between).alias("limiting_term"),
            pl.coalesce("graph_evidence", "evidence").alias("evidence"),
        )
        .with_columns(
            pl.when(~free).then(pl.col(name)).alias(name)
            for name in ("limiting_module", "limiting_term", "margin")
        )
        .drop("row", "asked", "last", "after", "graph", "graph_evidence")
    )


def _timed_places(latency: Total, rows: Places, place: Places) -> Places:
    """Return where in the grid that was timed a module's N stand, [rows, grid]."""
    if latency.padding is None:
        return np.broadcast_to(np.arange(len(latency.grid)), (len(rows), len(latency.grid)))
    return latency.padding.at[rows, place]


def _graphs(
    latency: Total, rows: Places, out: Exits, asked: Flags
) -> tuple[list[str | None], list[str | None]]:
    """Return the graph that takes each row out of the tolerance, and the lines that say its size.

    Or that no graph holds the step, and the GPU waits for its launches. `asked` is where the step
    would still pass with the rows that it has in a graph, or the host limits it.
    """
    graphs, said, padding = list[str | None](), list[str | None](), latency.padding
    for row, after, may in zip(rows.tolist(), out.after.tolist(), asked.tolist(), strict=True):
        stopped = padding.stopped_by(row, after) if padding and may else None
        graphs.append(stopped)
        said.append(padding.steps[row][after].evidence if padding and stopped else None)
    return graphs, said
