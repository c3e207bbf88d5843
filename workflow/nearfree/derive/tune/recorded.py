"""A proof as the log has it: with the takes that its choice was made from, and what it says."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.core.weights import AnyWeights
from nearfree.derive.tune.answer import Answer, OfKind, answer, of_kind
from nearfree.derive.tune.choice import Choice, choose, choose_by_kind
from nearfree.derive.tune.curve import EngineCurve, engine_curve, of_batch
from nearfree.derive.tune.replayed import Cost, Trace, refuse_empty, traces
from nearfree.errors import EvidenceError
from nearfree.log.curves import curves
from nearfree.log.evidence import Take


class Recorded(Struct, frozen=True, kw_only=True):
    """A proof, what it rests on, and its answer."""

    proof: Take
    plan: DecodePlan
    takes: tuple[Take, ...]
    """Those it was made from, and the proof at last."""
    traces: tuple[Trace, ...]
    cost: Cost
    choice: Choice
    kinds: Mapping[str, OfKind]
    """What each kind of prompts chooses apart; none of prompts of one kind."""
    answer: Answer


def is_proof(take: Take) -> bool:
    """Return whether a take proves a choice."""
    plan = take.started.data.plan
    return isinstance(plan, DecodePlan) and bool(plan.made_from)


def recorded(proof: Take, others: Mapping[str, Take]) -> Recorded:
    """Return what a proof says, from sealed takes alone.

    Parameters
    ----------
    others
        Takes by name, among them those that the proof names.

    Raises
    ------
    EvidenceError
        One of them is not here, or was retracted.
    """
    plan: DecodePlan = proof.started.data.plan
    missing = [name for name in plan.made_from if name not in others]
    if missing:
        raise EvidenceError(
            f"{proof.name} was made from {missing[0]}, which is not here",
            remedy="Tune again: what is missing is measured anew",
        )
    from_takes = [others[name] for name in plan.made_from]
    known = traces(from_takes)
    cost = cost_of(from_takes, plan.weights, plan.draft, plan.batch)
    choice, kinds = chosen(from_takes, plan.weights, plan.draft, plan.weighed, plan.batch)
    proven = {part.sha256 for part in plan.prompts}
    held = [each for each in known if each.prompt in proven]
    said = answer(choice, proof, held, cost)
    return Recorded(
        proof=proof,
        plan=plan,
        takes=(*from_takes, proof),
        traces=tuple(known),
        cost=cost,
        choice=choice,
        kinds={
            kind: of_kind(kind, best, known, held, said.settings) for kind, best in kinds.items()
        },
        answer=said,
    )


def chosen(
    takes: Sequence[Take],
    weights: AnyWeights,
    draft: AnyWeights | None,
    weighed: tuple[Drafting, ...],
    batch: int = 1,
) -> tuple[Choice, dict[str, Choice]]:
    """Return the choice among drafters, and that of each kind of prompts apart.

    Both go by the prompts of some takes that are tuned on.
    """
    known = traces(takes)
    tuned = [each for each in known if not each.held_out]
    for part in (tuned, [each for each in known if each.held_out]):
        refuse_empty(part)
    cost = cost_of(takes, weights, draft, batch)
    return choose(tuned, cost, weighed), choose_by_kind(tuned, cost, weighed)


def cost_of(
    takes: Iterable[Take], weights: AnyWeights, draft: AnyWeights | None, batch: int = 1
) -> Cost:
    """Return T(N) of a model, and of its draft model, out of takes of forwards.

    A draft model drafts for one text after the other, whatever the batch is.
    """
    takes = tuple(takes)
    own = curves_of(takes, weights, batch)
    return Cost(curves=own, draft=curves_of(takes, draft) if draft else [], batch=batch)


def curves_of(takes: Iterable[Take], weights: AnyWeights, batch: int = 1) -> list[EngineCurve]:
    """Return T(N) of some weights at a batch, a curve for each setting that was measured."""
    measured = (engine_curve(curve) for curve in curves(takes))
    own = (curve for curve in measured if curve.setting.model_digest == weights.digest)
    return of_batch(own, batch)
