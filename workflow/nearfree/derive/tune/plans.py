"""Plans of tuning: the forwards, the traces and the proof of one engine, model and prompts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from nearfree.core.candidates import LENGTHS, candidates
from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan, PromptPart
from nearfree.core.weights import AnyWeights
from nearfree.derive.tune.choice import Choice
from nearfree.derive.tune.replayed import Trace, drafts_anything, same_run
from nearfree.log.names import TakeName

GRID = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 32, 33, 49)
"""N of T(N): the rows of every K that is weighed, up to a draft of 48 tokens."""
DRAFT_GRID = (1, 2, 3)
"""N of a draft model's T(N): it decodes one by one, after what it has not seen yet."""
ROUNDS = 10
"""Of T(N): so often N is visited, in llama.cpp N up to 8 and the largest one twice."""
OFTEN_TO = {"llama_cpp": 8, "openvino": GRID[-1]}
"""Up to which N every round visits it: 49 rows take OpenVINO four times as long as one, llama.cpp
over twenty times."""
LIMIT = 48
"""Tokens of an output, at most."""
LONGEST = GRID[-1] - 1
_LETTERS = 4
"""Characters of a token, about."""
_STEP = 32


class Asked(Struct, frozen=True, kw_only=True):
    """What is tuned."""

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
    """Return the L at which T(N) is measured: where the middle prompt is half through its output.

    Parameters
    ----------
    lengths
        Characters of each prompt; four of them count as a token.
    """
    middle = sorted(lengths)[len(lengths) // 2] / _LETTERS + LIMIT / 2
    return max(_STEP, round(middle / _STEP) * _STEP)


def trace_plan(asked: Asked, sources: Iterable[Drafting], base: Drafting) -> DecodePlan:
    """Return the plan of one decode of each prompt without drafts, and of what drafters offer.

    Each is decoded alone, whatever the batch is: its output does not depend on others.

    Parameters
    ----------
    sources
        What is weighed, as of `candidates.drafters`, and defaults.
    """
    traced = dict.fromkeys(trace for each in sources for trace in _traces(each))
    return DecodePlan(**_shared(asked), prompts=asked.prompts, runs=(base,), traced=tuple(traced))


def _traces(source: Drafting) -> list[Drafting]:
    """Return the traces that answer for all K of a drafter, each with the longest K it tells of."""
    if not source.remembers:
        return [structs.replace(source.source, k=max(source.source.k, LONGEST))]
    lengths = tuple(k for k in LENGTHS if k < GRID[-1])
    return [each.source for each in candidates((source,), lengths) if each.remembers]


def proof_plan(
    asked: Asked,
    choice: Choice,
    *,
    weighed: tuple[Drafting, ...],
    default: Drafting | None,
    made_from: Iterable[TakeName],
    repeats: int,
    defaults: tuple[Drafting, ...] = (),
    kinds: Mapping[str, Choice] | None = None,
    known: Iterable[Trace] = (),
) -> DecodePlan:
    """Return the plan of the proof: none, defaults, choices and the neighbours, in turn.

    It runs on the prompts alone that are held out.

    Parameters
    ----------
    default, defaults
        What the engine drafts by default, and what each of its types does: of these, those run
        that draft anything on the prompts, and in other steps than what runs already.
    kinds
        The choice of each kind of prompts: of these, those run that draft anything on the kind's
        prompts, and there in other steps than what runs already. Each runs on all prompts.
    known
        The traces that say so.
    """
    held = [trace for trace in known if trace.held_out]
    wanted = [choice.none.drafting, default, choice.chosen.drafting, *choice.neighbours]
    runs = list(dict.fromkeys(run for run in wanted if run is not None))
    for each in defaults:
        if drafts_anything(held, each) and same_run(held, each, runs) is None:
            runs.append(each)
    for kind, best in (kinds or {}).items():
        its, drafting = [trace for trace in held if trace.kind == kind], best.chosen.drafting
        if drafts_anything(its, drafting) and same_run(its, drafting, runs) is None:
            runs.append(drafting)
    return DecodePlan(
        **_shared(asked),
        batch=asked.batch,
        prompts=tuple(part for part in asked.prompts if part.held_out),
        runs=tuple(runs),
        weighed=weighed,
        default=default,
        defaults=defaults,
        made_from=tuple(map(str, made_from)),
        repeats=repeats,
    )


def _shared(asked: Asked) -> dict[str, Any]:
    return {
        "engine": asked.engine,
        "release": asked.release,
        "model": asked.model,
        "weights": asked.weights,
        "draft": asked.draft,
        "environment": asked.environment,
        "limit": LIMIT,
        "temperature": asked.temperature,
        "positions": asked.positions,
        "rows": GRID[-1],
    }
