"""The answer of `nearfree predict` as data: nested for JSON, flat for CSV."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl
from msgspec import to_builtins

from nearfree.core.modules.collective import COLLECTIVE, sent_bytes
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.doubts import all_caveats
from nearfree.derive.predict.forecast.exits import module_exits
from nearfree.derive.predict.forecast.first_answer import COSTS, FirstAnswer
from nearfree.derive.predict.forecast.forecast import CURVE, Forecast, knobs
from nearfree.derive.predict.forecast.surface import cost_of_positions
from nearfree.derive.predict.forecast.total import ROLES, Total
from nearfree.errors import Refusal
from nearfree.show.text.forecast import no_forward
from nearfree.show.text.memory import SCHEMA, memory_json
from nearfree.units import US_PER_MS


def answer(
    forecast: Forecast,
    index: int,
    epsilon: float,
    first: FirstAnswer | None,
    accepted: float | None = None,
) -> dict[str, Any]:
    """Return the full answer for one deployment; an unbounded N_max is None, `unbounded` true.

    Parameters
    ----------
    index
        The deployment's position in the forecast.
    epsilon
        Tolerance of T(N) / T(1).
    first
        The first answer (N_max, limiter, costs), None where T(N) is not known.
    accepted
        Measured tokens per forward; adds accepted / N_max to each predictor's row.
    """
    answers = forecast.answers.filter(deployment=index).drop("deployment")
    rows = _with_share(answers, accepted).to_dicts()
    deployment, refusal = forecast.deployments[index], forecast.total.refusals[index]
    known, regimes = refusal is None, to_builtins(first.bases) if first else []
    return {
        "schema": SCHEMA,
        "deployment": deployment_json(deployment),
        "answer": _first(first) if first else None,
        # the regime of the weakest module, with its calibration events, then all regimes
        "basis": {**regimes[0], "events": first.events, "regimes": regimes} if first else None,
        "memory": memory_json(deployment.memory),
        "refusals": []
        if refusal is None
        else [Refusal("", "", refusal, no_forward(deployment))._asdict()],
        "predictors": [finite(row) for row in rows],
        "modules": _modules(forecast, index, epsilon) if known else [],
        "besides": _besides(forecast, index) if known else {},
        "caveats": all_caveats(forecast.total, forecast.deployments, index),
        "graphs": _graphs(forecast, index),
        "curve": forecast.curve(index).to_dicts(),
    }


def deployment_json(deployment: Deployment) -> dict[str, Any]:
    """Return a deployment: names and releases, parallel degrees, formats and the decoder."""
    degrees = deployment.parallel.degrees
    return {
        **{name: value for name, value in deployment.about.items() if name not in degrees},
        "moe_kernel": deployment.moe_kernel,
        "revision": deployment.revision,
        "parallel": degrees,
        "precision": deployment.said,
        "decoder": to_builtins(deployment.decoder),
    }


def _first(first: FirstAnswer) -> dict[str, Any]:
    """Return N_max from N = 1, its limiter, T(1) in ms with its band, and T(N) / T(1) by N."""
    t1_ms, band = first.t1_us / US_PER_MS, first.t1_band
    low, high = (None if band is None else t1_ms * math.exp(sign * band) for sign in (-1, 1))
    return {
        "n_max": first.n_max,
        "low": first.low,
        "high": first.high,
        "censored": first.censored,
        "epsilon": first.epsilon,
        "baseline_n": 1,
        "limiter": to_builtins(first.limiter) if first.limiter else None,
        "t1_ms": {"value": t1_ms, "low": low, "high": high},
        "eager_from_n": first.eager,
        "cost": {str(n): first.cost.get(n) for n in COSTS},
    }


def _graphs(forecast: Forecast, index: int) -> dict[str, Any] | None:
    """Return the CUDA graph of the step at each N, its size null where no graph is large enough.

    None where the engine runs no graphs, or where their sizes are not read from its source.
    """
    graphs, padding = forecast.deployments[index].graphs, forecast.total.padding
    if graphs is None or padding is None or not padding.steps[index]:
        return None
    rows = [
        {"n": n, "tokens": step.tokens, "rows": step.rows, "size": step.size}
        for n, step in zip(forecast.total.grid.tolist(), padding.steps[index], strict=True)
    ]
    evidence = sorted({step.evidence for step in padding.steps[index]})
    return {"engine": str(graphs.engine), "counts": graphs.counts} | {
        "evidence": evidence, "steps": rows,
    }  # fmt: skip


def inverse_rows(
    forecast: Forecast, positions: int, epsilon: float, accepted: float | None = None
) -> pl.DataFrame:
    """Return T(K) / T(1) of K positions in each deployment, and accepted / N_max if measured."""
    rows = _with_share(cost_of_positions(forecast, positions, epsilon), accepted)
    return with_about(forecast.deployments, rows)


def curve_rows(forecast: Forecast) -> pl.DataFrame:
    """Return T(N) of all deployments, one row per deployment and N, one share column per role."""
    curves = [
        forecast.curve(index)
        .rename(lambda name: name if name in CURVE else f"share of {name}")
        .with_columns(pl.lit(index).cast(pl.Int64).alias("deployment"))
        for index in range(len(forecast.deployments))
    ]
    return with_about(forecast.deployments, pl.concat(curves, how="diagonal"))


def with_about(deployments: Sequence[Deployment], rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the columns of their deployments in front.

    The column `deployment` of `rows` is the deployment's index. `dtype` is the format that enters
    products, `weights` and `kv` the stored formats; `fits` is null where memory is not known.
    """
    descriptions = [
        deployment.about
        | {"weights": deployment.said["weights"], "kv": deployment.said["kv"]}
        | {"fits": deployment.memory.fits if deployment.memory else None}
        for deployment in deployments
    ]
    about = pl.DataFrame(descriptions, infer_schema_length=None)
    keyed = about.with_row_index("deployment").with_columns(pl.col("deployment").cast(pl.Int64))
    joined = keyed.join(rows, on="deployment", how="right", maintain_order="right")
    own = [name for name in rows.columns if name != "deployment"]
    return joined.select(*about.columns, *own)


