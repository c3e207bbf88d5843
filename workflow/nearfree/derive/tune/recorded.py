"""A proof as the log records it: with the takes that its choice was made from, and its answer.

The answer has the settings that ran, their gains, the verdict, and the setting to run.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.core.weights import AnyWeights
from nearfree.derive.tune.choice import FORM, Choice, choose, choose_by_kind
from nearfree.derive.tune.curve import EngineCurve, engine_curve, of_batch
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.proof import (
    RunResult,
    Seconds,
    Verdict,
    by_setting,
    gain,
    joint_confidence,
    run_result,
    seconds_of,
    verdict,
)
from nearfree.derive.tune.replayed import (
    Cost,
    Trace,
    copied_share,
    drafts_anything,
    refuse_empty,
    same_run,
    tokens_per_second,
    traces_of,
)
from nearfree.errors import EvidenceError
from nearfree.log.curves import curves
from nearfree.log.events import DecodeMeasured, Event
from nearfree.log.evidence import Take


class Setting(Struct, frozen=True, kw_only=True):
    """One setting that ran: its predicted and its measured speed."""

    result: RunResult
    predicted_tokens_s: float
    gain: Interval
    """Over decoding without drafts; the intervals of all drafting settings hold jointly at 95 %."""
    kinds: Mapping[str, Interval]
    """Gain by kind of prompt, each at 95 % by itself; empty if all prompts are of one kind."""


class OverDefault(Struct, frozen=True, kw_only=True):
    """The recommended setting against the default of one type of the engine's own speculation."""

    drafting: Drafting
    drafts: bool
    """Whether the default verifies any draft on these prompts; else it did not run."""
    ran: Drafting | None
    """The setting that ran for it: itself, or one with the same steps, threads and storage."""
    gain: Interval | None
    """None where nothing ran for it, or where that is the recommended setting."""


class KindAnswer(Struct, frozen=True, kw_only=True):
    """The choice for one kind of prompts, from its tuning prompts, and its measured gain."""

    choice: Choice
    gain: Interval | None
    """On the kind's held-out prompts, over no drafts; None where the choice is no drafts, or where
    no setting with its steps ran."""
    run: Drafting
    """The setting to run on such prompts: the choice where it beat no drafts by more than the
    noise."""
    copied_tuned: float | None
    copied_held_out: float | None
    """Copied share of the outputs (`replayed.copied_share`)."""


class Answer(Struct, frozen=True, kw_only=True):
    """The answer of tuning."""

    curve: EngineCurve
    """T(N) of the threads and storage of `run`, and of the cache with which the engine drafts."""
    settings: tuple[Setting, ...]
    choice: Choice
    run: Drafting
    """The setting to run: the choice if its gain is proven, else the setting whose gain is."""
    over_none: Interval | None
    over_default: Interval | None
    over_defaults: tuple[OverDefault, ...]
    """Gain over the default of each type of the engine's own speculation."""
    verdict: Verdict
    seconds: Seconds
    prompts: int
    repeats: int
    loop: str


def answer(choice: Choice, proof: Take, traces: Sequence[Trace], cost: Cost) -> Answer:
    """Return the answer of a proof: gains of the settings that ran, verdict and recommendation.

    `traces` are those of the prompts that the proof ran. Raises EvidenceError if the proof has no
    run without drafts.
    """
    plan: DecodePlan = proof.started.data.plan
    events = proof.events_of(DecodeMeasured)
    runs = by_setting(events)
    none = choice.none.drafting
    if none not in runs:
        raise EvidenceError(f"{proof.name} has no run without drafts", remedy="Prove it again")
    seconds = seconds_of(events)
    by_prompt = {trace.prompt: trace for trace in traces}
    drafted = [drafting for drafting in runs if drafting.drafter != "none"]
    settings = tuple(
        Setting(
            result=run_result(drafting, decodes, by_prompt, seconds),
            predicted_tokens_s=tokens_per_second(traces, drafting, cost),
            gain=gain(decodes, runs[none], seconds, joint_confidence(len(drafted))),
            kinds=_gains_by_kind(decodes, runs[none], seconds),
        )
        for drafting, decodes in runs.items()
    )
    gains = {
        setting.result.drafting: setting.gain
        for setting in settings
        if setting.result.drafting != none
    }
    proof_verdict = verdict([gains[drafting] for drafting in drafted])
    run = _run(choice, gains) if proof_verdict == "speculate" else none
    curve = max(
        (curve for curve in cost.curves if curve.undrafted.beside(run)), key=lambda c: len(c.n)
    )
    return Answer(
        curve=curve,
        settings=settings,
        choice=choice,
        run=run,
        over_none=gain(runs[run], runs[none], seconds) if run != none else None,
        over_default=_gain_over_default(runs, run, plan.default, seconds),
        over_defaults=tuple(
            OverDefault(
                drafting=drafting,
                drafts=drafts_anything(traces, drafting),
                ran=(ran := drafting if drafting in runs else same_run(traces, drafting, runs)),
                gain=_gain_over_default(runs, run, ran, seconds),
            )
            for drafting in plan.defaults
        ),
        verdict=proof_verdict,
        seconds=seconds,
        prompts=len({event.data.prompt_sha256 for event in events}),
        repeats=len({event.data.repeat for event in events}),
        loop=next(event.data.loop for event in events),
    )


