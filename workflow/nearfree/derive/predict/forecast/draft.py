"""Time of drafting: by a model's own layer (multi-token prediction), a head, or a draft model.

The own layer and a head (EAGLE) run K times for K tokens: first on all b (K + 1) rows of the
verified step, then K - 1 times on b rows, with logits of one row per request in each run. A run is
a layer, the product that combines embedding and hidden state, and the LM head; EAGLE-3 combines
hidden states only before the first run. Between two synchronisations the GPU runs what the host
launched, so a draft takes the longer of the two (`engine_step.launches`), plus the exposed host
time of a step with drafts.

A draft model runs one forward per token. Its first forward has all rows of the step, too, as it has
not seen the accepted ones, and in vLLM one more row per request, for the token after them. No
scheduler runs between these forwards: only the verifying step has the host's time for a step.

With K = 0 either kind of drafter still runs once, for its cache; such a step of vLLM was measured
to take 6.6 % more at 2 requests and 21.6 % more at 189 (vllm-project/vllm issue 49548). Source:
vllm 0.20.2,
vllm/v1/spec_decode/llm_base_proposer.py:443-554 (rows of the first forward, and its logits); vllm
0.33.0, the same file, line 619 (K = 0); vllm-project/vllm at 00c4f22d, the same file,
`net_num_new_slots_per_request` and `set_inputs_first_pass` (a draft model's rows); sglang 0.5.6,
sglang/srt/speculative/eagle_worker.py:588-658 (runs of a chain) and 917-1004 (draft extend, which a
draft model's worker takes over).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import UNSET, structs

from nearfree.backends.names import BackendRelease
from nearfree.core.precision import Product, uniform
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.draft_heads import mtp_layer
from nearfree.decoders.ranks.collectives import LOGITS
from nearfree.decoders.ranks.engines import VLLM
from nearfree.decoders.ranks.modules import HEAD, STATES
from nearfree.derive.engine_step.form import StepConstants
from nearfree.derive.engine_step.launches import draws_all, exposed_us, launches_us
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.total import Total, step_of
from nearfree.derive.work_model.family import Array
from nearfree.errors import EvidenceError


class Drafted(NamedTuple):
    """Time of a draft's modules, [grid], and whether the drafter has its own vocabulary.

    `sums` are the all-reduces of one run.
    """

    modules_us: Array
    mapped: bool
    sums: int

    def at(self, place: int) -> "Drafted":
        """Return the draft at one N only, by its index in the grid."""
        return self._replace(modules_us=self.modules_us[[place]])

    def served_us(
        self,
        positions: Array,
        engine: BackendRelease,
        constants: StepConstants,
        decoder: Decoder,
    ) -> Array:
        """Return the time of the draft in an engine's step of the target model, in us, [grid].

        `positions` are N of the steps, [grid]. Each run has one layer's kernels between modules.
        """
        runs = drafter_runs(positions)
        device = self.modules_us + runs * constants.fixed_us(layers=1, sums=self.sums)
        host = runs * launches_us(engine, decoder, mapped=self.mapped)
        return np.asarray(np.maximum(device, host) + exposed_us(engine))


def drafter_runs(positions: Array) -> Array:
    """Return the number of drafter runs for N - 1 tokens, at least 1."""
    return np.asarray(np.maximum(positions - 1.0, 1.0))


def as_own(deployment: Deployment) -> Deployment:
    """Return the deployment of a model's own draft layer, without memory.

    The drafter runs on the last pipeline stage only (vllm-project/vllm pull 50514).
    """
    layer = structs.replace(
        deployment,
        decoder=mtp_layer(deployment.decoder),
        memory=None,
        parallel=structs.replace(deployment.parallel, pp=1),
    )
    if not layer.drafts_plain:
        return layer
    plain = Product(layer.formats.plain, layer.formats.plain)
    formats = layer.formats.with_products(
        lambda shared, kind: shared if kind == "lm_head" else plain
    )
    return structs.replace(layer, precision=formats, library=None)


def as_head(head: Deployment, deployment: Deployment) -> Deployment:
    """Return a head's deployment as it drafts for a model, by the same engine.

    It computes in the model's element type, whatever its file says (vllm 0.20.2,
    vllm/config/speculative.py:567).

    Raises
    ------
    EvidenceError
        The head reads hidden states of another width than the model's.
    """
    states, decoder = head.decoder.states, deployment.decoder
    if states is not UNSET and states.width != decoder.d_model:
        raise EvidenceError(
            f"{head.decoder.name} reads states of {states.width} elements, and those of "
            f"{decoder.name} have {decoder.d_model}",
            remedy="Give the head that drafts for this model",
        )
    plain = uniform(deployment.formats.plain)
    return structs.replace(
        head, moe=deployment.moe, server=deployment.server, precision=plain, served=False
    )


def draft_of(drafter: Deployment, total: Total, place: int, engine: BackendRelease) -> Drafted:
    """Return the draft of N - 1 tokens by a head or by the own layer, from `as_head` or `as_own`.

    `total` is T(N) of drafters, `place` that of this one. The engine's release decides which rows
    of the first run have logits.
    """
    modules = total.modules(place)
    latency, roles = total.latency_us[place], total.roles[place]
    first_us, one_row_us = latency[modules].sum(axis=0), float(latency[modules, 0].sum())
    states = drafter.decoder.states
    mapped = states is not UNSET and states.once
    if mapped:
        one_row_us -= sum(
            float(latency[module, 0]) for module in modules if roles[module] == STATES
        )
    runs = drafter_runs(total.grid.astype(np.float64))
    first_us = first_us - _undrawn_us(total, place, engine)
    return Drafted(np.asarray(first_us + (runs - 1.0) * one_row_us), mapped, drafter.sums)


def _undrawn_us(total: Total, place: int, engine: BackendRelease) -> Array:
    """Return the time of logits of all rows beyond that of one row per request, [grid].

    It is 0 where the engine's first run computes logits of all rows.
    """
    module_places = [] if draws_all(engine) else total.modules(place)
    heads = [module for module in module_places if total.roles[place][module] in (HEAD, LOGITS)]
    latency = total.latency_us[place, heads]
    return np.asarray((latency - latency[:, :1]).sum(axis=0))


def drafter_shares(
    total: Total,
    deployments: Sequence[Deployment],
    drafter: Total,
    drafting: Sequence[Deployment],
    steps: Mapping[str, RecordedStep],
) -> dict[int, list[float]]:
    """Return the time of a round of 0, 1, ... drafts of a head or the own layer, by batch size.

    Times are shares of T(1) of the same batch size; the grid of T(N) is all N from 1.

    Parameters
    ----------
    total, deployments
        T(N) of the target model and its deployments.
    drafter, drafting
        T(N) of the drafter over the same grid, and its deployments at the same batch sizes, from
        `as_head` or `as_own`.
    steps
        The constants of engines' steps; without them the host's time is not counted.

    Raises
    ------
    EvidenceError
        T(N) of the drafter is not known.
    """
    positions, shares = total.grid.astype(np.float64), {}
    for place, deployment, drafter_place in _pairs(deployments, drafter, drafting):
        draft = draft_of(drafting[drafter_place], drafter, drafter_place, deployment.engine)
        step, drafted_us = step_of(steps, deployment), draft.modules_us
        if step is not None:
            drafted_us = draft.served_us(
                positions, deployment.engine, step.constants, deployment.decoder
            )
        shares[deployment.batch] = (drafted_us / total.model_us[place, 0]).tolist()
    return shares


def _pairs(
    deployments: Sequence[Deployment], drafter: Total, drafting: Sequence[Deployment]
) -> Iterator[tuple[int, Deployment, int]]:
    """Yield each deployment with its place, and the place of its drafter's deployment."""
    drafter_places = {deployment.batch: place for place, deployment in enumerate(drafting)}
    for place, deployment in enumerate(deployments):
        drafter_place = drafter_places[deployment.batch]
        if drafter.refusals[drafter_place] is not None:
            raise EvidenceError(
                f"what {drafting[drafter_place].decoder.name} takes to draft is not known: "
                f"{drafter.refusals[drafter_place]}",
                remedy="Name another draft model, or give --draft-cost",
            )
        yield place, deployment, drafter_place


