"""Predictions of whole models: those recorded before measurement, and those of the laws.

Recorded predictions were composed from modules that were measured separately (`foretell`). Laws and
the work model are queried for the model's modules as by `nearfree predict`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf
from typing import Any

import polars as pl
from msgspec import structs

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import BY_NAME
from nearfree.core.label import setting_key
from nearfree.core.plan import MeasurePlan
from nearfree.core.precision import uniform
from nearfree.core.predictors import PREDICTORS
from nearfree.core.setting import Setting
from nearfree.decoders.model import Model, model_of
from nearfree.derive.predict.answers import ANSWER_COLUMNS, Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import forecast, headline
from nearfree.log.events import Event, PredictionRecorded
from nearfree.log.evidence import Take


def release_of(backend: str, versions: Mapping[str, str]) -> str | None:
    """Return the version of a backend's package; None if it is torch, or was not installed."""
    package = BY_NAME[backend].package if backend in BY_NAME else "torch"
    return None if package == "torch" else versions.get(package)


def releases_that_ran(settings: pl.DataFrame, takes: Iterable[Take]) -> pl.DataFrame:
    """Return `row_id` and `backend_version` of the settings that a take of the scope holds.

    Rows of the table `settings` are each made from the first event of their setting.
    """
    versions = {str(take_name.name): take_name.started.data.versions for take_name in takes}
    rows = []
    for row in settings.select("row_id", "backend", "from_ids").iter_rows(named=True):
        take_name = row["from_ids"][0].rpartition("#")[0].rpartition(".")[0]
        version = release_of(row["backend"], versions.get(take_name, {}))
        rows.append({"row_id": row["row_id"], "backend_version": version})
    schema = {"row_id": pl.String, "backend_version": pl.String}
    return pl.DataFrame(rows, schema=schema).unique("row_id", maintain_order=True)


_ANSWER_COLUMNS = [name for name in ANSWER_COLUMNS if name not in ("asked", "calibration")]
NUMBER_COLUMNS = ("n_max", "n_max_extended", "low", "high", "margin")
Row = dict[str, Any]


def recorded_rows(takes: Sequence[Take], settings: pl.DataFrame) -> Iterator[Row]:
    """Yield the recorded predictions of models' settings, the newest of repeated ones.

    Predictions of settings that the scope's table `settings` lacks are omitted.
    """
    settings_by_key = _by_key(settings)
    for event in _newest_predictions(takes):
        prediction = event.data
        setting = settings_by_key.get((setting_key(prediction.setting), prediction.baseline))
        if setting is not None:
            yield {
                **setting,
                **structs.asdict(prediction),
                "n_max_extended": prediction.n_max,
                "unbounded": False,
                "constants": None,
                "regime": None,
                "in_sample": False,
                "from_ids": [setting["row_id"], event.event_id],
            }


def _by_key(settings: pl.DataFrame) -> dict[tuple[str, int], Row]:
    """Return the settings of models by key and baseline."""
    rows = settings.filter(module="model").to_dicts()
    return {(row["setting_key"], row["baseline"]): row for row in rows}


def _newest_predictions(takes: Sequence[Take]) -> Iterable[Event]:
    """Return the newest of repeated predictions, whichever study made them.

    Within a study that of the newest take counts, among studies that of the latest time.
    """
    names = ("setting", "baseline", "predictor", "basis", "epsilon")
    by_statement: dict[object, dict[str, Event]] = {}
    for take in sorted(takes, key=lambda take: take.order):
        for event in take.events_of(PredictionRecorded):
            key = tuple(getattr(event.data, name) for name in names)
            by_statement.setdefault(key, {})[take.name.stream] = event
    return [
        max(by_study.values(), key=lambda event: event.time) for by_study in by_statement.values()
    ]


def law_rows(
    takes: Sequence[Take], settings: pl.DataFrame, answerer: Answerer, epsilons: Sequence[float]
) -> Iterator[Row]:
    """Yield the predictions of the laws and the work model for measured settings of models.

    Parameters
    ----------
    takes
        A scope's takes; the plan of a take that measured models holds the models.
    settings
        Settings with the facts that the answerer has of them: basis, balance_flop_per_byte and
        fact_id, null without facts.
    """
    deployments = []
    for setting, deployment in _deployments(takes, settings):
        from_ids = [*filter(None, (setting["row_id"], setting["fact_id"]))]
        deployments.append((setting | {"from_ids": from_ids}, deployment))
    if not deployments:
        return
    for setting, deployment in deployments:
        if setting["baseline"] not in (1, deployment.full_baseline):
            yield from _refusals(setting, epsilons)
    queries = [deployment for _, deployment in deployments]
    for answer in headline(forecast(queries, answerer, epsilons).answers).to_dicts():
        setting, _ = deployments[answer["deployment"]]
        if answer["baseline"] == setting["baseline"]:
            yield {
                **setting,
                **{name: answer[name] for name in _ANSWER_COLUMNS},
                **{name: None if answer[name] == inf else answer[name] for name in NUMBER_COLUMNS},
                "unbounded": answer["n_max"] == inf,
                "from_ids": [*setting["from_ids"], *(answer["calibration"] or [])],
            }


def _refusals(setting: Row, epsilons: Sequence[float]) -> Iterator[Row]:
    """Yield refusals for a baseline that is neither 1 nor the paper's."""
    reason = (
        "models are asked from N = 1 and from the paper's baseline, not from "
        f"N = {setting['baseline']}"
    )
    for predictor, epsilon in product(PREDICTORS, epsilons):
        yield {
            **setting,
            **dict.fromkeys((*_ANSWER_COLUMNS, "balance_flop_per_byte")),
            "predictor": predictor,
            "epsilon": epsilon,
            "unbounded": False,
            "in_sample": False,
            "refusal": reason,
        }


def _deployments(takes: Sequence[Take], settings: pl.DataFrame) -> Iterator[tuple[Row, Deployment]]:
    """Yield the measured settings of models with their deployments."""
    rows = _by_key(settings)
    dtypes = {row["dtype"] for row in rows.values()}
    for take in sorted(takes, key=lambda take: take.order, reverse=True):
        plan = take.started.data.plan
        if not isinstance(plan, MeasurePlan) or not plan.models:
            continue
        releases = take.started.data.versions
        for sweep, dtype in product(plan.sweeps, dtypes):
            setting = sweep.setting
            if setting.dtype == "auto":
                setting = structs.replace(setting, dtype=dtype)
            row = rows.pop((setting_key(setting), sweep.baseline), None)
            if row is not None:
                model = model_of(setting, plan.models)
                yield row, _deployment(row["platform"], setting, model, releases)


def _deployment(
    platform: str, setting: Setting, model: Model, releases: Mapping[str, str]
) -> Deployment:
    return Deployment(
        decoder=model.decoder,
        platform=platform,
        attention=BackendRelease(setting.backend, release_of(setting.backend, releases)),
        moe=BackendRelease(setting.moe, release_of(setting.moe, releases)) if setting.moe else None,
        routing=setting.routing,
        batch=setting.batch,
        context=setting.context or 1,
        precision=uniform(setting.dtype),
    )
