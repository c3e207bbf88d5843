"""Plans of tuning: the forwards, the traces and the proof of one engine, model and prompts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from nearfree.core.candidates import DRAFTED_CACHES, LENGTHS, candidates
from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan, PromptPart
from nearfree.core.weights import AnyWeights
from nearfree.derive.tune.choice import FORM, Choice
from nearfree.derive.tune.replayed import Trace, drafts_anything, same_run
from nearfree.log.names import TakeName

GRID = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 32, 33, 49)
"""N of T(N): the rows of every candidate K, up to a draft of 48 tokens."""
DRAFT_GRID = (1, 2, 3)
"""N of a draft model's T(N): it decodes one token at a time, after the tokens new to it."""
ROUNDS = 10
"""Rounds of T(N): every one visits N up to OFTEN_TO, and llama.cpp's largest N is visited twice."""
EVERY_ROUND_TO = {"llama_cpp": 8, "openvino": GRID[-1]}
"""The largest N that every round visits: 49 rows take OpenVINO four times as long as one,
llama.cpp over twenty times."""
SUFFIX = "_tune"
"""Suffix of the names of proofs' streams."""
LIMIT = 48
"""Most tokens of an output."""
_LONGEST_DRAFT = GRID[-1] - 1
_CHARACTERS_PER_TOKEN = 4
"""Approximately."""
_CONTEXT_STEP = 32


class Subject(Struct, frozen=True, kw_only=True):
    """The engine, model, prompts and sampling that are tuned."""

    engine: str
    release: str
    model: str
    weights: AnyWeights
    draft: AnyWeights | None
    environment: str
    prompts: tuple[PromptPart, ...]
    positions: int
    temperature: float = 0.0
    batch: int = 1


def typical_context(lengths: Sequence[int]) -> int:
    """Return the context L at which T(N) is measured: the median prompt halfway through its output.

    `lengths` are the characters of each prompt; four of them count as one token.
    """
    middle = sorted(lengths)[len(lengths) // 2] / _CHARACTERS_PER_TOKEN + LIMIT / 2
    return max(_CONTEXT_STEP, round(middle / _CONTEXT_STEP) * _CONTEXT_STEP)


def trace_plan(subject: Subject, sources: Sequence[Drafting], undrafted: Drafting) -> DecodePlan:
    """Return the plan that decodes each prompt once and traces all drafters over its output.

    Each prompt is decoded alone, whatever the batch: its output does not depend on others. It is
    decoded without drafts, or, where an engine's outputs with drafts may part from those
    (`candidates.DRAFTED_CACHES`), with one draft. `sources` are the candidate drafters, as of
    `candidates.drafters`, and the engine's defaults; `undrafted` gives threads and storage.
    """
    traced = dict.fromkeys(trace for source in sources for trace in _traced_drafters(source))
    run = undrafted
    if subject.engine in DRAFTED_CACHES and sources:
        cache = DRAFTED_CACHES[subject.engine]
        run = structs.replace(sources[0].placed_as(undrafted), k=1, kv_dtype=cache)
    return _plan(subject, batch=1, runs=(run,), traced=tuple(traced))


def _traced_drafters(source: Drafting) -> list[Drafting]:
    """Return the drafters to trace so that every K of a source is known.

    One trace with the longest K serves all shorter ones, unless the drafter remembers: then each K
    has its own.
    """
    if not source.remembers:
        return [structs.replace(source.source, k=max(source.source.k, _LONGEST_DRAFT))]
    lengths = tuple(k for k in LENGTHS if k < GRID[-1])
    return [candidate.source for candidate in candidates((source,), lengths) if candidate.remembers]


def proof_plan(
    subject: Subject,
    choice: Choice,
    *,
    weighed: tuple[Drafting, ...],
    default: Drafting | None,
    made_from: Iterable[TakeName],
    repeats: int,
    defaults: tuple[Drafting, ...] = (),
    kinds: Mapping[str, Choice] | None = None,
    traces: Iterable[Trace] = (),
) -> DecodePlan:
    """Return the plan of the proof: no drafts, defaults, choices and neighbours, in turn.

    It runs on the held-out prompts only.

    Parameters
    ----------
    weighed
        The candidate drafters of the choice.
    default, defaults
        The engine's default, which runs, and the default of each type of its speculation. Of the
        latter only those run that draft anything on the prompts, and whose steps differ from those
        of every setting that runs already.
    made_from
        The takes that the choice was made from.
    kinds
        The choice of each kind of prompts, under the same condition on the kind's own prompts. Each
        runs on all prompts.
    traces
        Traces that decide that condition.
    """
    held_out = [trace for trace in traces if trace.held_out]
    settings = [choice.none.drafting, default, choice.chosen.drafting, *choice.neighbours]
    runs = list(dict.fromkeys(run for run in settings if run is not None))
    weighed_on = [(drafting, held_out) for drafting in defaults]
    for kind, kind_choice in (kinds or {}).items():
        of_kind = [trace for trace in held_out if trace.kind == kind]
        weighed_on.append((kind_choice.chosen.drafting, of_kind))
    for drafting, its_traces in weighed_on:
        if drafts_anything(its_traces, drafting) and same_run(its_traces, drafting, runs) is None:
            runs.append(drafting)
    return _plan(
        subject,
        prompts=tuple(part for part in subject.prompts if part.held_out),
        runs=tuple(runs),
        weighed=weighed,
        default=default,
        defaults=defaults,
        made_from=tuple(map(str, made_from)),
        form=FORM,
        repeats=repeats,
    )


def _plan(subject: Subject, **fields: Any) -> DecodePlan:
    """Return a plan of a subject, with fields that the subject lacks or that differ."""
    return DecodePlan(**structs.asdict(subject) | {"limit": LIMIT, "rows": GRID[-1]} | fields)
