"""The forecast of a GGUF file's forward on a CPU or a GPU, as text and as JSON."""

from collections.abc import Iterator
from itertools import groupby
from math import inf
from typing import Any

from nearfree.derive.granularity.engine import Change
from nearfree.derive.predict.engine_answers import MOST_ROWS, EngineForecast
from nearfree.show.text.answer_json import finite
from nearfree.show.text.forecast import NO_LIMIT, columns
from nearfree.units import US_PER_MS

_ASSUMED = "assumed: the library is compiled for it, with ggml's own options; attention is not read"
_EXPERTS = (
    "of experts, passes are over one expert's weights, at most: mmvq reads them for each token"
)
SCHEMA = "nearfree.predict.engine.v1"
"""The form of the JSON: a later form has another number."""


def engine_lines(query: dict[str, Any], forecast: EngineForecast, epsilon: float) -> Iterator[str]:
    """Yield the lines of one forward: N_max, the steps that its source rules make, and T(N).

    Parameters
    ----------
    query
        The model, the platform, and the CPU flags with their origin.
    """
    forward = forecast.rules.forward
    stored = "repacked where the release does" if forward.repack else "not repacked"
    threads = f"{forward.threads} thread{'s' if forward.threads > 1 else ''}"
    yield f"{query['model']} on {query['platform']}, {forward.engine} {forward.release}"
    yield f"  b = {forward.batch}, L = {forward.context}, {threads}, weights {stored}"
    if forecast.rules.experts is not None:
        yield (
            f"  a token takes {forward.shape.taken_experts} of {forecast.rules.experts} experts, "
            "each as likely as another"
        )
    yield f"  CPU flags {' '.join(query['cpu_flags'])} ({query['flags_from']})"
    yield ""
    yield f"N_max at a tolerance of {epsilon:g}"
    resolved = forecast.resolved
    rows = [("principle_resolved", _amount(resolved["n_max"]), "", _reason(resolved))]
    if forecast.timed is not None:
        answer = forecast.timed.answer(epsilon)
        interval = f"{_at_end(forecast, answer['low'])} to {_at_end(forecast, answer['high'])}"
        seen = ", in sample" if answer["in_sample"] else ""
        rows.append(
            ("work_model", _at_end(forecast, answer["n_max"]), interval, _reason(answer) + seen)
        )
    yield from columns(rows)
    if forecast.refusal is not None:
        yield f"  work_model refused: {forecast.refusal}"
    yield ""
    yield f"steps up to {MOST_ROWS} rows (b N), by type of weights"
    yield from _steps(forecast)
    if forecast.timed is not None:
        yield ""
        yield f"T(N) by the work model: {forecast.timed.answer(epsilon)['constants']}"
        times = forecast.latency_us()
        head = ("N", "ms", "T(N)/T(1)", "ms per position")
        yield from columns(
            [head, *((str(n), f"{us / US_PER_MS:.2f}", f"{us / times[1]:.2f}",
                      f"{us / US_PER_MS / n:.2f}") for n, us in times.items())]
        )  # fmt: skip


def gpu_engine_lines(query: dict[str, Any], forecast: EngineForecast) -> Iterator[str]:
    """Yield the lines of one forward on a GPU; `query` has the model and the platform."""
    forward, resolved = forecast.rules.forward, forecast.resolved
    yield f"{query['model']} on {query['platform']}, {forward.engine} {forward.release}"
    yield f"  b = {forward.batch}, all layers on the GPU; {_ASSUMED}"
    yield ""
    yield "N_max, up to which no product changes its kernel or its passes over the weights"
    yield from columns([("principle_resolved", _amount(resolved["n_max"]), "", _reason(resolved))])
    yield f"  work_model refused: {forecast.refusal}"
    yield ""
    yield f"steps up to {MOST_ROWS} rows (b N), by type of weights"
    yield from _steps(forecast)
    for note in _gpu_notes(forecast)[1:]:
        yield f"  {note}"


