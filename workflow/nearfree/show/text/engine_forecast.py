"""What is said of a GGUF file's forward on a CPU, as text and as JSON."""

from collections.abc import Iterator
from itertools import groupby
from math import inf
from typing import Any

from nearfree.derive.granularity.engine import Change
from nearfree.derive.predict.engine_forecast import MOST_ROWS, EngineForecast
from nearfree.show.text.forecast import columns
from nearfree.units import US_PER_MS

SCHEMA = "nearfree.predict.engine.v1"
"""The form of the JSON: a later form has another number."""


def engine_lines(about: dict[str, Any], said: EngineForecast, epsilon: float) -> Iterator[str]:
    """Yield the lines about one forward: N_max, the steps of its rules, and T(N)."""
    forward = said.rules.forward
    stored = "repacked where the release does" if forward.repack else "not repacked"
    threads = f"{forward.threads} thread{'s' if forward.threads > 1 else ''}"
    yield f"{about['model']} on {about['platform']}, {forward.engine} {forward.release}"
    yield f"  b = {forward.batch}, L = {forward.context}, {threads}, weights {stored}"
    yield f"  CPU flags {' '.join(about['cpu_flags'])} ({about['flags_from']})"
    yield ""
    yield f"N_max at a tolerance of {epsilon:g}"
    rows = [("principle_resolved", _amount(said.resolved["n_max"]), "", _reason(said.resolved))]
    if said.timed is not None:
        answer = said.timed.answer(epsilon)
        interval = f"{_at_end(said, answer['low'])} to {_at_end(said, answer['high'])}"
        seen = ", in sample" if answer["in_sample"] else ""
        rows.append(
            ("work_model", _at_end(said, answer["n_max"]), interval, _reason(answer) + seen)
        )
    yield from columns(rows)
    if said.refusal is not None:
        yield f"  work_model refused: {said.refusal}"
    yield ""
    yield f"steps up to {MOST_ROWS} rows (b N), by type of weights"
    yield from _steps(said)
    if said.timed is not None:
        yield ""
        yield f"T(N) by the work model: {said.timed.answer(epsilon)['constants']}"
        times = said.latency_us()
        head = ("N", "ms", "T(N)/T(1)", "ms a position")
        yield from columns(
            [head, *((str(n), f"{us / US_PER_MS:.2f}", f"{us / times[1]:.2f}",
                      f"{us / US_PER_MS / n:.2f}") for n, us in times.items())]
        )  # fmt: skip


def engine_json(about: dict[str, Any], said: EngineForecast, epsilon: float) -> dict[str, Any]:
    """Return the same as data; an N_max that nothing limits is null."""
    forward = said.rules.forward
    answers = [{"predictor": "principle_resolved"} | said.resolved]
    if said.timed is not None:
        answer = said.timed.answer(epsilon)
        censored = answer["n_max"] == said.timed.grid[-1]
        answers.append({"predictor": "work_model"} | answer | {"censored": censored})
    else:
        answers.append({"predictor": "work_model", "n_max": None, "refusal": said.refusal})
    times = said.latency_us()
    return {
        "schema": SCHEMA,
        **about,
        "engine": forward.engine,
        "release": forward.release,
        "batch": forward.batch,
        "context": forward.context,
        "threads": forward.threads,
        "repack": forward.repack,
        "epsilon": epsilon,
        "predictors": [_finite(answer) for answer in answers],
        "steps": said.changes,
        "constants": None if said.timed is None else said.timed.calibration.constants,
        "latency": [{"n": n, "t_us": us, "ratio": us / times[1]} for n, us in times.items()],
    }


def _finite(answer: dict[str, Any]) -> dict[str, Any]:
    unbounded = answer["n_max"] == inf
    numbers = {name: None if value == inf else value for name, value in answer.items()}
    return numbers | {"unbounded": unbounded}


def _steps(said: EngineForecast) -> Iterator[str]:
    kinds = dict.fromkeys(change.type for change in said.changes)
    for kind in sorted(kinds, key=lambda name: -_weight(said.changes, name)):
        mine = [change for change in said.changes if change.type == kind]
        yield f"  {kind}, {mine[0].weight:.0%} of the weights' elements"
        rows = []
        for _, run in groupby(mine, key=lambda change: (change.place, change.path)):
            some = list(run)
            first, last = some[0], some[-1]
            passes = f"{first.before} to {last.after} passes"
            rows.append((_places(some), f"{first.path} by {first.rule}", passes, first.place))
        yield from columns(rows, indent=4)
    if not said.changes:
        yield "  none"


def _places(run: list[Change]) -> str:
    """Return the numbers of rows of some changes: a range where each N is one."""
    ns, rows = [change.n for change in run], [str(change.rows) for change in run]
    every = len(run) > 2 and ns == list(range(ns[0], ns[-1] + 1))
    return f"each from {rows[0]} to {rows[-1]}" if every else ", ".join(rows)


def _weight(changes: list[Change], kind: str) -> float:
    return next(change.weight for change in changes if change.type == kind)


def _reason(answer: dict[str, Any]) -> str:
    if answer["limiting_term"] is None:
        return "nothing up to there"
    place = f"  ({answer['evidence']})" if answer["evidence"] else ""
    return f"{answer['limiting_module'] or 'nothing'}: {answer['limiting_term']}{place}"


def _at_end(said: EngineForecast, n_max: float) -> str:
    last = said.timed is not None and n_max == said.timed.grid[-1]
    return f">= {_amount(n_max)}" if last else _amount(n_max)


def _amount(number: float) -> str:
    return "unbounded" if number == inf else f"{number:g}"
