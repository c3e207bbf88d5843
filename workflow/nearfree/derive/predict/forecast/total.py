"""T(N) of a model's forward: the sum of its modules' T(N), each times its number of runs.

If an engine serves it, modules overlap, and a step adds the time of kernels between modules and of
the host. Of any other forward, kernels between modules are not counted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.decoders.ranks.engines import ENGINES
from nearfree.decoders.ranks.modules import BETWEEN, HOST, MOE, ROUTER, SHARED, requests
from nearfree.derive.engine_step.form import between_us, hidden_us, host_us
from nearfree.derive.engine_step.launches import launch_count
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.granularity.graphs import Step
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import OF_ROWS, Deployment, Questions
from nearfree.derive.predict.forecast.padding import (
    REAL,
    Padding,
    Rows,
    graph_rows,
    of_one_request,
    padded,
    steps_of,
    timed_grid,
)
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.family import Array, Flags, Integers

SUM, MINIMUM = "sum", "minimum"
"""Compositions of modules to a model: the sum of times, or the minimum of boundaries."""
LEAST_SHARE = 0.05
"""Share of T(1) below which a module's regime does not count for its model."""


class Evidence(NamedTuple):
    """The constants behind T(N) of a module, their events, its regime, and if it is in sample."""

    constants: str
    calibration: list[str]
    regime: str
    in_sample: bool = False


class Total(Struct, frozen=True, kw_only=True):
    """T(N) of deployments, module by module.

    Parameters
    ----------
    latency_us
        Time of each module in one forward, all its layers together, [deployments, places, grid]; 0
        where a deployment has no such place, NaN where a module's T(N) is not known. The last two
        places are the time between modules, and the host's.
    band
        Error of ln(T(N) / T(baseline)) of each module, [deployments, places].
    asked
        The number of each module's query, [deployments, places], -1 where there is none.
    roles
        The role of each module, and of the time outside of modules, by deployment and place.
    grid
        N, [grid].
    refusals
        The reason why T(N) of a deployment is not known, None where it is.
    constants, calibration, in_sample
        The constants behind each deployment, their events, and whether they were calibrated on its
        platform.
    regimes
        The regime of each module's T(N), by deployment and place.
    timed
        The answers on the modules' queries.
    padding
        The graphs that steps are padded to, None where no engine runs them.
    """

    latency_us: Array
    band: Array
    asked: Integers
    roles: Sequence[Mapping[int, str]]
    grid: Integers
    refusals: Sequence[str | None]
    constants: Sequence[str]
    calibration: Sequence[tuple[str, ...]]
    in_sample: Flags
    regimes: Sequence[Mapping[int, str]]
    timed: TimedQuestions
    padding: Padding | None = None

    @property
    def model_us(self) -> Array:
        """T(N) of the whole forward, [deployments, grid]; NaN where it is not known."""
        return np.asarray(self.latency_us.sum(axis=1))

    def modules(self, deployment: int) -> list[int]:
        """Return the places of a deployment's modules, without the time outside of modules."""
        return [place for place in self.roles[deployment] if self.asked[deployment, place] >= 0]

    @property
    def unpadded_us(self) -> Array:
        """Time of each module without padding of the step, of the shape of `latency_us`."""
        return self.padding.unpadded_us if self.padding else self.latency_us

    def regime(self, deployment: int) -> str | None:
        """Return the regime of a whole forward, None where T(N) is not known.

        It is the weakest regime of the modules that take at least LEAST_SHARE of T(N) at the
        smallest N. If none does, as time outside of modules dominates, it is that of the longest.
        """
        first_us, regimes = self.latency_us[deployment, :, 0], self.regimes[deployment]
        if self.refusals[deployment]:
            return None
        longest = max((first_us[place] for place in regimes), default=0.0)
        threshold_us = min(LEAST_SHARE * first_us.sum(), longest)
        return min(
            (regime for place, regime in regimes.items() if first_us[place] >= threshold_us),
            default=None,
        )

    def moved_us(self, direction: float) -> Array:
        """Return T(N) with every module off by its band in one direction, +1.0 or -1.0.

        Compare it with an unmoved T(baseline); at the baseline itself it has no meaning.
        """
        factors = np.repeat(np.exp(direction * self.band)[:, :, None], len(self.grid), axis=2)
        return np.asarray((self.latency_us * factors).sum(axis=1))


def total(questions: Questions, answerer: Answerer) -> Total:
    """Return T(N) of deployments by the work model, with steps padded to their graphs."""
    grid = questions.grid
    steps, reasons = steps_of(questions.deployments, grid, answerer)
    if not any(steps) and not any(reasons):
        return _timed(questions, answerer)
    stateful = ~pl.col("module").is_in((*REAL, *OF_ROWS))
    with_states = questions.uses.filter(stateful)["deployment"].unique().to_list()
    timed_questions = Questions(questions.deployments, timed_grid(grid, steps, with_states))
    timed = _timed(timed_questions, answerer)
    has_state = timed_questions.places_of(stateful, timed.asked.shape)
    launches = [
        launch_count(deployment.uses(), deployment.decoder.pairs)
        if any(step.size is None for step in deployment_steps)
        else 0
        for deployment, deployment_steps in zip(questions.deployments, steps, strict=True)
    ]
    latency, padding = padded(
        timed_questions.grid, grid, timed.latency_us, steps, has_state=has_state, launches=launches,
        rows=_rows(questions.deployments, steps, timed.asked.shape[1], answerer),
    )  # fmt: skip
    refusals = [
        module_refusal or graph_refusal
        for module_refusal, graph_refusal in zip(timed.refusals, reasons, strict=True)
    ]
    host = {latency.shape[1] - 1: HOST}
    return structs.replace(
        timed,
        latency_us=latency,
        grid=np.array(grid),
        padding=padding,
        refusals=refusals,
        roles=[
            {**roles, **host} if waits.any() else roles
            for roles, waits in zip(timed.roles, padding.waits_us, strict=True)
        ],
    )


