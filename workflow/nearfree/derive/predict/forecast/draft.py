"""What drafting takes beside a step: by a model's own layer for further tokens, a head, or a model.

The own layer (multi-token prediction) runs K times for K tokens: first on all b (K + 1) rows of the
step that is verified, then K - 1 times on b rows. Each time is a layer of the model's own, experts
included, and the LM head. A head (EAGLE) runs as often and on the same rows, but draws from one row
of a request at each run; EAGLE-3's brings states together before the first. A draft model runs a
forward of b rows for each token. With K = 0 either still runs once, for its cache; such a step of
vLLM was measured to take 6.6 % more at 2 requests and 21.6 % more at 189 (vllm-project/vllm issue
49548). Source: vllm 0.20.2, vllm/v1/spec_decode/llm_base_proposer.py:443-554 (rows of the first
forward, and its logits); vllm 0.33.0, the same file, line 619 (K = 0); sglang 0.5.9,
sglang/srt/speculative/eagle_worker_v2.py (draft extend).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET, structs

from nearfree.core.precision import uniform
from nearfree.decoders.collectives import LOGITS
from nearfree.decoders.modules import HEAD, STATES
from nearfree.derive.engine_step.form import StepConstants
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.total import Total
from nearfree.derive.work_model.family import Array, Places
from nearfree.errors import EvidenceError


def own_runs(positions: Array) -> Array:
    """Return how often the own layer runs for a draft of N - 1 tokens: once at least."""
    return np.asarray(np.maximum(positions - 1.0, 1.0))


def draft_host_us(constants: StepConstants, runs: Array) -> Array:
    """Return what those runs take besides modules: each costs the host what a step costs it.

    No constant was fitted to steps with a draft; that a run costs as much was taken with the two
    published ones that are answered in view.
    """
    return np.asarray(runs * (constants.layer_us + constants.step_us))


def own_draft_us(
    deployment: Deployment, roles: Mapping[int, str], latency_us: Array, grid: Places
) -> Array:
    """Return what the modules of a draft of N - 1 tokens take beside a step of N positions, [grid].

    Parameters
    ----------
    roles, latency_us
        The modules by place, and what all their layers take, [places, grid].
    grid
        N, rising from 1.
    """
    counts = {use.role: use.count for use in deployment.uses()}
    decoder = deployment.decoder
    layers = {decoder.layers, decoder.moe_layers or decoder.layers}
    once = np.zeros(len(grid))
    for place, role in roles.items():
        if counts.get(role) in layers:
            once += latency_us[place] / counts[role]
        elif role in (HEAD, LOGITS):
            once += latency_us[place]
    return np.asarray(once + (own_runs(grid.astype(np.float64)) - 1.0) * once[0])


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
    return structs.replace(head, moe=deployment.moe, precision=plain, served=False)


def head_draft_us(deployment: Deployment, found: Total, place: int) -> Array:
    """Return what the modules of a head take for a draft of N - 1 tokens, [grid].

    Parameters
    ----------
    deployment
        The head, as `as_head` gives it.
    found, place
        T(N) of heads, and the place of this one.
    """
    latency, roles = found.latency_us[place], found.roles[place]
    first, each = latency.sum(axis=0), float(latency[:, 0].sum())
    states = deployment.decoder.states
    for at, role in roles.items():
        if role in (HEAD, LOGITS):
            first = first + latency[at, 0] - latency[at]
        elif role == STATES and states is not UNSET and states.once:
            each -= float(latency[at, 0])
    return np.asarray(first + (own_runs(found.grid.astype(np.float64)) - 1.0) * each)


def head_shares(
    found: Total,
    asked: Sequence[Deployment],
    drafter: Total,
    drafting: Sequence[Deployment],
    steps: Mapping[str, RecordedStep],
) -> dict[int, list[float]]:
    """Return what a round of 0, 1, ... drafts of a head takes, by batch size, as `own_shares`.

    Parameters
    ----------
    drafter, drafting
        T(N) of the head over the same grid, and its deployments at the same batch sizes, as
        `as_head` gives them.

    Raises
    ------
    EvidenceError
        T(N) of the head is not known.
    """
    at = {each.batch: place for place, each in enumerate(drafting)}
    shares = {}
    for place, each in enumerate(asked):
        head = drafting[at[each.batch]]
        reason = drafter.refusals[at[each.batch]]
        if reason is not None:
            raise _unknown(head, reason)
        drafted = head_draft_us(head, drafter, at[each.batch])
        drafted += _host_us(each, found, steps)
        shares[each.batch] = (drafted / found.model_us[place, 0]).tolist()
    return shares


def _host_us(
    deployment: Deployment, found: Total, steps: Mapping[str, RecordedStep]
) -> Array | float:
    """Return what the runs of a draft take of the host; it is not counted where it is not known."""
    step = steps.get(deployment.engine.name)
    if step is None or not deployment.served:
        return 0.0
    return draft_host_us(step.constants, own_runs(found.grid.astype(np.float64)))


def _unknown(drafting: Deployment, reason: str) -> EvidenceError:
    return EvidenceError(
        f"what {drafting.decoder.name} takes to draft is not known: {reason}",
        remedy="Name another draft model, or give --draft-cost",
    )


def own_shares(
    found: Total, asked: Sequence[Deployment], steps: Mapping[str, RecordedStep]
) -> dict[int, list[float]]:
    """Return what a round of 0, 1, ... drafts of the own layer takes, by batch size.

    Shares are of T(1) of the same batch size; the grid of T(N) is all N from 1.

    Parameters
    ----------
    steps
        The constants of engines' steps; the host of one without them is not counted.
    """
    shares = {}
    for place, each in enumerate(asked):
        roles = {at: found.roles[place][at] for at in found.modules(place)}
        drafted = own_draft_us(each, roles, found.latency_us[place], found.grid)
        drafted += _host_us(each, found, steps)
        shares[each.batch] = (drafted / found.model_us[place, 0]).tolist()
    return shares


def model_shares(
    found: Total, asked: Sequence[Deployment], drafter: Total, drafting: Sequence[Deployment]
) -> dict[int, list[float]]:
    """Return what a round of 0, 1, ... drafts of a model takes, by batch size, as `own_shares`.

    Parameters
    ----------
    drafter, drafting
        T(N) of the draft model, and its deployments at the same batch sizes.

    Raises
    ------
    EvidenceError
        T(1) of the draft model is not known.
    """
    first = {}
    for place, each in enumerate(drafting):
        reason = drafter.refusals[place]
        if reason is not None:
            raise _unknown(each, reason)
        first[each.batch] = float(drafter.model_us[place, 0])
    runs = np.maximum(found.grid - 1, 1)
    return {
        each.batch: (runs * first[each.batch] / found.model_us[place, 0]).tolist()
        for place, each in enumerate(asked)
    }
