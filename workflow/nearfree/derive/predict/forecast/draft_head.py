"""What a head that reads the model's states takes to draft (EAGLE), by batch and draft length.

It runs first on all b (K + 1) rows of the step that is verified, then K - 1 times on b rows; the
LM head has a row a request each time. Source: vllm 0.33.0, vllm/v1/spec_decode/
llm_base_proposer.py (lines 549 and 614).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs

from nearfree.core.parallel import ALONE
from nearfree.decoders.attention_uses import QKV
from nearfree.decoders.collectives import LOGITS
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.draft_head import DraftHead
from nearfree.decoders.modules import HEAD
from nearfree.derive.engine_step.recorded import RecordedStep
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.attention_choice import untaken
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.draft import own_runs
from nearfree.derive.predict.forecast.total import Total, total
from nearfree.derive.work_model.family import Array
from nearfree.errors import EvidenceError


def head_shares(
    found: Total,
    asked: Sequence[Deployment],
    head: DraftHead,
    answerer: Answerer,
    steps: Mapping[str, RecordedStep],
) -> dict[int, list[float]]:
    """Return what a round of 0, 1, ... drafts of a head takes, by batch size.

    Shares are of T(1) of the same batch size; the grid of T(N) is all N from 1. Each run is taken
    to cost the host what a step costs it.

    Parameters
    ----------
    steps
        The constants of engines' steps; the host of one without them is not counted.

    Raises
    ------
    EvidenceError
        What a module of the head takes is not known.
    """
    drafting = [_of_head(each, head.decoder) for each in asked]
    _check(head, drafting[0])
    d_model = head.decoder.d_model
    heads = head.decoder.heads + 2 * head.decoder.kv_heads
    made = -(-heads * head.decoder.head_dim // asked[0].parallel.tp)
    fc = [_product(each, head.fc_inputs, d_model) for each in drafting]
    wide = [_product(each, 2 * d_model, made) for each in drafting if head.wide]
    drafted = total(Questions([*drafting, *fc, *wide], found.grid.tolist()), answerer)
    reason = next(filter(None, drafted.refusals), None)
    if reason is not None:
        raise _unknown(head, reason)
    runs, shares = own_runs(found.grid.astype(np.float64)), {}
    for place, each in enumerate(asked):
        times = dict.fromkeys((QKV, HEAD, LOGITS), 0.0 * runs) | _modules(drafted, place)
        body = np.asarray(sum(us for role, us in times.items() if role not in (HEAD, LOGITS)))
        if head.wide:
            product = _modules(drafted, place + 2 * len(asked))[HEAD]
            body = body + product - times[QKV] / head.decoder.layers
        logits = times[HEAD][0] + times[LOGITS][0]
        states = _modules(drafted, place + len(asked))[HEAD]
        again = body[0] + logits + (states[0] if head.every_run else 0.0)
        took = body + states + logits + (runs - 1.0) * again
        step = steps.get(each.engine.name)
        if step is not None and each.served:
            said = step.constants
            took = took + runs * (head.decoder.layers * said.layer_us + said.step_us)
        shares[each.batch] = (took / found.model_us[place, 0]).tolist()
    return shares


def _modules(drafted: Total, place: int) -> dict[str, Array]:
    """Return what each module of a deployment takes, [grid], by role."""
    roles = drafted.roles[place]
    return {roles[at]: drafted.latency_us[place, at] for at in drafted.modules(place)}


def _of_head(each: Deployment, decoder: Decoder) -> Deployment:
    """Return the head on the same GPUs at the same batch, in its own numbers."""
    return structs.replace(
        each, decoder=decoder, moe=None, dense=None, routing=None, loads=None, precision=None,
        library=None, memory=None, served=False, graphs=None,
    )  # fmt: skip


def _product(each: Deployment, inputs: int, outputs: int) -> Deployment:
    """Return a model of which the LM head is one product, whole on each GPU."""
    decoder = structs.replace(each.decoder, d_model=inputs, vocabulary=outputs)
    return structs.replace(each, decoder=decoder, parallel=ALONE)


def _check(head: DraftHead, first: Deployment) -> None:
    refused = next(untaken(head.decoder, first.attention), None)
    if refused is not None:
        raise _unknown(head, refused.reason)


def _unknown(head: DraftHead, reason: str) -> EvidenceError:
    return EvidenceError(
        f"what the head {head.decoder.name} takes to draft is not known: {reason}",
        remedy="Name another drafter, or give what a draft was measured to cost as --draft-cost",
    )
