"""Schedules as data: entries, evidence, where memory ends them, and the engine's option."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import json

from nearfree.show.text.answer_json import deployment_json
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
    notes: Sequence[str] = (),
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
    notes
        What is assumed, and what speaks against the drafter.
    """
    option = safe.option
    return json.encode({
        "engine": engine,
        "deployment": served(safe),
        "goal": goal,
        "epsilon": epsilon,
        "worth": worth,
        "contexts": [each.context for each in every],
        "place": option.place,
        "notes": [*notes, *option.notes, *safe.answers.deployments[0].caveats],
        "read_by": [str(parser) for parser in option.parsers],
        "safe": _schedule(safe, own=any(each is safe for each in every)),
        "schedules": [_schedule(each, own=True) for each in every],
    }).decode()  # fmt: skip


def served(plan: Planned) -> dict[str, Any]:
    """Return what a schedule is of: a deployment as that of `predict`, but for b and L."""
    said = deployment_json(plan.answers.deployments[0]).items()
    return {name: value for name, value in said if name not in ("batch", "context")}


def memory_end(plan: Planned) -> dict[str, Any]:
    """Return the first batch size that memory does not hold, and why; None where it holds all."""
    over = next((each for each in plan.asked if unfit(each.memory)), None)
    return {
        "memory_ends_at": over and over.batch,
        "memory": over and next(memory_lines(over.memory, over.platform)),
    }


def _schedule(plan: Planned, *, own: bool) -> dict[str, Any]:
    """Return a schedule; one that is not its context's `own` is limited at several of them."""
    return {
        "context": plan.context,
        "entries": list(_entries(plan, own=own)),
        **memory_end(plan),
        "notes": list(remarks(plan.answers, plan.choices)),
        "lost": plan.lost and dict(zip(("worst", "mean"), plan.lost, strict=True)),
        "option": plan.option.text,
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
