"""T(N) of a step as an engine runs it: modules, what runs beside others, and what lies between."""

from collections.abc import Mapping, Sequence

import numpy as np

from nearfree.decoders.engines import ENGINES
from nearfree.decoders.modules import BETWEEN, HOST, MOE, ROUTER, SHARED, requests
from nearfree.derive.engine_step.form import between_us, hidden_us, host_us
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.work_model.family import Array, Places

ROLES = (BETWEEN, HOST)
"""What a step has besides modules, in the order in which it stands behind them."""


class Steps:
    """What engines' steps take besides modules.

    Parameters
    ----------
    recorded
        The constants by engine.
    bandwidths_gb_s
        beta by platform, None where it is not known.
    """

    def __init__(
        self, recorded: Mapping[str, RecordedStep], bandwidths_gb_s: Mapping[str, float | None]
    ) -> None:
        self._recorded, self._bandwidths = recorded, bandwidths_gb_s

    def of(self, deployment: Deployment) -> RecordedStep | None:
        """Return the constants of a deployment's engine.

        None where no engine runs it, or none are known.
        """
        return self._recorded.get(deployment.engine.name) if deployment.served else None

    def hidden(
        self, deployment: Deployment, roles: Mapping[int, str], latency_us: Array, grid: Places
    ) -> Array:
        """Return what of each module's time runs beside others, [places, grid]."""
        hidden = np.zeros_like(latency_us)
        at = {role: place for place, role in roles.items()}
        if not deployment.served or SHARED not in at:
            return hidden
        beside = [at[role] for role in (ROUTER, MOE) if role in at]
        hidden[at[SHARED]] = hidden_us(
            ENGINES[deployment.engine.name],
            deployment.engine,
            _tokens(deployment, grid),
            latency_us[at[SHARED]],
            latency_us[beside].sum(axis=0),
        )
        return hidden

    def besides(self, deployment: Deployment, grid: Places) -> Array | None:
        """Return what a step takes besides its modules, [ROLES, grid].

        None where that is not known.
        """
        step, beta = self.of(deployment), self._bandwidths.get(deployment.platform)
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


def _tokens(deployment: Deployment, grid: Places) -> Array:
    """Return the rows of a group of ranks that share requests, [grid]."""
    return requests(deployment.batch, deployment.parallel.dp) * grid.astype(np.float64)


def widened(
    steps: Steps,
    deployments: Sequence[Deployment],
    roles: Sequence[Mapping[int, str]],
    latency_us: Array,
    grid: Places,
) -> tuple[Array, list[dict[int, str]]]:
    """Return what modules and all besides them take, and what each place is.

    Parameters
    ----------
    latency_us
        What each module takes by itself, [deployments, places, grid].

    Returns
    -------
    [deployments, places + 2, grid], and the roles with those of the last two places where they are
    known.
    """
    width = latency_us.shape[1]
    besides = np.zeros((len(deployments), len(ROLES), len(grid)))
    latency, named = latency_us.copy(), [dict(each) for each in roles]
    for row, deployment in enumerate(deployments):
        if not deployment.served:
            continue
        latency[row] -= steps.hidden(deployment, named[row], latency_us[row], grid)
        found = steps.besides(deployment, grid)
        if found is not None:
            besides[row] = found
            named[row] |= {width + place: role for place, role in enumerate(ROLES)}
    return np.concatenate([latency, besides], axis=1), named
