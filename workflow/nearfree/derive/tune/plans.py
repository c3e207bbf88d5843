"""Plans of tuning: the forwards, the traces and the proof of one engine, model and prompts."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, structs

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan, PromptPart
from nearfree.core.weights import AnyWeights
from nearfree.derive.tune.choice import Choice
from nearfree.log.names import TakeName

GRID = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 32, 33, 49)
"""N of T(N): the rows of every K that is weighed, up to a draft of 48 tokens."""
DRAFT_GRID = (1, 2, 3)
"""N of a draft model's T(N): it decodes one by one, after what it has not seen yet."""
ROUNDS = 21
"""Of T(N): N up to 8 are visited so often, the largest one three times."""
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
    """Return the plan of one decode of each prompt without drafts, and of what drafters offer."""
    traced = tuple(structs.replace(each, k=max(each.k, LONGEST)) for each in dict.fromkeys(sources))
    return DecodePlan(**_shared(asked), prompts=asked.prompts, runs=(base,), traced=traced)


def proof_plan(
    asked: Asked,
    choice: Choice,
    *,
    weighed: tuple[Drafting, ...],
    default: Drafting | None,
    made_from: Iterable[TakeName],
    repeats: int,
) -> DecodePlan:
    """Return the plan of the proof: none, the default, the choice and its neighbours, in turn.

    It runs on the prompts alone that are held out.
    """
    runs = [choice.none.drafting, default, choice.chosen.drafting, *choice.neighbours]
    return DecodePlan(
        **_shared(asked),
        prompts=tuple(part for part in asked.prompts if part.held_out),
        runs=tuple(dict.fromkeys(run for run in runs if run is not None)),
        weighed=weighed,
        default=default,
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
        "positions": asked.positions,
        "rows": GRID[-1],
    }