def kind_answer(
    kind: str,
    choice: Choice,
    traces: Sequence[Trace],
    proof_traces: Sequence[Trace],
    settings: Sequence[Setting],
) -> KindAnswer:
    """Return the choice for one kind of prompts with the gain that the proof measured.

    `traces` are those of all prompts, `proof_traces` those of the prompts that the proof ran, and
    `settings` the settings that ran.
    """
    kind_traces = [trace for trace in proof_traces if trace.kind == kind]
    chosen = choice.chosen.drafting
    gains = {setting.result.drafting: setting.kinds.get(kind) for setting in settings}
    equivalent = chosen if chosen in gains else same_run(kind_traces, chosen, gains)
    drafted = (
        equivalent is not None and chosen.drafter != "none" and drafts_anything(kind_traces, chosen)
    )
    kind_gain = gains[equivalent] if equivalent is not None and drafted else None
    return KindAnswer(
        choice=choice,
        gain=kind_gain,
        run=chosen if kind_gain is not None and kind_gain.low > 1 else choice.none.drafting,
        copied_tuned=copied_share(
            trace for trace in traces if trace.kind == kind and not trace.held_out
        ),
        copied_held_out=copied_share(kind_traces),
    )


def _gains_by_kind(
    drafted: Sequence[Event], plain: Sequence[Event], seconds: Seconds
) -> dict[str, Interval]:
    """Return the gain over no drafts by kind of prompt, for kinds with any decoded token."""
    tokens: dict[str, int] = defaultdict(int)
    for event in (*drafted, *plain):
        tokens[event.data.kind] += event.data.output_tokens - 1
    kinds = sorted(kind for kind in tokens if tokens[kind])
    return {
        kind: gain(_of_kind(drafted, kind), _of_kind(plain, kind), seconds)
        for kind in (kinds if len(tokens) > 1 else ())
    }


def _of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.data.kind == kind]


def _run(choice: Choice, gains: dict[Drafting, Interval]) -> Drafting:
    """Return the choice if its gain lies above the noise, else the setting of the surest gain.

    The surest gain is the one whose interval begins highest.
    """
    chosen = choice.chosen.drafting
    if chosen in gains and gains[chosen].low > 1:
        return chosen
    return max(gains, key=lambda drafting: gains[drafting].low)


def _gain_over_default(
    runs: dict[Drafting, list[Event]], run: Drafting, default: Drafting | None, seconds: Seconds
) -> Interval | None:
    if default is None or default not in runs or default == run:
        return None
    return gain(runs[run], runs[default], seconds)


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

    `takes` are takes by name, among them those that the proof names. Raises EvidenceError if a take
    that the proof names is missing, or was retracted.
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
    choice, kinds = choices(all_traces, cost, plan.weighed, plan.form)
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
    traces: Sequence[Trace], cost: Cost, weighed: tuple[Drafting, ...], form: int = FORM
) -> tuple[Choice, dict[str, Choice]]:
    """Return the choice among drafters, and the choice of each kind of prompts by itself.

    Both are made on the tuning prompts of the traces; `weighed` are the candidate drafters, `form`
    is the version of the choice.
    """
    tuned = [trace for trace in traces if not trace.held_out]
    for group in (tuned, [trace for trace in traces if trace.held_out]):
        refuse_empty(group)
    return choose(tuned, cost, weighed), choose_by_kind(tuned, cost, weighed, form)


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
