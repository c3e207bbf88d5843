"""Tokens a second of any setting, from T(N) and traces: nothing of it is run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from nearfree.core.drafting import Available, Drafting, Steps, replay
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.errors import EvidenceError
from nearfree.log.events import DecodeMeasured, DraftsTraced, Event
from nearfree.log.evidence import Take

US_PER_S = 1e6


class Trace(Struct, frozen=True, kw_only=True):
    """One prompt decoded without drafts, and what drafters offer over its output."""

    prompt: str
    """The SHA-256 of its text."""
    kind: str
    held_out: bool
    tokens: int
    """Of the output."""
    limit: int
    output: str
    """The SHA-256 of the ids of the output."""
    available: Mapping[Drafting, Available]
    """By drafter, as `Drafting.source` names it."""
    ids: tuple[str, ...]

    def steps(self, drafting: Drafting) -> Steps:
        """Return the steps that a setting takes over this output.

        Raises
        ------
        EvidenceError
            Its drafter was not traced.
        """
        available = self.available.get(drafting.source)
        if available is None and drafting.drafter != "none":
            raise EvidenceError(
                f"no trace tells what {drafting.label} offers", remedy="Trace that drafter"
            )
        return replay(available, drafting, self.tokens, self.limit)


def traces(takes: Iterable[Take]) -> list[Trace]:
    """Return what takes say of each prompt, in the order of the log."""
    return [trace for take in takes for trace in _of_take(take)]


def _of_take(take: Take) -> Iterator[Trace]:
    offered: dict[str, list[Event]] = {}
    for event in take.of(DraftsTraced):
        offered.setdefault(event.data.prompt_sha256, []).append(event)
    for event in take.of(DecodeMeasured):
        data: DecodeMeasured = event.data
        drafts = offered.get(data.prompt_sha256, [])
        if data.repeat or data.drafting.drafter != "none":
            continue
        yield Trace(
            prompt=data.prompt_sha256,
            kind=data.kind,
            held_out=data.held_out,
            tokens=data.output_tokens,
            limit=data.limit,
            output=data.output_sha256,
            available={each.data.drafting.source: each.data.available for each in drafts},
            ids=(event.event_id, *(each.event_id for each in drafts)),
        )


def same_run(
    known: Sequence[Trace], drafting: Drafting, runs: Iterable[Drafting]
) -> Drafting | None:
    """Return the first of some settings that takes the same steps over some outputs, as it runs.

    None of them does where all differ in steps, threads or storage.
    """
    mine = [trace.steps(drafting) for trace in known]
    for each in runs:
        alike = (each.threads, each.repack) == (drafting.threads, drafting.repack)
        if alike and [trace.steps(each) for trace in known] == mine:
            return each
    return None


def drafts_anything(known: Iterable[Trace], drafting: Drafting) -> bool:
    """Return whether a setting verifies any draft over some outputs."""
    return any(max(trace.steps(drafting).rows, default=1) > 1 for trace in known)


def refuse_empty(known: Iterable[Trace]) -> None:
    """Raise EvidenceError where every output ended with its first token: nothing was decoded."""
    if all(trace.tokens < 2 for trace in known):
        raise EvidenceError(
            "the model ended every answer with its first token",
            remedy="Give other prompts: some of those that are held out, and of the others, "
            "have to be answered",
        )


class Cost(Struct, frozen=True, kw_only=True):
    """What forwards take: of the model at each threads and repack, and of its draft model."""

    curves: Sequence[EngineCurve]
    draft: Sequence[EngineCurve] = ()

    def seconds(self, steps: Steps, drafting: Drafting) -> float:
        """Return the sum of T(1 + d) over steps, with the draft model's own forwards."""
        curve = curve_of(self.curves, threads=drafting.threads, repack=drafting.repack)
        us = sum(map(curve.at, steps.rows))
        if drafting.drafter == "draft_model":
            draft = curve_of(self.draft, threads=drafting.threads, repack=True)
            us += sum(map(draft.at, draft_forwards(steps)))
        return us / US_PER_S


def draft_forwards(steps: Steps) -> Iterator[int]:
    """Yield the rows of a draft model's forwards: what it has not seen yet, then one by one.

    Of d drafts that are all accepted it has not seen the last; of fewer, none that counts.
    """
    unseen = 1
    for rows, accepted in zip(steps.rows, steps.accepted, strict=True):
        drafted = rows - 1
        if drafted:
            yield unseen
            yield from [1] * (drafted - 1)
            unseen = 1 + (accepted == drafted)
        else:
            unseen += 1


def tokens_a_second(known: Iterable[Trace], drafting: Drafting, cost: Cost) -> float:
    """Return the tokens after each prompt's first one over the seconds of all steps."""
    tokens, seconds = 0, 0.0
    for trace in known:
        tokens += trace.tokens - 1
        seconds += cost.seconds(trace.steps(drafting), drafting)
    return tokens / seconds if seconds else 0.0
