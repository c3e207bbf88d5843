"""Tokens a second of any setting, from T(N) and traces: nothing of it is run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from nearfree.core.batching import forwards, together
from nearfree.core.drafting import Available, Drafting, Steps, replay
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.errors import EvidenceError
from nearfree.log.events import DecodeMeasured, DraftsTraced, Event
from nearfree.log.evidence import Take
from nearfree.units import US_PER_S

_FORETELLS = 3
"""Tokens of the lookup that says how much of an output is copied."""


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
        if any(each.data.output_sha256 != data.output_sha256 for each in drafts):
            raise EvidenceError(
                f"{take.name} holds what drafters offer over another output than the one that was "
                "decoded: an older release traced one that it had kept",
                remedy="Tune into another results root: --results",
            )
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


def copied_share(known: Iterable[Trace]) -> float | None:
    """Return the share of tokens that a lookup of three tokens foretells: 1 of a whole copy.

    Of each output's tokens after the first, those count that followed the three before them at an
    earlier place, of the prompt or of the output itself. None where no such lookup was traced, or
    nothing was decoded.
    """
    tokens = right = 0
    for trace in known:
        offered = [
            each
            for drafting, each in trace.available.items()
            if drafting.ngram_max == _FORETELLS and not drafting.remembers
        ]
        if not offered:
            return None
        tokens += trace.tokens - 1
        right += sum(agreed > 0 for agreed in offered[0].agreed)
    return right / tokens if tokens else None


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
    batch: int = 1
    """Texts that are decoded at once: the curves are of that batch."""

    def seconds(self, lists: Sequence[Steps], drafting: Drafting) -> list[float]:
        """Return the seconds of each of some texts, given their steps in the order of the texts.

        A text alone takes the sum of T(1 + d) over its steps. Of several at once, a step takes the
        sum of T over the forwards that llama.cpp makes of it, by the rows of each, and a text that
        is in it takes the share of its rows. A draft model's own forwards are added, text by text.
        """
        known = _Forwards(curve_of(self.curves, threads=drafting.threads, repack=drafting.repack))
        if self.batch == 1:
            parts = [[known[rows] for rows in steps.rows] for steps in lists]
        else:
            parts = _shared(lists, self.batch, known)
        return [
            (sum(part) + self._draft_us(steps, drafting)) / US_PER_S
            for part, steps in zip(parts, lists, strict=True)
        ]

    def _draft_us(self, steps: Steps, drafting: Drafting) -> float:
        if drafting.drafter != "draft_model":
            return 0.0
        draft = curve_of(self.draft, threads=drafting.threads, repack=True)
        return sum(map(draft.at, draft_forwards(steps)))


class _Forwards(dict[int, float]):
    """T by rows, each looked up in a curve once."""

    def __init__(self, curve: EngineCurve) -> None:
        super().__init__()
        self._curve = curve

    def __missing__(self, rows: int) -> float:
        """Look up what was not asked before."""
        us = self[rows] = self._curve.at(rows)
        return us


def _shared(lists: Sequence[Steps], batch: int, t_us: Mapping[int, float]) -> list[list[float]]:
    """Return each text's share of each step that it is in, in microseconds."""
    parts: list[list[float]] = [[] for _ in lists]
    for step in together(lists, batch):
        rows = [step[slot][1] if slot in step else 0 for slot in range(batch)]
        us = sum(t_us[each] for each in forwards(rows))
        for text, many in step.values():
            parts[text].append(us * many / sum(rows))
    return parts


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


def tokens_a_second(
    known: Sequence[Trace], drafting: Drafting, cost: Cost, kind: str | None = None
) -> float:
    """Return the tokens after each prompt's first one over the seconds of all steps.

    Parameters
    ----------
    known
        All that is decoded: of a batch each takes its share of the steps that it is in.
    kind
        Of the prompts that count, all of them without.
    """
    tokens, seconds = 0, 0.0
    spent = cost.seconds([trace.steps(drafting) for trace in known], drafting)
    for trace, its in zip(known, spent, strict=True):
        if kind in (None, trace.kind):
            tokens += trace.tokens - 1
            seconds += its
    return tokens / seconds if seconds else 0.0
