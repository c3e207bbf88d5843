"""T(N) of a step as an engine runs it: modules, their overlap, and the time outside of modules."""

from collections.abc import Mapping, Sequence

import numpy as np

from nearfree.decoders.engines import ENGINES
from nearfree.decoders.modules import BETWEEN, HOST, MOE, ROUTER, SHARED, requests
from nearfree.derive.engine_step.form import between_us, hidden_us, host_us
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.work_model.family import Array, Integers

ROLES = (BETWEEN, HOST)
"""Roles of a step's time outside of modules, in the order of their places after the modules."""


def step_of(recorded: Mapping[str, RecordedStep], deployment: Deployment) -> RecordedStep | None:
    """Return the constants of a deployment's engine; None without an engine or constants."""
    return recorded.get(deployment.engine.name) if deployment.served else None


def _hidden_us(
    deployment: Deployment, roles: Mapping[int, str], latency_us: Array, grid: Integers
) -> Array:
    """Return the part of each module's time that is overlapped by others, [places, grid]."""
    hidden = np.zeros_like(latency_us)
    place_of = {role: place for place, role in roles.items()}
    if SHARED not in place_of:
        return hidden
    routed_places = [place_of[role] for role in (ROUTER, MOE) if role in place_of]
    hidden[place_of[SHARED]] = hidden_us(
        ENGINES[deployment.engine.name],
        deployment.engine,
        _tokens(deployment, grid),
        latency_us[place_of[SHARED]],
        latency_us[routed_places].sum(axis=0),
    )
    return hidden


def _outside_us(answerer: Answerer, deployment: Deployment, grid: Integers) -> Array | None:
    """Return the time of a step outside of its modules, [ROLES, grid], None where unknown."""
    step = step_of(answerer.engine_steps, deployment)
    beta = answerer.bandwidths_gb_s.get(deployment.platform)
    if step is None or beta is None:
        return None
    decoder = deployment.decoder
    between = between_us(
        step.constants,
        layers=decoder.pairs,
        d_model=decoder.d_model,
        tokens=_tokens(deployment, grid),
        bandwidth_gb_s=beta,
    )
    host = host_us(step.constants, batch=deployment.batch)
    return np.array([between, np.full(between.shape, host)])


def _tokens(deployment: Deployment, grid: Integers) -> Array:
    """Return the rows of a data parallel group, [grid]."""
    return requests(deployment.batch, deployment.parallel.dp) * grid.astype(np.float64)


def with_step_times(
    answerer: Answerer,
    deployments: Sequence[Deployment],
    roles: Sequence[Mapping[int, str]],
    latency_us: Array,
    grid: Integers,
) -> tuple[Array, list[dict[int, str]]]:
    """Return the times of steps: modules without their overlap, then the time outside of them.

    Parameters
    ----------
    roles
        The role of each module, by place.
    latency_us
        Time of each module run alone, [deployments, places, grid].

    Returns
    -------
    Times, [deployments, places + 2, grid], and `roles` with those of the last two places, where
    their times are known.
    """
    width = latency_us.shape[1]
    outside = np.zeros((len(deployments), len(ROLES), len(grid)))
    latency, named_roles = latency_us.copy(), [dict(deployment_roles) for deployment_roles in roles]
    for row, deployment in enumerate(deployments):
        if not deployment.served:
            continue
        latency[row] -= _hidden_us(deployment, named_roles[row], latency_us[row], grid)
        outside_us = _outside_us(answerer, deployment, grid)
        if outside_us is not None:
            outside[row] = outside_us
            named_roles[row] |= {width + place: role for place, role in enumerate(ROLES)}
    return np.concatenate([latency, outside], axis=1), named_roles