def rows_json(
    deployments: Sequence[Deployment], rows: pl.DataFrame, total: Total
) -> list[dict[str, Any]]:
    """Return `with_about` as dictionaries with caveats; an unbounded N_max as in `answer`."""
    described = with_about(deployments, rows).to_dicts()
    return [
        finite(row) | {"caveats": all_caveats(total, deployments, index)}
        for index, row in zip(rows["deployment"], described, strict=True)
    ]


def _with_share(rows: pl.DataFrame, accepted: float | None) -> pl.DataFrame:
    if accepted is None:
        return rows
    return rows.with_columns((accepted / pl.col("n_max")).alias("accepted_per_n_max"))


def _modules(forecast: Forecast, index: int, epsilon: float) -> list[dict[str, Any]]:
    """Return each module's own boundary, regime, share of T(1) and options that move its limit."""
    total = forecast.total
    exits = module_exits(total, index, epsilon).drop("deployment", "epsilon").to_dicts()
    shares = forecast.curve(index).row(0, named=True)
    sent = {
        module: {"bytes_sent": round(sent_bytes(use.setting, 1))}
        for module, use in enumerate(forecast.deployments[index].uses())
        if use.setting.module == COLLECTIVE.name
    }
    return [
        {"module": row.pop("limiting_module")} | row | {
            "regime": total.regimes[index].get(module),
            "share": shares[total.roles[index][module]],
            "knobs": knobs(total.roles[index][module]),
        } | sent.get(module, {})
        for module, row in zip(total.modules(index), exits, strict=True)
    ]  # fmt: skip


def _besides(forecast: Forecast, index: int) -> dict[str, float]:
    """Return the shares of T(1) that a step spends outside its modules, by role."""
    shares = forecast.curve(index).row(0, named=True)
    return {role: shares[role] for role in forecast.total.roles[index].values() if role in ROLES}


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return a predictor's answer with None for infinity, and whether its N_max is unbounded."""
    infinite = [name for name, value in row.items() if value == float("inf")]
    return {**row, **dict.fromkeys(infinite), "unbounded": "n_max" in infinite}
