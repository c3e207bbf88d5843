"""T(N) of a step that an engine pads to a captured graph: its products run the graph's rows.

Attention runs the actual positions; dense products, experts and collectives run the padded rows,
and take what they take of one request with as many positions, since they do not tell requests
apart. A layer with a state runs rows / b positions of each request: T between two whole N is
interpolated, as it is linear. Above the largest graph, kernels are launched one by one: T(N) is the
longer of the GPU's time and of the host's launches. vLLM compiles the code between attention and
launches fewer kernels, but no published step shows how many: its launches are counted as eager
ones, which is an upper bound.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.decoders.ranks.modules import requests
from nearfree.derive.granularity.graphs import GraphSteps, Step
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.family import Array, Flags, Integers
from nearfree.derive.work_model.launches import LAUNCH_US
from nearfree.errors import NearfreeError

REAL = (ATTENTION.name, MLA.name, INDEXER.name)
"""Modules that run the actual positions, however many rows the graph has."""
PADDED, EAGER = "graph of", "no graph of"
"""Prefixes of a limiting term: the step is padded to a graph, or no graph is large enough."""


class Padding(Struct, frozen=True, kw_only=True):
    """The graphs of deployments' steps, and the steps' times without padding.

    `steps` are the steps of each deployment by index in the grid, empty without graphs.
    `unpadded_us` is the time of each module at N itself, [deployments, places, grid]. `at` is the
    index in the timed grid of N, or of the padded N, [deployments, places, grid], and `rows` has
    the modules that run all padded rows, None if no step is padded. `launches` is the number of
    kernels that an eager step of each deployment launches, and `waits_us` the time that the GPU
    waits for them, [deployments, grid].
    """

    steps: Sequence[Sequence[Step]]
    unpadded_us: Array
    at: Integers
    rows: "Rows | None"
    launches: Sequence[int]
    waits_us: Array

    def row_step(
        self, deployment: int, module: int, last: int, after: int
    ) -> tuple[int, int, int] | None:
        """Return the query of a module at the graphs' rows, and the indices of two steps there.

        Return None where the step after is not padded, or where the module does not run its rows.
        """
        steps = self.steps[deployment]
        if self.rows is None or not steps or not steps[after].padded:
            return None
        number = int(self.rows.asked[deployment, module])
        if number < 0:
            return None
        return number, self.rows.place(steps[last]), self.rows.place(steps[after])

    def stopped_by(self, deployment: int, place: int) -> str | None:
        """Return the limiting term of a step that is padded to a graph, or waits for launches.

        Return None where neither is so.
        """
        steps = self.steps[deployment]
        step = steps[place] if steps else None
        if step is not None and self.waits_us[deployment, place] > 0:
            return (
                f"{EAGER} {step.tokens} tokens: {self.launches[deployment]} kernels launched one "
                f"by one, {LAUNCH_US:g} us each as in published eager steps of SGLang"
            )
        if step is None or not step.padded:
            return None
        counted = "tokens" if step.size == step.rows else "requests"
        return f"{PADDED} {step.size} {counted}: {step.tokens} rows run as {step.rows}"


class Rows(NamedTuple):
    """Modules that run a step's rows, whichever request they are of, at the rows of all graphs.

    `grid` are the rows of a data parallel group. `latency_us` [deployments, places, rows] and the
    queries `asked` [deployments, places], -1 where there is none, are by a deployment's own places;
    `timed` answers these queries.
    """

    grid: Sequence[int]
    latency_us: Array
    asked: Integers
    timed: TimedQuestions

    def place(self, step: Step) -> int:
        """Return the index of a step's rows in the grid."""
        return bisect_left(self.grid, step.rows)

    def modules(self, deployment: int) -> Flags:
        """Return the mask of a deployment's places: these modules, and the time between modules."""
        places = self.asked[deployment] >= 0
        places[-2] = True
        return np.asarray(places)


def of_one_request(deployment: Deployment) -> Deployment:
    """Return a deployment of one request per data parallel group, whose N are its group's rows."""
    return structs.replace(deployment, batch=deployment.parallel.dp, context=1, memory=None)