def _gpu_notes(forecast: EngineForecast) -> list[str]:
    """Return what an answer about a GPU rests on."""
    return [_ASSUMED, *([] if forecast.rules.experts is None else [_EXPERTS])]


def gpu_engine_json(query: dict[str, Any], forecast: EngineForecast) -> dict[str, Any]:
    """Return the same as data; an unbounded N_max is null."""
    forward = forecast.rules.forward
    answers = [
        {"predictor": "principle_resolved"} | forecast.resolved,
        {"predictor": "work_model", "n_max": None, "refusal": forecast.refusal},
    ]
    return {
        "schema": SCHEMA,
        **query,
        "engine": forward.engine,
        "release": forward.release,
        "batch": forward.batch,
        "predictors": [finite(answer) for answer in answers],
        "steps": forecast.changes,
        "notes": _gpu_notes(forecast),
    }


def engine_json(query: dict[str, Any], forecast: EngineForecast, epsilon: float) -> dict[str, Any]:
    """Return the same as data; an unbounded N_max is null."""
    forward = forecast.rules.forward
    answers = [{"predictor": "principle_resolved"} | forecast.resolved]
    if forecast.timed is not None:
        answer = forecast.timed.answer(epsilon)
        censored = answer["n_max"] == forecast.timed.grid[-1]
        answers.append({"predictor": "work_model"} | answer | {"censored": censored})
    else:
        answers.append({"predictor": "work_model", "n_max": None, "refusal": forecast.refusal})
    times = forecast.latency_us()
    return {
        "schema": SCHEMA,
        **query,
        "engine": forward.engine,
        "release": forward.release,
        "batch": forward.batch,
        "context": forward.context,
        "threads": forward.threads,
        "repack": forward.repack,
        "experts": forecast.rules.experts,
        "taken_experts": forecast.rules.experts and forward.shape.taken_experts,
        "epsilon": epsilon,
        "predictors": [finite(answer) for answer in answers],
        "steps": forecast.changes,
        "constants": None if forecast.timed is None else forecast.timed.calibration.constants,
        "latency": [{"n": n, "t_us": us, "ratio": us / times[1]} for n, us in times.items()],
    }


def _steps(forecast: EngineForecast) -> Iterator[str]:
    changes_by_type: dict[str, list[Change]] = {}
    for change in forecast.changes:
        changes_by_type.setdefault(change.name, []).append(change)
    for type_changes in sorted(changes_by_type.values(), key=lambda group: -group[0].weight):
        first = type_changes[0]
        owner = f"{first.type} of experts" if first.routed else first.type
        yield f"  {owner}, {first.weight:.0%} of the elements that a token reads"
        rows = []
        for _, run in groupby(type_changes, key=lambda change: (change.place, change.path)):
            changes = list(run)
            first, last = changes[0], changes[-1]
            passes = f"{first.before:.3g} to {last.after:.3g} passes"
            rows.append((_places(changes), f"{first.path} by {first.rule}", passes, first.place))
        yield from columns(rows, indent=4)
    if not forecast.changes:
        yield "  none"


def _places(changes: list[Change]) -> str:
    """Return the numbers of rows at which changes lie, as a range where their N are consecutive."""
    ns, rows = [change.n for change in changes], [str(change.rows) for change in changes]
    consecutive = len(changes) > 2 and ns == list(range(ns[0], ns[-1] + 1))
    return f"each from {rows[0]} to {rows[-1]}" if consecutive else ", ".join(rows)


def _reason(answer: dict[str, Any]) -> str:
    if answer["limiting_term"] is None:
        return NO_LIMIT
    place = f"  ({answer['evidence']})" if answer["evidence"] else ""
    return f"{answer['limiting_module'] or 'nothing'}: {answer['limiting_term']}{place}"


def _at_end(forecast: EngineForecast, n_max: float) -> str:
    last = forecast.timed is not None and n_max == forecast.timed.grid[-1]
    return f">= {_amount(n_max)}" if last else _amount(n_max)


def _amount(number: float) -> str:
    return "unbounded" if number == inf else f"{number:g}"