def _rows(
    deployments: Sequence[Deployment],
    steps: Sequence[Sequence[Step]],
    places: int,
    answerer: Answerer,
) -> Rows | None:
    """Return the modules that run all rows of padded steps, None if no step is padded."""
    grid = graph_rows(steps)
    if not grid:
        return None
    ones = {
        row: of_one_request(deployment)
        for row, (deployment, of_deployment) in enumerate(zip(deployments, steps, strict=True))
        if any(step.padded for step in of_deployment)
    }
    distinct = {one: index for index, one in enumerate(dict.fromkeys(ones.values()))}
    forward = _timed(Questions([*distinct], grid, only=OF_ROWS), answerer)
    latency = np.zeros((len(deployments), places, len(grid)))
    asked = np.full((len(deployments), places), -1)
    modules, outside = forward.asked.shape[1] - len(ROLES), -len(ROLES)
    for row, one in ones.items():
        times = forward.latency_us[distinct[one]]
        latency[row, :modules], latency[row, outside:] = times[:modules], times[outside:]
        asked[row, :modules] = forward.asked[distinct[one], :modules]
    return Rows(grid, latency, asked, forward.timed)


def _timed(questions: Questions, answerer: Answerer) -> Total:
    """Return T(N) of deployments without padding of steps."""
    grid, uses = np.array(questions.grid), questions.uses
    timed = answerer.timed(questions.frame)
    query_us, query_band, evidence = _answered(timed, questions.frame.height, len(grid))
    position = uses["deployment"].to_numpy(), uses["place"].to_numpy()
    numbers = uses["asked"].to_numpy()
    shape = len(questions.deployments), int(uses["place"].max() or 0) + 1  # type: ignore[arg-type]
    module_us = np.zeros((*shape, len(grid)))
    module_us[position] = query_us[numbers] * uses["count"].to_numpy()[:, None]
    modules: list[dict[int, tuple[str, int]]] = [{} for _ in questions.deployments]
    for deployment, place, role, number in uses.select(
        "deployment", "place", "role", "asked"
    ).iter_rows():
        modules[deployment][place] = role, number
    module_roles = [{place: role for place, (role, _) in part.items()} for part in modules]
    latency, roles = with_step_times(answerer, questions.deployments, module_roles, module_us, grid)
    shape = latency.shape[:2]
    band, asked = np.zeros(shape), np.full(shape, -1)
    band[position], asked[position] = query_band[numbers], numbers
    known = [
        {place: evidence[number] for place, (_, number) in part.items() if number in evidence}
        for part in modules
    ]
    behind = [
        [*part.values(), *_step_evidence(answerer, deployment)]
        for part, deployment in zip(known, questions.deployments, strict=True)
    ]
    reasons = timed.refusals()
    return Total(
        latency_us=latency,
        band=band,
        asked=asked,
        roles=roles,
        grid=grid,
        refusals=[_refusal([*part.values()], reasons) for part in modules],
        constants=["; ".join(sorted({each.constants for each in part})) for part in behind],
        calibration=[
            tuple(sorted({event for each in part for event in each.calibration})) for part in behind
        ],
        regimes=[{place: each.regime for place, each in part.items()} for part in known],
        in_sample=np.array([any(each.in_sample for each in part) for part in behind]),
        timed=timed,
    )


def _answered(
    timed: TimedQuestions, count: int, width: int
) -> tuple[Array, Array, dict[int, Evidence]]:
    """Return T(N) of `count` queries, [queries, grid], NaN where not known; band and evidence."""
    latency_us, band = np.full((count, width), np.nan), np.zeros(count)
    evidence: dict[int, Evidence] = {}
    for curves in timed.curves():
        latency_us[curves.asked], band[curves.asked] = curves.latency_us, curves.band
        columns = (curves.constants, curves.calibration, curves.regime, curves.in_sample)
        evidence |= dict(zip(curves.asked, map(Evidence, *columns), strict=True))
    return latency_us, band, evidence


def _refusal(
    modules: Sequence[tuple[str, int]], reasons_by_question: Mapping[int, str]
) -> str | None:
    """Return the modules whose T(N) is not known, by reason; None where all are known."""
    reasons: dict[str, list[str]] = {}
    for role, number in modules:
        if number in reasons_by_question:
            reasons.setdefault(reasons_by_question[number], []).append(role)
    texts = (f"{', '.join(dict.fromkeys(roles))}: {reason}" for reason, roles in reasons.items())
    return "; ".join(texts) or None


def _step_evidence(answerer: Answerer, deployment: Deployment) -> list[Evidence]:
    """Return the evidence of a step's time outside of modules, empty where it is not known."""
    step = step_of(answerer.engine_steps, deployment)
    return [Evidence(step.text, [step.event.event_id], "")] if step else []


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
        sums=deployment.sums,
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