def graph_rows(steps: Sequence[Sequence[Step]]) -> list[int]:
    """Return the rows of all graphs of deployments with a padded step, rising from 1; or none."""
    padding = [each for each in steps if any(step.padded for step in each)]
    rows = {step.rows for each in padding for step in each if step.size is not None}
    return sorted({1, *rows}) if rows else []


def steps_of(
    deployments: Sequence[Deployment], grid: Sequence[int], answerer: Answerer
) -> tuple[list[list[Step]], list[str | None]]:
    """Return the steps of deployments by index in the grid, and the refusal of each, if any.

    A deployment without graphs has no steps and no refusal; one whose release has no rules is
    refused.
    """
    graphs = GraphSteps(answerer.resolver.rules)
    steps: list[list[Step]] = []
    reasons: list[str | None] = []
    for deployment in deployments:
        deployment_steps, reason = list[Step](), None
        if deployment.graphs:
            batch = requests(deployment.batch, deployment.parallel.dp)
            try:
                deployment_steps = [graphs.step(deployment.graphs, batch, n) for n in grid]
            except NearfreeError as error:
                reason = f"captured graphs: {error.what}"
        steps.append(deployment_steps)
        reasons.append(reason)
    return steps, reasons


def timed_grid(
    grid: Sequence[int], steps: Sequence[Sequence[Step]], with_states: Collection[int]
) -> list[int]:
    """Return the N to be timed: those of the grid, and those around a padded N.

    The latter are of deployments `with_states` alone.
    """
    numbers = set(grid)
    for deployment in with_states:
        deployment_steps = steps[deployment]
        for n, step in zip(grid, deployment_steps, strict=bool(deployment_steps)):
            if step.padded:
                padded = step.rows * n / step.tokens
                numbers |= {math.floor(padded), math.ceil(padded)}
    return sorted(numbers)


def padded(
    timed: Sequence[int],
    grid: Sequence[int],
    latency_us: Array,
    steps: Sequence[Sequence[Step]],
    *,
    has_state: Flags,
    rows: Rows | None,
    launches: Sequence[int],
) -> tuple[Array, Padding]:
    """Return the times of modules in padded steps, and the padding.

    Launches and the GPU's work overlap: in a step without a graph, the time by which launches take
    longer than the GPU's work is added to the host's, in the last place.

    Parameters
    ----------
    timed
        The N of `latency_us`, those of `timed_grid`.
    grid
        The N of the result.
    latency_us
        Time of each module, [deployments, places, timed].
    steps
        The steps of each deployment by index in `grid`, empty without graphs.
    has_state
        Mask of the modules that run each request's share of the padded rows, [deployments, places].
    rows
        The modules that run all padded rows; None if no step is padded.
    launches
        The number of kernels that a step of each deployment launches.
    """
    places = np.searchsorted(timed, grid)
    unpadded = latency_us[:, :, places]
    latency = unpadded.copy()
    timed_places = np.broadcast_to(places, latency.shape).copy()
    waits_us = np.zeros((len(steps), len(grid)))
    for deployment, deployment_steps in enumerate(steps):
        stateful = has_state[deployment]
        for place, (n, step) in enumerate(
            zip(grid, deployment_steps, strict=bool(deployment_steps))
        ):
            if step.size is None:
                device_us = latency[deployment, :-1, place].sum()
                wait_us = LAUNCH_US * launches[deployment] - device_us
                waits_us[deployment, place] = np.fmax(wait_us, 0.0)  # 0 where T(N) is not known
            if not step.padded:
                continue
            if rows is not None:
                padded_modules = rows.modules(deployment)
                row_us = rows.latency_us[deployment, padded_modules, rows.place(step)]
                latency[deployment, padded_modules, place] = row_us
            if not stateful.any():
                continue
            padded_n = step.rows * n / step.tokens
            low, high = (
                int(np.searchsorted(timed, n_around))
                for n_around in (math.floor(padded_n), math.ceil(padded_n))
            )
            share = padded_n - math.floor(padded_n)
            low_us, high_us = (latency_us[deployment, stateful, end] for end in (low, high))
            latency[deployment, stateful, place] = (1 - share) * low_us + share * high_us
            timed_places[deployment, stateful, place] = high
    latency[:, -1] += waits_us
    return latency, Padding(
        steps=steps,
        unpadded_us=unpadded,
        at=timed_places,
        rows=rows,
        launches=launches,
        waits_us=waits_us,
    )
