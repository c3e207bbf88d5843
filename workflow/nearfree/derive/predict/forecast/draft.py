"""What drafting takes beside a step: by a model's own layer for further tokens, a head, or a model.

The own layer (multi-token prediction) and a head (EAGLE) run K times for K tokens: first on all
b (K + 1) rows of the step that is verified, then K - 1 times on b rows, drawing from one row of a
request at each run. Each run is a layer, the product that brings embedding and state together, and
the LM head; EAGLE-3's brings states together before the first run alone. Between two
synchronisations the GPU runs what the host launched, so a draft takes the longer of both
(`engine_step.launches`), and a step with drafts shows what no overlap hides. A draft model runs a
forward for each token: the first, too, on all rows of the step, of which it has not seen those
that were accepted, and in vLLM on one more a request, the token behind them. No scheduler runs
between these forwards: the host's time for a step is that of the verifying one alone. With K = 0
either still runs once, for its cache; such a step of vLLM was measured to take 6.6 % more at 2
requests and 21.6 % more at 189 (vllm-project/vllm issue 49548). Source: vllm 0.20.2,
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
from nearfree.decoders.collectives import LOGITS
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.draft_heads import own_layer
from nearfree.decoders.engines import VLLM
from nearfree.decoders.modules import HEAD, STATES
from nearfree.derive.engine_step.form import StepConstants
from nearfree.derive.engine_step.launches import draws_all, exposed_us, launches_us
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.total import Total
from nearfree.derive.work_model.family import Array
from nearfree.errors import EvidenceError


class Drafted(NamedTuple):
    """What the modules of a draft take, [grid], and whether it has a vocabulary of its own."""

    modules_us: Array
    mapped: bool

    def at(self, place: int) -> "Drafted":
        """Return the draft of one N alone, by its place in the grid."""
        return self._replace(modules_us=self.modules_us[[place]])

    def served_us(
        self,
        positions: Array,
        engine: BackendRelease,
        constants: StepConstants,
        decoder: Decoder,
    ) -> Array:
        """Return what the draft takes of a step of an engine, as the positions.

        Parameters
        ----------
        positions
            N of the steps, [grid].
        constants
            Those of the engine's step: kernels between modules, of one layer a run.
        decoder
            The model that it drafts for.
        """
        runs = own_runs(positions)
        device = self.modules_us + runs * constants.layer_us
        host = runs * launches_us(engine, decoder, mapped=self.mapped)
        return np.asarray(np.maximum(device, host) + exposed_us(engine))


def own_runs(positions: Array) -> Array:
    """Return how often the drafter runs for N - 1 tokens: once at least."""
    return np.asarray(np.maximum(positions - 1.0, 1.0))


def as_own(deployment: Deployment) -> Deployment:
    """Return the deployment of a model's own layer for further tokens, with its modules alone.

    What drafts runs on the last pipeline stage alone (vllm-project/vllm pull 50514).
    """
    own = structs.replace(
        deployment,
        decoder=own_layer(deployment.decoder),
        memory=None,
        parallel=structs.replace(deployment.parallel, pp=1),
    )
    if not own.drafts_plain:
        return own
    plain = Product(own.formats.plain, own.formats.plain)
    formats = own.formats.changed(lambda shared, kind: shared if kind == "lm_head" else plain)
    return structs.replace(own, precision=formats, library=None)


def as_head(head: Deployment, deployment: Deployment) -> Deployment:
    """Return the deployment of a head beside that of its model, with its modules alone.

    It computes in the model's element type, whatever its file says (vllm 0.20.2,
    vllm/config/speculative.py:567), by the same engine.

    Raises
    ------
    EvidenceError
        It reads the states of a model of another width.
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


def draft_of(drafter: Deployment, found: Total, place: int, engine: BackendRelease) -> Drafted:
    """Return what drafts of N - 1 tokens take by a head or by the own layer.

    Parameters
    ----------
    drafter
        As `as_head` or `as_own` gives it.
    found, place
        T(N) of drafters, and the place of this one.
    engine
        Whose release says from which rows the first run draws.
    """
    modules = found.modules(place)
    latency, roles = found.latency_us[place], found.roles[place]
    first, each = latency[modules].sum(axis=0), float(latency[modules, 0].sum())
    states = drafter.decoder.states
    mapped = states is not UNSET and states.once
    if mapped:
        each -= sum(float(latency[at, 0]) for at in modules if roles[at] == STATES)
    runs = own_runs(found.grid.astype(np.float64))
    return Drafted(
        np.asarray(first - _undrawn_us(found, place, engine) + (runs - 1.0) * each), mapped
    )


