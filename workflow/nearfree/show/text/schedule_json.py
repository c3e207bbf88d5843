"""Schedules as JSON: entries or choices, evidence, the batch size at which memory ends them."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import json

from nearfree.show.text.answer_json import deployment_json
from nearfree.show.text.context_schedule import ContextSchedule, caveats
from nearfree.show.text.memory import first_unfit
from nearfree.show.text.schedule import choice_notes, entries, remarks


def schedules_json(
    engine: str,
    goal: str,
    worth: float,
    schedules: Sequence[ContextSchedule],
    safe: ContextSchedule,
    *,
    epsilon: float,
    notes: Sequence[str],
) -> str:
    """Return the schedule of each context, and the safe one, as JSON.

    Parameters
    ----------
    worth
        The least share of the goal for which a schedule gets another entry.
    safe
        The schedule whose option is pasted: that of the only context, or the one safe at all.
    notes
        Assumptions, and warnings about the drafter.
    """
    option = safe.option
    return json.encode(_query(engine, goal, schedules) | {
        "epsilon": epsilon,
        "worth": worth,
        "place": option.place,
        "notes": [*notes, *option.notes, *caveats(schedules)],
        "read_by": [str(parser) for parser in option.parsers],
        "safe": _schedule(safe, own=any(schedule is safe for schedule in schedules)),
        "schedules": [_schedule(schedule, own=True) for schedule in schedules],
    }).decode()  # fmt: skip


def choices_json(
    engine: str, goal: str, schedules: Sequence[ContextSchedule], notes: Sequence[str]
) -> str:
    """Return the best K and its gain by context, acceptance and batch size as JSON.

    Parameters are those of `schedules_json`; there is no option without an acceptance.
    """
    choices = [
        {"context": schedule.context, "acceptance": rate, "batch": batch, "k": choice.k,
         "gain": choice.speedup - 1}
        for schedule in schedules
        for rate, best in schedule.best.items()
        for batch, choice in best.items()
    ]  # fmt: skip
    return json.encode(_query(engine, goal, schedules) | {
        "notes": list(choice_notes(schedules, notes)),
        "option": None,
        "memory": [_ends(schedule) for schedule in schedules],
        "choices": choices,
    }).decode()  # fmt: skip


def _query(engine: str, goal: str, schedules: Sequence[ContextSchedule]) -> dict[str, Any]:
    """Return the query: engine, goal, contexts, and the deployment of `predict` less b and L."""
    deployment = deployment_json(schedules[0].forecast.deployments[0])
    return {
        "engine": engine,
        "deployment": {
            name: value for name, value in deployment.items() if name not in ("batch", "context")
        },
        "goal": goal,
        "contexts": [schedule.context for schedule in schedules],
    }


def _schedule(schedule: ContextSchedule, *, own: bool) -> dict[str, Any]:
    """Return a schedule as data.

    Parameters
    ----------
    own
        False for a schedule that is safe at several contexts and is that of none of them.
    """
    return _ends(schedule) | {
        "entries": list(_entries(schedule, own=own)),
        "notes": list(remarks(schedule.forecast, schedule.choices)),
        "lost": schedule.lost and dict(zip(("worst", "mean"), schedule.lost, strict=True)),
        "option": schedule.option.text,
    }


def _ends(schedule: ContextSchedule) -> dict[str, Any]:
    """Return the first batch size at a context that memory does not hold, and why."""
    batch, memory = first_unfit(schedule.deployments) or (None, None)
    return {"context": schedule.context, "memory_ends_at": batch, "memory": memory}


def _entries(schedule: ContextSchedule, *, own: bool) -> Iterator[dict[str, Any]]:
    """Yield the entries: the least speedup (`expected`) and the largest T(K + 1) / T(1) (`cost`).

    Either is None where it is not known. `limited_by` is None where K was chosen by speedup, or at
    several contexts at once.
    """
    for entry in entries(schedule.forecast, schedule.choices):
        fields = entry._asdict()
        yield {
            "from": fields.pop("first"),
            "to": fields.pop("last"),
            **fields,
            "limited_by": entry.limited_by if own else None,
        }
