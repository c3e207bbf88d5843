"""T(N) of a step that an engine pads to a captured graph: its products run the graph's rows.

Attention sees the positions that there are; dense products, experts and collectives run padded
rows. Rows that make N' = rows / b positions of a request take T(N'), interpolated linearly between
the whole N' around where that is no whole number. Above the largest graph kernels are launched one
by one: T(N) is the longer of what the GPU runs and of what the host launches. vLLM's code between
attention is compiled, and launches less; of it no step is published that says so, so that its
launches are taken as eager ones, which is an upper bound.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.decoders.modules import requests
from nearfree.derive.granularity.graphs import GraphSteps, Step
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.work_model.family import Array, Flags, Places
from nearfree.derive.work_model.launches import LAUNCH_US
from nearfree.errors import NearfreeError

REAL = (ATTENTION.name, MLA.name, INDEXER.name)
"""Modules that see the positions that there are, however many rows run."""
PADDED, EAGER = "graph of", "no graph of"
"""How the term of a limit begins where a step is padded to a graph, and where none holds it."""


class Padding(Struct, frozen=True, kw_only=True):
    """The graphs of deployments, and what their steps take without padding.

    `steps` are those of each deployment by place in the grid, none of one without graphs;
    `unpadded_us` is what each module takes at N itself, [deployments, places, grid]; `at` is where
    in the timed grid each N stands, or the padded one, [deployments, places, grid]. `launches` is
    how many kernels a step of each launches where no graph holds it, and `waits_us` how long the
    GPU waits for them, [deployments, grid].
    """

    steps: Sequence[Sequence[Step]]
    unpadded_us: Array
    at: Places
    launches: Sequence[int]
    waits_us: Array

    def stopped_by(self, deployment: int, place: int) -> str | None:
        """Return the graph that a step is padded to, or that none holds it and the GPU waits.

        None where neither is so.
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
    """Return the steps of deployments by place in the grid, and why there are none.

    One without graphs has no steps and no reason; one whose release has no rules has a reason.
    """
    graphs = GraphSteps(answerer.rules)
    steps: list[list[Step]] = []
    reasons: list[str | None] = []
    for each in deployments:
        found, reason = list[Step](), None
        if each.graphs:
            batch = requests(each.batch, each.parallel.dp)
            try:
                found = [graphs.step(each.graphs, batch, n) for n in grid]
            except NearfreeError as error:
                reason = f"captured graphs: {error.what}"
        steps.append(found)
        reasons.append(reason)
    return steps, reasons


def timed_grid(grid: Sequence[int], steps: Sequence[Sequence[Step]]) -> list[int]:
    """Return the N to be timed: those of the grid, and those around each padded step's."""
    wanted = set(grid)
    for each in steps:
        for n, step in zip(grid, each, strict=bool(each)):
            if step.padded:
                padded = step.rows * n / step.tokens
                wanted |= {math.floor(padded), math.ceil(padded)}
    return sorted(wanted)


def padded(
    timed: Sequence[int],
    grid: Sequence[int],
    latency_us: Array,
    steps: Sequence[Sequence[Step]],
    real: Flags,
    *,
    launches: Sequence[int],
) -> tuple[Array, Padding]:
    """Return what modules take in steps as engines run them, and what stands behind it.

    Where no graph holds a step the host takes, beside its own time in the last place, what its
    launches take longer than all that the GPU runs: both go on at once.

    Parameters
    ----------
    timed
        The N that `latency_us` is of, those of `timed_grid`.
    grid
        The N that are asked about.
    latency_us
        What each module takes, [deployments, places, timed].
    steps
        The steps of each deployment by place in `grid`, none of one without graphs.
    real
        Which modules see the positions that there are, [deployments, places].
    launches
        How many kernels a step of each deployment launches.
    """
    places = np.searchsorted(timed, grid)
    unpadded = latency_us[:, :, places]
    found = unpadded.copy()
    at = np.broadcast_to(places, found.shape).copy()
    waits = np.zeros((len(steps), len(grid)))
    for deployment, each in enumerate(steps):
        rows = ~real[deployment]
        for place, (n, step) in enumerate(zip(grid, each, strict=bool(each))):
            if step.size is None:
                device_us = found[deployment, :-1, place].sum()
                waits[deployment, place] = max(LAUNCH_US * launches[deployment] - device_us, 0.0)
            if not step.padded:
                continue
            asked = step.rows * n / step.tokens
            low, high = (
                int(np.searchsorted(timed, whole))
                for whole in (math.floor(asked), math.ceil(asked))
            )
            share = asked - math.floor(asked)
            mine = latency_us[deployment, rows]
            found[deployment, rows, place] = (1 - share) * mine[:, low] + share * mine[:, high]
            at[deployment, rows, place] = high
    found[:, -1] += np.nan_to_num(waits)
    return found, Padding(
        steps=steps, unpadded_us=unpadded, at=at, launches=launches, waits_us=np.nan_to_num(waits)
    )