def _undrawn_us(found: Total, place: int, engine: BackendRelease) -> Array:
    """Return what logits of all rows would take beyond those of one row a request, [grid].

    It is 0 where the engine's first run makes logits of all.
    """
    drawn = [] if draws_all(engine) else found.modules(place)
    heads = [at for at in drawn if found.roles[place][at] in (HEAD, LOGITS)]
    latency = found.latency_us[place, heads]
    return np.asarray((latency - latency[:, :1]).sum(axis=0))


def drafter_shares(
    found: Total,
    asked: Sequence[Deployment],
    drafter: Total,
    drafting: Sequence[Deployment],
    steps: Mapping[str, RecordedStep],
) -> dict[int, list[float]]:
    """Return what a round of 0, 1, ... drafts of a head or the own layer takes, by batch size.

    Shares are of T(1) of the same batch size; the grid of T(N) is all N from 1.

    Parameters
    ----------
    drafter, drafting
        T(N) of the drafter over the same grid, and its deployments at the same batch sizes, as
        `as_head` or `as_own` gives them.
    steps
        The constants of engines' steps; the host of one without them is not counted.

    Raises
    ------
    EvidenceError
        T(N) of the drafter is not known.
    """
    positions, shares = found.grid.astype(np.float64), {}
    for place, each, own in _drafted(asked, drafter, drafting):
        draft = draft_of(drafting[own], drafter, own, each.engine)
        step, drafted = steps.get(each.engine.name), draft.modules_us
        if step is not None and each.served:
            drafted = draft.served_us(positions, each.engine, step.constants, each.decoder)
        shares[each.batch] = (drafted / found.model_us[place, 0]).tolist()
    return shares


def _drafted(
    asked: Sequence[Deployment], drafter: Total, drafting: Sequence[Deployment]
) -> Iterator[tuple[int, Deployment, int]]:
    """Yield the place of each deployment, itself, and the place of what drafts for it."""
    at = {each.batch: place for place, each in enumerate(drafting)}
    for place, each in enumerate(asked):
        own = at[each.batch]
        if drafter.refusals[own] is not None:
            raise EvidenceError(
                f"what {drafting[own].decoder.name} takes to draft is not known: "
                f"{drafter.refusals[own]}",
                remedy="Name another draft model, or give --draft-cost",
            )
        yield place, each, own


def drafting_grid(grid: Sequence[int]) -> list[int]:
    """Return the N at which T(N) of a draft model is asked, given those of its model's steps."""
    return [*grid, grid[-1] + 1]


def model_shares(
    found: Total, asked: Sequence[Deployment], drafter: Total, drafting: Sequence[Deployment]
) -> dict[int, list[float]]:
    """Return what a round of 0, 1, ... drafts of a model takes, by batch size, as `drafter_shares`.

    Parameters
    ----------
    drafter, drafting
        T(N) of the draft model at the N of `drafting_grid`, and its deployments at the same batch
        sizes.

    Raises
    ------
    EvidenceError
        T(N) of the draft model is not known.
    """
    later, shares = own_runs(found.grid.astype(np.float64)) - 1.0, {}
    for place, each, own in _drafted(asked, drafter, drafting):
        more = 1 if each.engine.name == VLLM.name else 0
        rows = np.searchsorted(drafter.grid, found.grid + more)
        us = _unscheduled_us(drafter, own)
        first = (us - _undrawn_us(drafter, own, each.engine))[rows]
        exposed = exposed_us(each.engine) if each.served else 0.0
        drafted = first + later * us[0] + exposed
        shares[each.batch] = (drafted / found.model_us[place, 0]).tolist()
    return shares


def _unscheduled_us(found: Total, place: int) -> Array:
    """Return T(N) of a forward without the host's time for a step, but with what it waits for."""
    waits = found.padding.waits_us[place] if found.padding else 0.0
    return np.asarray(found.model_us[place] - found.latency_us[place, -1] + waits)
