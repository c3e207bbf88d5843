"""The answer of tuning, from sealed takes alone: settings, gains, verdict, and what to run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.derive.tune.choice import Choice
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.proof import (
    Proven,
    Seconds,
    Verdict,
    by_setting,
    gain,
    proven,
    seconds_of,
    shared,
    verdict,
)
from nearfree.derive.tune.replayed import (
    Cost,
    Trace,
    copied_share,
    drafts_anything,
    same_run,
    tokens_a_second,
)
from nearfree.errors import EvidenceError
from nearfree.log.events import DecodeMeasured, Event
from nearfree.log.evidence import Take


class Setting(Struct, frozen=True, kw_only=True):
    """One setting that ran: what was predicted of it, and what it did."""

    proven: Proven
    predicted_tokens_s: float
    gain: Interval
    """Over none; of all that drafted together at 95 %."""
    kinds: Mapping[str, Interval]
    """Over none, by kind of prompt, each at 95 % by itself; none of prompts of one kind."""


class OverDefault(Struct, frozen=True, kw_only=True):
    """What is run beside one type's default."""

    drafting: Drafting
    drafts: bool
    """Whether it verifies any draft on these prompts; else it did not run."""
    ran: Drafting | None
    """What ran in the same steps on the same threads: itself, or what ran in its place."""
    gain: Interval | None
    """None where that is what is run, or nothing."""


class OfKind(Struct, frozen=True, kw_only=True):
    """What one kind of prompts chooses, on those of it that are tuned on, and what that won."""

    choice: Choice
    gain: Interval | None
    """Over none, on those that are held out; None where it is none, or took no steps that ran."""
    run: Drafting
    """What to run on such prompts: the choice where it beat none by more than the noise."""
    copied_tuned: float | None
    copied_held_out: float | None
    """How much of the outputs is copied (`replayed.copied_share`)."""


class Answer(Struct, frozen=True, kw_only=True):
    """What tuning says."""

    curve: EngineCurve
    """T(N) of the choice."""
    settings: tuple[Setting, ...]
    choice: Choice
    run: Drafting
    """What to run: the choice where the verdict is to speculate by it, else what was proven."""
    over_none: Interval | None
    over_default: Interval | None
    over_defaults: tuple[OverDefault, ...]
    """Over what each type of the engine's own speculation drafts by default."""
    verdict: Verdict
    seconds: Seconds
    prompts: int
    repeats: int
    loop: str


def answer(choice: Choice, proof: Take, known: Sequence[Trace], cost: Cost) -> Answer:
    """Return what a proof says of a choice.

    Parameters
    ----------
    known
        The traces of the prompts that the proof ran.

    Raises
    ------
    EvidenceError
        The proof has no run without drafts, or none at all.
    """
    plan: DecodePlan = proof.started.data.plan
    events = proof.of(DecodeMeasured)
    runs = by_setting(events)
    none = choice.none.drafting
    if none not in runs:
        raise EvidenceError(f"{proof.name} has no run without drafts", remedy="Prove it again")
    seconds = seconds_of(events)
    by_prompt = {trace.prompt: trace for trace in known}
    drafted = [each for each in runs if each.drafter != "none"]
    settings = tuple(
        Setting(
            proven=proven(each, ran, by_prompt, seconds),
            predicted_tokens_s=tokens_a_second(known, each, cost),
            gain=gain(ran, runs[none], seconds, shared(len(drafted))),
            kinds=_by_kind(ran, runs[none], seconds),
        )
        for each, ran in runs.items()
    )
    gains = {each.proven.drafting: each.gain for each in settings if each.proven.drafting != none}
    said = verdict([gains[each] for each in drafted])
    run = _run(choice, gains) if said == "speculate" else none
    curve = curve_of(cost.curves, threads=run.threads, repack=run.repack)
    return Answer(
        curve=curve,
        settings=settings,
        choice=choice,
        run=run,
        over_none=gain(runs[run], runs[none], seconds) if run != none else None,
        over_default=_over(runs, run, plan.default, seconds),
        over_defaults=tuple(
            OverDefault(
                drafting=each,
                drafts=drafts_anything(known, each),
                ran=(ran := each if each in runs else same_run(known, each, runs)),
                gain=_over(runs, run, ran, seconds),
            )
            for each in plan.defaults
        ),
        verdict=said,
        seconds=seconds,
        prompts=len({event.data.prompt_sha256 for event in events}),
        repeats=len({event.data.repeat for event in events}),
        loop=next(event.data.loop for event in events),
    )


def of_kind(
    kind: str,
    choice: Choice,
    known: Sequence[Trace],
    proven_on: Sequence[Trace],
    settings: Sequence[Setting],
) -> OfKind:
    """Return what a proof says of the choice of one kind of prompts.

    Parameters
    ----------
    known
        The traces of all prompts.
    proven_on
        Those of the prompts that the proof ran.
    settings
        What ran.
    """
    its = [trace for trace in proven_on if trace.kind == kind]
    chosen = choice.chosen.drafting
    gains = {each.proven.drafting: each.kinds.get(kind) for each in settings}
    ran = chosen if chosen in gains else same_run(its, chosen, gains)
    drafted = ran is not None and chosen.drafter != "none" and drafts_anything(its, chosen)
    won = gains[ran] if ran is not None and drafted else None
    return OfKind(
        choice=choice,
        gain=won,
        run=chosen if won is not None and won.low > 1 else choice.none.drafting,
        copied_tuned=copied_share(t for t in known if t.kind == kind and not t.held_out),
        copied_held_out=copied_share(its),
    )


def _by_kind(ran: Sequence[Event], plain: Sequence[Event], seconds: Seconds) -> dict[str, Interval]:
    """Return the gains over none of each kind of prompts of which something was decoded."""
    tokens: dict[str, int] = defaultdict(int)
    for event in (*ran, *plain):
        tokens[event.data.kind] += event.data.output_tokens - 1
    kinds = sorted(kind for kind in tokens if tokens[kind])
    return {
        kind: gain(_of_kind(ran, kind), _of_kind(plain, kind), seconds)
        for kind in (kinds if len(tokens) > 1 else ())
    }


def _of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.data.kind == kind]


def _run(choice: Choice, gains: dict[Drafting, Interval]) -> Drafting:
    """Return the choice if it beats none by more than the noise, else the setting that surely does.

    Of several that do, it is the one whose interval begins highest.
    """
    chosen = choice.chosen.drafting
    if chosen in gains and gains[chosen].low > 1:
        return chosen
    return max(gains, key=lambda each: gains[each].low)


def _over(
    runs: dict[Drafting, list[Event]], run: Drafting, default: Drafting | None, seconds: Seconds
) -> Interval | None:
    if default is None or default not in runs or default == run:
        return None
    return gain(runs[run], runs[default], seconds)
