"""Predicted tokens per second of any setting, from T(N) and replayed traces: nothing is run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from msgspec import Struct, structs

from nearfree.core.batching import batched_steps, split_forwards
from nearfree.core.drafting import Available, Drafting, Steps, replay
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.errors import EvidenceError
from nearfree.log.events import DecodeMeasured, DraftsTraced, Event
from nearfree.log.evidence import Take
from nearfree.units import US_PER_S

_COPY_NGRAM = 3
"""n-gram length of the lookup that measures how much of an output is copied."""


class Trace(Struct, frozen=True, kw_only=True):
    """One prompt decoded once, and the drafts that drafters offer over its output."""

    prompt: str
    """The SHA-256 of its text."""
    kind: str
    held_out: bool
    tokens: int
    """Tokens of the output."""
    limit: int
    output: str
    """The SHA-256 of the output's token ids."""
    available: Mapping[Drafting, Available]
    """Drafts by drafter, as `Drafting.source` names it."""
    ids: tuple[str, ...]

    def steps(self, drafting: Drafting) -> Steps:
        """Return the steps in which a setting decodes this output.

        Raises EvidenceError if the setting's drafter was not traced.
        """
        available = self.available.get(drafting.source)
        if available is None and drafting.drafter != "none":
            raise EvidenceError(
                f"no trace tells what {drafting.label} offers", remedy="Trace that drafter"
            )
        return replay(available, drafting, self.tokens, self.limit)


def traces_of(takes: Iterable[Take]) -> list[Trace]:
    """Return the traces of some takes' prompts, in the order of the log."""
    return [trace for take in takes for trace in _take_traces(take)]


def _take_traces(take: Take) -> Iterator[Trace]:
    drafts_by_prompt: dict[str, list[Event]] = {}
    for event in take.events_of(DraftsTraced):
        drafts_by_prompt.setdefault(event.data.prompt_sha256, []).append(event)
    for event in take.events_of(DecodeMeasured):
        data: DecodeMeasured = event.data
        drafts = drafts_by_prompt.get(data.prompt_sha256, [])
        if data.repeat or data.drafting != take.started.data.plan.runs[0]:
            continue
        if any(draft.data.output_sha256 != data.output_sha256 for draft in drafts):
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
            available={draft.data.drafting.source: draft.data.available for draft in drafts},
            ids=(event.event_id, *(draft.event_id for draft in drafts)),
        )


def same_run(
    traces: Sequence[Trace], drafting: Drafting, runs: Iterable[Drafting]
) -> Drafting | None:
    """Return the first of some runs that decodes the outputs in the same steps as a setting.

    Return None where every run differs in steps, threads, storage or cache.
    """
    steps = [trace.steps(drafting) for trace in traces]
    for run in runs:
        if run.place == drafting.place and [trace.steps(run) for trace in traces] == steps:
            return run
    return None


def drafts_anything(traces: Iterable[Trace], drafting: Drafting) -> bool:
    """Return whether a setting verifies any draft over the traced outputs."""
    return any(max(trace.steps(drafting).rows, default=1) > 1 for trace in traces)


def copied_share(traces: Iterable[Trace]) -> float | None:
    """Return the share of output tokens that a lookup of 3-grams predicts: 1 for a full copy.

    A token after the output's first counts as copied if it followed the three tokens before it at
    an earlier place of the prompt or of the output. None where no such lookup was traced, or
    nothing was decoded.
    """
    decoded = copied = 0
    for trace in traces:
        lookups = [
            available
            for drafting, available in trace.available.items()
            if drafting.ngram_max == _COPY_NGRAM and not drafting.remembers
        ]
        if not lookups:
            return None
        decoded += trace.tokens - 1
        copied += sum(agreed > 0 for agreed in lookups[0].agreed)
    return copied / decoded if decoded else None


def refuse_empty(traces: Iterable[Trace]) -> None:
    """Raise EvidenceError if every output ended with its first token: nothing was decoded."""
    if all(trace.tokens < 2 for trace in traces):
        raise EvidenceError(
            "the model ended every answer with its first token",
            remedy="Give other prompts: the model has to answer some of the held-out prompts and "
            "some of the others with more than one token",
        )


class Cost(Struct, frozen=True, kw_only=True):
    """T(N) of the model, by threads and storage, and of its draft model."""

    curves: Sequence[EngineCurve]
    draft: Sequence[EngineCurve] = ()
    batch: int = 1
    """Texts that are decoded at once; the curves have that batch."""

    def seconds(self, lists: Sequence[Steps], drafting: Drafting) -> list[float]:
        """Return the seconds of each text, given the steps of each, in the order of the texts.

        A single text takes the sum of T(1 + d) over its steps, and where the number of rows is
        not that of the forward before, which for the first step is the prompt's, the time that
        the engine then takes longer. With a batch, a step takes the sum
        of T over the forwards into which llama.cpp splits it, and each text in it is charged its
        share of the step's rows. A draft model's own forwards are added, text by text.
        """
        curve = curve_of(self.curves, drafting)
        t_us = cache(curve.at)
        if self.batch == 1:
            parts = [
                [*map(t_us, steps.rows), curve.change_us * _changes(steps.rows)] for steps in lists
            ]
        else:
            parts = _step_shares(lists, self.batch, t_us)
        return [
            (sum(part) + self._draft_us(steps, drafting)) / US_PER_S
            for part, steps in zip(parts, lists, strict=True)
        ]

    def _draft_us(self, steps: Steps, drafting: Drafting) -> float:
        if drafting.drafter != "draft_model":
            return 0.0
        draft = curve_of(self.draft, structs.replace(drafting, repack=True))
        rows = tuple(draft_forwards(steps))
        return sum(map(draft.at, rows)) + draft.change_us * _changes(rows)


def _changes(rows: Sequence[int]) -> int:
    """Return how many forwards have other rows than the one before; before the first is a prompt.

    So the first one counts.
    """
    return len(rows[:1]) + sum(before != after for before, after in pairwise(rows))


def _step_shares(
    lists: Sequence[Steps], batch: int, t_us: Callable[[int], float]
) -> list[list[float]]:
    """Return each text's share of the time of each step that it is in, in microseconds."""
    parts: list[list[float]] = [[] for _ in lists]
    for step in batched_steps(lists, batch):
        rows = [step[slot][1] if slot in step else 0 for slot in range(batch)]
        us = sum(map(t_us, split_forwards(rows)))
        for text, text_rows in step.values():
            parts[text].append(us * text_rows / sum(rows))
    return parts


def draft_forwards(steps: Steps) -> Iterator[int]:
    """Yield the rows of a draft model's forwards: first the tokens new to it, then one at a time.

    If all d drafts of a step were accepted, the last of them is new to the draft model, besides the
    token that the step added; if fewer were, only the latter is.
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


def tokens_per_second(
    traces: Sequence[Trace], drafting: Drafting, cost: Cost, kind: str | None = None
) -> float:
    """Return tokens per second: output tokens after each first one over the seconds of all steps.

    `traces` are everything that is decoded: with a batch, each text takes its share of its steps.
    `kind` is the kind of prompts that count; None for all.
    """
    tokens, seconds = 0, 0.0
    by_trace = cost.seconds([trace.steps(drafting) for trace in traces], drafting)
    for trace, trace_seconds in zip(traces, by_trace, strict=True):
        if kind in (None, trace.kind):
            tokens += trace.tokens - 1
            seconds += trace_seconds
    return tokens / seconds if seconds else 0.0
