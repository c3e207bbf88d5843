"""A proof as the log records it: with the takes that its choice was made from, and its answer."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.core.weights import AnyWeights
from nearfree.derive.tune.answer import Answer, KindAnswer, answer, kind_answer
from nearfree.derive.tune.choice import Choice, choose, choose_by_kind
from nearfree.derive.tune.curve import EngineCurve, engine_curve, of_batch
from nearfree.derive.tune.replayed import Cost, Trace, refuse_empty, traces_of
from nearfree.errors import EvidenceError
from nearfree.log.curves import curves
from nearfree.log.evidence import Take


class RecordedProof(Struct, frozen=True, kw_only=True):
    """A proof, the takes that it rests on, and its answer."""

    proof: Take
    plan: DecodePlan
    takes: tuple[Take, ...]
    """The takes that it was made from, then the proof itself."""
    traces: tuple[Trace, ...]
    cost: Cost
    choice: Choice
    kinds: Mapping[str, KindAnswer]
    """The choice of each kind of prompts by itself; empty if all prompts are of one kind."""
    answer: Answer


def is_proof(take: Take) -> bool:
    """Return whether a take is a proof of a choice."""
    plan = take.started.data.plan
    return isinstance(plan, DecodePlan) and bool(plan.made_from)


def read_proof(proof: Take, takes: Mapping[str, Take]) -> RecordedProof:
    """Return a proof with its answer, from sealed takes alone.

    Parameters
    ----------
    takes
        Takes by name, among them those that the proof names.

    Raises
    ------
    EvidenceError
        A take that the proof names is missing, or was retracted.
    """
    plan: DecodePlan = proof.started.data.plan
    missing = [name for name in plan.made_from if name not in takes]
    if missing:
        raise EvidenceError(
            f"{proof.name} was made from {missing[0]}, which is not here",
            remedy="Tune again: what is missing is measured anew",
        )
    from_takes = [takes[name] for name in plan.made_from]
    all_traces = traces_of(from_takes)
    cost = cost_of(from_takes, plan.weights, plan.draft, plan.batch)
    choice, kinds = choices(from_takes, plan.weights, plan.draft, plan.weighed, plan.batch)
    proven = {part.sha256 for part in plan.prompts}
    proof_traces = [trace for trace in all_traces if trace.prompt in proven]
    proof_answer = answer(choice, proof, proof_traces, cost)
    return RecordedProof(
        proof=proof,
        plan=plan,
        takes=(*from_takes, proof),
        traces=tuple(all_traces),
        cost=cost,
        choice=choice,
        kinds={
            kind: kind_answer(kind, kind_choice, all_traces, proof_traces, proof_answer.settings)
            for kind, kind_choice in kinds.items()
        },
        answer=proof_answer,
    )


def choices(
    takes: Sequence[Take],
    weights: AnyWeights,
    draft: AnyWeights | None,
    weighed: tuple[Drafting, ...],
    batch: int = 1,
) -> tuple[Choice, dict[str, Choice]]:
    """Return the choice among drafters, and the choice of each kind of prompts by itself.

    Both are made on the tuning prompts of the takes.

    Parameters
    ----------
    weighed
        The candidate drafters.
    """
    all_traces = traces_of(takes)
    tuned = [trace for trace in all_traces if not trace.held_out]
    for group in (tuned, [trace for trace in all_traces if trace.held_out]):
        refuse_empty(group)
    cost = cost_of(takes, weights, draft, batch)
    return choose(tuned, cost, weighed), choose_by_kind(tuned, cost, weighed)


def cost_of(
    takes: Iterable[Take], weights: AnyWeights, draft: AnyWeights | None, batch: int = 1
) -> Cost:
    """Return T(N) of a model and of its draft model, from takes of forwards.

    A draft model drafts for one text after the other, whatever the batch.
    """
    takes = tuple(takes)
    model_curves = curves_of(takes, weights, batch)
    return Cost(curves=model_curves, draft=curves_of(takes, draft) if draft else [], batch=batch)


def curves_of(takes: Iterable[Take], weights: AnyWeights, batch: int = 1) -> list[EngineCurve]:
    """Return T(N) of some weights at a batch, one curve per measured setting."""
    measured = (engine_curve(curve) for curve in curves(takes))
    model_curves = (curve for curve in measured if curve.setting.model_digest == weights.digest)
    return of_batch(model_curves, batch)
