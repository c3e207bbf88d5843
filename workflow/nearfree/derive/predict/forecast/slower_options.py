"""Options of a query with which one position takes more time than without them."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import structs

from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.core.parallel import Parallel
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.degrees import Changes
from nearfree.derive.predict.forecast.deployment import Deployment, Questions, SlowerOption
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.total import total
from nearfree.errors import ConfigError

_LONGER = 1.05
"""The least ratio of T(1) with an option to T(1) without it that is told."""
_FORMATS = ("dtype", "weights", "activations", "kv_dtype")


class _Compared(NamedTuple):
    """An option of a query, the words for the query without it, and what that changes."""

    option: str
    instead: str
    changes: Changes


def with_slower_options(
    config: Config,
    spec: DeploymentSpec,
    answers: Forecast,
    answerer: Answerer,
    loads: MeasuredLoads | None = None,
) -> Forecast:
    """Return a forecast whose deployments tell which option of the query makes T(1) longer.

    Each format that the query names is left out in turn: a narrower format is stored in fewer
    bytes, but its kernel may convert it at every step, or another engine be the default. Half of
    tp is asked, too, where it holds the model. What does not fit in memory is told of a format
    where the deployment itself does not fit either.

    Parameters
    ----------
    spec, loads
        The query that the forecast answers.
    """
    slower = defaultdict[int, list[SlowerOption]](list)
    for option, instead, changes in _compared(spec, answers.deployments[0].parallel):
        try:
            queries, _ = expand(config, structs.replace(spec, **changes), loads)
        except ConfigError:  # the others ask for nothing without it
            continue
        if not queries:
            continue
        other = total(Questions(queries, [1]), answerer)
        others = {
            _key(spec, query): (float(us), query.engine.name, _fits(query))
            for query, us, refusal in zip(
                queries, other.model_us[:, 0], other.refusals, strict=True
            )
            if refusal is None and (_fits(query) or "tp" not in changes)
        }
        for place, query in enumerate(answers.deployments):
            other_us, engine, other_fits = others.get(_key(spec, query), (math.inf, "", False))
            own_us = float(answers.total.model_us[place, 0])
            if own_us > _LONGER * other_us and (other_fits or not _fits(query)):
                by = f" by {engine}" if engine != query.engine.name else ""
                slower[place].append(
                    SlowerOption(option, own_us / other_us, f"{instead}{by}", other_us)
                )
    deployments = [
        structs.replace(query, slower=tuple(slower[place])) if place in slower else query
        for place, query in enumerate(answers.deployments)
    ]
    return structs.replace(answers, deployments=deployments)


def _compared(spec: DeploymentSpec, parallel: Parallel) -> Iterator[_Compared]:
    for name in _FORMATS:
        if format_ := getattr(spec, name):
            yield _Compared(f"--{name.replace('_', '-')} {format_}", "without it", {name: None})
    half, odd = divmod(parallel.tp, 2)
    if half and not odd:
        changes = {"tp": half, "gpus": None}
        if parallel.ep == parallel.ranks:
            changes["ep"] = parallel.ep // 2
        yield _Compared(f"--tp {parallel.tp}", f"with --tp {half}", changes)


def _fits(query: Deployment) -> bool:
    """Return whether a deployment fits in memory; one of unknown memory counts as fitting."""
    return query.memory is None or query.memory.fits is not False


def _key(spec: DeploymentSpec, query: Deployment) -> tuple[object, ...]:
    """Return what deployments have in common that differ in formats and tp only."""
    return (
        query.decoder.name,
        query.platform,
        query.attention if spec.attention else None,
        query.engine if spec.moe else None,
        query.routing,
        query.batch,
        query.context,
    )
