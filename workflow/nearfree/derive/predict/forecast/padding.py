"""T(N) of a step that an engine pads to a captured graph: its products run the graph's rows.

Attention runs the actual positions; dense products, experts and collectives run the padded rows.
Padded rows amount to N' = rows / b positions per request and take T(N'), interpolated linearly
between whole N'. Above the largest graph, kernels are launched one by one: T(N) is the longer of
the GPU's time and of the host's launches. vLLM compiles the code between attention and launches
fewer kernels, but no published step shows how many: its launches are counted as eager ones, which
is an upper bound.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.decoders.ranks.modules import requests
from nearfree.derive.granularity.graphs import GraphSteps, Step
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
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
    index in the timed grid of N, or of the padded N, [deployments, places, grid]. `launches` is the
    number of kernels that an eager step of each deployment launches, and `waits_us` the time that
    the GPU waits for them, [deployments, grid].
    """

    steps: Sequence[Sequence[Step]]
    unpadded_us: Array
    at: Integers
    launches: Sequence[int]
    waits_us: Array

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


def timed_grid(grid: Sequence[int], steps: Sequence[Sequence[Step]]) -> list[int]:
    """Return the N to be timed: those of the grid, and the whole N around each padded step's N."""
    numbers = set(grid)
    for deployment_steps in steps:
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
    is_attention: Flags,
    *,
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
    is_attention
        Mask of the modules that run the actual positions, [deployments, places].
    launches
        The number of kernels that a step of each deployment launches.
    """
    places = np.searchsorted(timed, grid)
    unpadded = latency_us[:, :, places]
    latency = unpadded.copy()
    timed_places = np.broadcast_to(places, latency.shape).copy()
    waits_us = np.zeros((len(steps), len(grid)))
    for deployment, deployment_steps in enumerate(steps):
        rows = ~is_attention[deployment]
        for place, (n, step) in enumerate(
            zip(grid, deployment_steps, strict=bool(deployment_steps))
        ):
            if step.size is None:
                device_us = latency[deployment, :-1, place].sum()
                wait_us = LAUNCH_US * launches[deployment] - device_us
                waits_us[deployment, place] = np.fmax(wait_us, 0.0)  # 0 where T(N) is not known
            if not step.padded:
                continue
            padded_n = step.rows * n / step.tokens
            low, high = (
                int(np.searchsorted(timed, n_around))
                for n_around in (math.floor(padded_n), math.ceil(padded_n))
            )
            share = padded_n - math.floor(padded_n)
            low_us, high_us = latency_us[deployment, rows, low], latency_us[deployment, rows, high]
            latency[deployment, rows, place] = (1 - share) * low_us + share * high_us
            timed_places[deployment, rows, place] = high
    latency[:, -1] += waits_us
    return latency, Padding(
        steps=steps,
        unpadded_us=unpadded,
        at=timed_places,
        launches=launches,
        waits_us=waits_us,
    )
