"""The answer of `nearfree predict` as data: nested for JSON, flat for CSV."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl
from msgspec import to_builtins

from nearfree.core.modules.collective import COLLECTIVE, sent_bytes
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.exits import module_exits
from nearfree.derive.predict.forecast.first_answer import COSTS, FirstAnswer
from nearfree.derive.predict.forecast.forecast import CURVE, Forecast, knobs
from nearfree.derive.predict.forecast.step import ROLES
from nearfree.derive.predict.forecast.surface import inverse
from nearfree.errors import Refusal
from nearfree.show.text.forecast import no_forward
from nearfree.show.text.memory import SCHEMA, memory_json


def answer(
    forecast: Forecast,
    place: int,
    epsilon: float,
    first: FirstAnswer | None,
    accepted: float | None = None,
) -> dict[str, Any]:
    """Return all that is known of one deployment; unbounded is None with `unbounded` true.

    Parameters
    ----------
    first
        The answer to act on, None where T(N) is not known.
    accepted
        Tokens that a forward yields, as measured; then accepted / N_max is there, too.
    """
    answers = forecast.answers.filter(deployment=place).drop("deployment")
    rows = _with_share(answers, accepted).to_dicts()
    query, refusal = forecast.deployments[place], forecast.total.refusals[place]
    known = refusal is None
    return {
        "schema": SCHEMA,
        "deployment": deployment_json(query),
        "answer": _first(first) if first else None,
        "basis": _basis(first) if first else None,
        "memory": memory_json(query.memory),
        "refusals": []
        if refusal is None
        else [Refusal("", "", refusal, no_forward(query))._asdict()],
        "predictors": [_finite(row) for row in rows],
        "modules": _modules(forecast, place, epsilon) if known else [],
        "besides": _besides(forecast, place) if known else {},
        "caveats": query.caveats,
        "graphs": _graphs(forecast, place),
        "curve": forecast.curve(place).to_dicts(),
    }


def deployment_json(query: Deployment) -> dict[str, Any]:
    """Return what is asked about: names and releases, degrees, formats and the decoder."""
    about = {name: value for name, value in query.about.items() if name not in query.parallel.said}
    return {
        **about,
        "moe_kernel": query.moe_kernel,
        "revision": query.revision,
        "parallel": query.parallel.said,
        "precision": query.said,
        "decoder": to_builtins(query.decoder),
    }


def _first(found: FirstAnswer) -> dict[str, Any]:
    """Return the answer to act on: N_max from N = 1, T(1) in ms with its band, and costs by N."""
    first, band = found.t1_us / 1e3, found.t1_band
    low, high = (None if band is None else first * math.exp(way * band) for way in (-1, 1))
    return {
        "n_max": found.n_max,
        "low": found.low,
        "high": found.high,
        "censored": found.censored,
        "epsilon": found.epsilon,
        "baseline_n": 1,
        "limiter": to_builtins(found.limiter) if found.limiter else None,
        "t1_ms": {"value": first, "low": low, "high": high},
        "eager_from_n": found.eager,
        "cost": {str(n): found.cost.get(n) for n in COSTS},
    }


def _basis(found: FirstAnswer) -> dict[str, Any]:
    """Return the regime of an answer, the weakest of its modules', and those of all of them."""
    regimes = to_builtins(found.bases)
    return {**regimes[0], "events": found.events, "regimes": regimes}


def _graphs(forecast: Forecast, place: int) -> dict[str, Any] | None:
    """Return the CUDA graphs that steps run in: a row an N, size null where none is large enough.

    None where no engine runs them, or its graphs are not read.
    """
    graphs, padding = forecast.deployments[place].graphs, forecast.total.padding
    if graphs is None or padding is None or not padding.steps[place]:
        return None
    rows = [
        {"n": n, "tokens": step.tokens, "rows": step.rows, "size": step.size}
        for n, step in zip(forecast.total.grid.tolist(), padding.steps[place], strict=True)
    ]
    evidence = sorted({step.evidence for step in padding.steps[place]})
    return {"engine": str(graphs.engine), "counts": graphs.counts} | {
        "evidence": evidence, "steps": rows,
    }  # fmt: skip


def inverse_rows(
    forecast: Forecast, positions: int, epsilon: float, accepted: float | None = None
) -> pl.DataFrame:
    """Return what K positions cost in each deployment, with accepted / N_max where it is given."""
    rows = _with_share(inverse(forecast, positions, epsilon), accepted)
    return with_about(forecast.deployments, rows)


def curve_rows(forecast: Forecast) -> pl.DataFrame:
    """Return T(N) of all deployments, a row a deployment and N; a share by role of a module."""
    curves = [
        forecast.curve(place)
        .rename(lambda name: name if name in CURVE else f"share of {name}")
        .with_columns(pl.lit(place).cast(pl.Int64).alias("deployment"))
        for place in range(len(forecast.deployments))
    ]
    return with_about(forecast.deployments, pl.concat(curves, how="diagonal"))


def with_about(queries: Sequence[Deployment], rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows behind the columns of their deployments, which they name by place.

    `dtype` is what enters products, `weights` and `kv` what is stored; `fits` is null where memory
    is not known.
    """
    columns = [
        query.about
        | {"weights": query.said["weights"], "kv": query.said["kv"]}
        | {"fits": query.memory.fits if query.memory else None}
        for query in queries
    ]
    about = pl.DataFrame(columns, infer_schema_length=None)
    keyed = about.with_row_index("deployment").with_columns(pl.col("deployment").cast(pl.Int64))
    joined = keyed.join(rows, on="deployment", how="right", maintain_order="right")
    return joined.select(*about.columns, *(c for c in rows.columns if c != "deployment"))


def rows_json(queries: Sequence[Deployment], rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows behind their deployments, each with its caveats; unbounded as in `answer`."""
    about = with_about(queries, rows).to_dicts()
    return [
        _finite(row) | {"caveats": queries[at].caveats}
        for at, row in zip(rows["deployment"], about, strict=True)
    ]


def _with_share(rows: pl.DataFrame, accepted: float | None) -> pl.DataFrame:
    if accepted is None:
        return rows
    return rows.with_columns((accepted / pl.col("n_max")).alias("accepted_per_n_max"))


def _modules(forecast: Forecast, place: int, epsilon: float) -> list[dict[str, Any]]:
    rows = module_exits(forecast.total, place, epsilon).drop("deployment", "epsilon").to_dicts()
    shares = forecast.curve(place).row(0, named=True)
    uses = forecast.deployments[place].uses()
    sent = {
        at: {"bytes_sent": round(sent_bytes(use.setting, 1))}
        for at, use in enumerate(uses)
        if use.setting.module == COLLECTIVE.name
    }
    return [
        {"module": row.pop("limiting_module")} | row | {
            "regime": forecast.total.regimes[place].get(at),
            "share": shares[forecast.total.roles[place][at]],
            "knobs": knobs(forecast.total.roles[place][at]),
        } | sent.get(at, {})
        for at, row in zip(forecast.total.modules(place), rows, strict=True)
    ]  # fmt: skip


def _besides(forecast: Forecast, place: int) -> dict[str, float]:
    """Return what a step takes besides its modules, as shares of T(1) by what it is."""
    shares = forecast.curve(place).row(0, named=True)
    return {role: shares[role] for role in forecast.total.roles[place].values() if role in ROLES}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    infinite = [name for name, value in row.items() if value == float("inf")]
    return {**row, **dict.fromkeys(infinite), "unbounded": "n_max" in infinite}
