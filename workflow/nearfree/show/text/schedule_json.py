"""Schedules as data: entries or choices, evidence, where memory ends them, and the option."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import json

from nearfree.show.text.answer_json import deployment_json
from nearfree.show.text.choices import choice_notes
from nearfree.show.text.memory import memory_lines, unfit
from nearfree.show.text.planned import Planned
from nearfree.show.text.schedule import entries, remarks


def schedules_json(
    engine: str,
    goal: str,
    worth: float,
    every: Sequence[Planned],
    safe: Planned,
    *,
    epsilon: float,
    notes: Sequence[str],
) -> str:
    """Return the schedule of each context, and the safe one, as JSON.

    Parameters
    ----------
    worth
        The share that an entry has to be worth.
    safe
        What is pasted: that of the only context, or the one that is safe at all.
    notes
        What is assumed, and what speaks against the drafter.
    """
    option = safe.option
    return json.encode(_asked(engine, goal, every) | {
        "epsilon": epsilon,
        "worth": worth,
        "place": option.place,
        "notes": [*notes, *option.notes, *_caveats(every)],
        "read_by": [str(parser) for parser in option.parsers],
        "safe": _schedule(safe, own=any(each is safe for each in every)),
        "schedules": [_schedule(each, own=True) for each in every],
    }).decode()  # fmt: skip


def choices_json(engine: str, goal: str, every: Sequence[Planned], notes: Sequence[str]) -> str:
    """Return the best K and its gain by context, acceptance and batch size as JSON.

    Parameters are those of `schedules_json`; there is no option without an acceptance.
    """
    choices = [
        {"context": each.context, "acceptance": rate, "batch": batch, "k": choice.k,
         "gain": choice.speedup - 1}
        for each in every
        for rate, best in each.best.items()
        for batch, choice in best.items()
    ]  # fmt: skip
    return json.encode(_asked(engine, goal, every) | {
        "notes": list(choice_notes(every, notes)),
        "option": None,
        "memory": [_ends(each) for each in every],
        "choices": choices,
    }).decode()  # fmt: skip


def _caveats(every: Sequence[Planned]) -> list[str]:
    """Return what the times at any of the contexts leave out."""
    said = (caveat for each in every for caveat in each.answers.deployments[0].caveats)
    return list(dict.fromkeys(said))


def _asked(engine: str, goal: str, every: Sequence[Planned]) -> dict[str, Any]:
    """Return what is asked: the deployment as that of `predict`, but for b and L."""
    served = deployment_json(every[0].answers.deployments[0]).items()
    return {
        "engine": engine,
        "deployment": {name: said for name, said in served if name not in ("batch", "context")},
        "goal": goal,
        "contexts": [each.context for each in every],
    }


def _schedule(plan: Planned, *, own: bool) -> dict[str, Any]:
    """Return a schedule; one that is not its context's `own` is limited at several of them."""
    return _ends(plan) | {
        "entries": list(_entries(plan, own=own)),
        "notes": list(remarks(plan.answers, plan.choices)),
        "lost": plan.lost and dict(zip(("worst", "mean"), plan.lost, strict=True)),
        "option": plan.option.text,
    }


def _ends(plan: Planned) -> dict[str, Any]:
    """Return the first batch size at a context that memory does not hold, and why."""
    over = next((each for each in plan.asked if unfit(each.memory)), None)
    return {
        "context": plan.context,
        "memory_ends_at": over and over.batch,
        "memory": over and next(memory_lines(over.memory, over.platform)),
    }


def _entries(plan: Planned, *, own: bool) -> Iterator[dict[str, Any]]:
    """Yield the entries: the least speedup (`expected`) and the largest T(K + 1) / T(1) (`cost`).

    Each, and what limits the boundary, is None where it is not known or not what K was chosen by.
    """
    for entry in entries(plan.answers, plan.choices):
        said = entry._asdict()
        yield {
            "from": said.pop("first"),
            "to": said.pop("last"),
            **said,
            "limited_by": entry.limited_by if own else None,
        }