def draft_model_grid(grid: Sequence[int]) -> list[int]:
    """Return the N at which T(N) of a draft model is needed, given the N of the verifying steps."""
    return [*grid, grid[-1] + 1]


def model_shares(
    total: Total, deployments: Sequence[Deployment], drafter: Total, drafting: Sequence[Deployment]
) -> dict[int, list[float]]:
    """Return the time of a round of 0, 1, ... drafts of a draft model, as in `drafter_shares`.

    Parameters
    ----------
    drafter, drafting
        T(N) of the draft model at the N of `draft_model_grid`, and its deployments at the same
        batch sizes.

    Raises
    ------
    EvidenceError
        T(N) of the draft model is not known.
    """
    later_runs, shares = drafter_runs(total.grid.astype(np.float64)) - 1.0, {}
    for place, deployment, drafter_place in _pairs(deployments, drafter, drafting):
        added_rows = 1 if deployment.engine.name == VLLM.name else 0
        rows = np.searchsorted(drafter.grid, total.grid + added_rows)
        forward_us = _unscheduled_us(drafter, drafter_place)
        first_us = (forward_us - _undrawn_us(drafter, drafter_place, deployment.engine))[rows]
        exposed = exposed_us(deployment.engine) if deployment.served else 0.0
        drafted_us = first_us + later_runs * forward_us[0] + exposed
        shares[deployment.batch] = (drafted_us / total.model_us[place, 0]).tolist()
    return shares


def _unscheduled_us(total: Total, place: int) -> Array:
    """Return T(N) of a forward without the host's time for a step, but with waits for launches."""
    waits = total.padding.waits_us[place] if total.padding else 0.0
    return np.asarray(total.model_us[place] - total.latency_us[place, -1] + waits)
