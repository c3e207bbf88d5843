"""Schedules as data: entries, evidence, where memory ends them, and the engine's option."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import json

from nearfree.derive.schedule.draft_lengths import ranges
from nearfree.show.text.answer_json import deployment_json
from nearfree.show.text.memory import memory_lines, unfit
from nearfree.show.text.planned import Planned


def schedules_json(
    engine: str,
    goal: str,
    worth: float,
    every: Sequence[Planned],
    safe: Planned,
    *,
    epsilon: float,
    doubts: Sequence[str] = (),
) -> str:
    """Return the schedule of each context, and the safe one, as JSON.

    Parameters
    ----------
    worth
        The share that an entry has to be worth.
    safe
        What is pasted: that of the only context, or the one that is safe at all.
    epsilon
        The tolerance of near-free lengths.
    doubts
        What speaks against the drafter.
    """
    option, one = safe.option, safe.answers.deployments[0]
    served = deployment_json(one).items()
    return json.encode({
        "engine": engine,
        "deployment": {name: said for name, said in served if name not in ("batch", "context")},
        "goal": goal,
        "epsilon": epsilon,
        "worth": worth,
        "contexts": [each.context for each in every],
        "place": option.place,
        "notes": [*doubts, *option.notes, *one.caveats],
        "read_by": [str(parser) for parser in option.parsers],
        "safe": _schedule(safe),
        "schedules": [_schedule(each) for each in every],
    }).decode()  # fmt: skip


def _schedule(plan: Planned) -> dict[str, Any]:
    over = next((each for each in plan.asked if unfit(each.memory)), None)
    return {
        "context": plan.context,
        "entries": list(_entries(plan)),
        "memory_ends_at": over and over.batch,
        "memory": over and next(memory_lines(over.memory, over.platform)),
        "option": plan.option.text,
    }


def _entries(plan: Planned) -> Iterator[dict[str, Any]]:
    """Yield the entries: the least speedup (`expected`) and the largest T(K + 1) / T(1) (`cost`).

    Either is None where it is not known.
    """
    if not plan.choices:
        return
    model = plan.answers.total.model_us
    place = {query.batch: number for number, query in enumerate(plan.answers.deployments)}
    for part in ranges({batch: choice.k for batch, choice in plan.choices.items()}):
        batches = range(part.first, part.last + 1)
        cost = max(float(model[place[b], part.k] / model[place[b], 0]) for b in batches)
        least = min(plan.choices[b].speedup for b in batches)
        yield {
            "from": part.first,
            "to": part.last,
            "k": part.k,
            "expected": None if math.isnan(least) else least,
            "cost": None if math.isnan(cost) else cost,
        }
