"""Formats that a query names although one position takes less time without them."""

import math
from collections import defaultdict

from msgspec import structs

from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, SlowerFormat
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.derive.predict.forecast.forecast import Forecast, forecast

_LONGER = 1.05
"""The least ratio of T(1) with a named format to T(1) without it that is told."""
_FORMATS = ("dtype", "weights", "activations", "kv_dtype")


def with_slower_formats(
    config: Config,
    spec: DeploymentSpec,
    answers: Forecast,
    answerer: Answerer,
    loads: MeasuredLoads | None = None,
) -> Forecast:
    """Return a forecast whose deployments tell which named format makes T(1) longer.

    Each format that the query names is left out in turn: a narrower format is stored in fewer
    bytes, but its kernel may convert it at every step, or another engine be the default.

    Parameters
    ----------
    spec, loads
        The query that the forecast answers.
    """
    slower = defaultdict[int, list[SlowerFormat]](list)
    for name in _FORMATS:
        format_ = getattr(spec, name)
        if format_ is None:
            continue
        queries, _ = expand(config, structs.replace(spec, **{name: None}), loads)
        if not queries:
            continue
        without = forecast(queries, answerer, [], grid=[1], predictors=[], full=False).total
        others = {
            _key(spec, query): (float(us), query.engine.name)
            for query, us, refusal in zip(
                queries, without.model_us[:, 0], without.refusals, strict=True
            )
            if refusal is None
        }
        for place, query in enumerate(answers.deployments):
            other_us, engine = others.get(_key(spec, query), (math.inf, ""))
            own_us = float(answers.total.model_us[place, 0])
            if own_us > _LONGER * other_us:
                option = f"--{name.replace('_', '-')} {format_}"
                by = f" by {engine}" if engine != query.engine.name else ""
                slower[place].append(SlowerFormat(option, own_us / other_us, other_us, by))
    deployments = [
        structs.replace(query, slower=tuple(slower[place])) if place in slower else query
        for place, query in enumerate(answers.deployments)
    ]
    return structs.replace(answers, deployments=deployments)


def _key(spec: DeploymentSpec, query: Deployment) -> tuple[object, ...]:
    """Return what two deployments that differ in formats only have in common."""
    return (
        query.decoder.name,
        query.platform,
        query.attention if spec.attention else None,
        query.engine if spec.moe else None,
        query.routing,
        query.batch,
        query.context,
    )
