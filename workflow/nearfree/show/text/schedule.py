"""The text of `nearfree schedule`: N_max and T(N) by batch size, and the facts of an option."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nearfree.derive.laws.laws import LAWS
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast, headline
from nearfree.derive.schedule.draft_lengths import draft_lengths, ranges
from nearfree.derive.schedule.engines import ENGINES
from nearfree.derive.schedule.expected import Choice
from nearfree.derive.schedule.option import Option, Parser
from nearfree.errors import EvidenceError
from nearfree.show.text.forecast import columns, no_forward, title
from nearfree.show.text.memory import memory_lines, unfit

IDLE = (
    "where K = 0 the drafter still runs once a step, for its cache: vLLM was measured to take "
    "6.6 % more at 2 requests and 21.6 % more at 189 (vllm-project/vllm issue 49548)"
)
ASSUMED = "attention is assumed: name what the engine logs at start-up with --attention"


class Entry(NamedTuple):
    """K at a range of batch sizes, and why K.

    Parameters
    ----------
    first, last
        The ends of the range.
    k
        Draft tokens.
    cost
        T(K + 1) / T(1) at most in the range, None where T(N) is not known.
    expected
        The least speedup in the range, None where K was not chosen by it.
    limited_by
        What limits the boundary at the range's end, None where K was not chosen by it, or nothing
        does.
    """

    first: int
    last: int
    k: int
    cost: float | None
    expected: float | None
    limited_by: str | None


def boundary_by_batch(forecast: Forecast, *, cautious: bool) -> dict[int, float]:
    """Return N_max by batch size, of a forecast by one predictor whose deployments differ in it.

    Of a law the value with the batch in it counts.

    Parameters
    ----------
    cautious
        Whether the lower end of the interval counts, where there is one.

    Raises
    ------
    EvidenceError
        The predictor refuses a batch size.
    """
    rows = headline(forecast.answers).filter(baseline=1).sort("deployment")
    refused = rows.filter(pl.col("refusal").is_not_null())
    if not refused.is_empty():
        row = refused.row(0, named=True)
        _refuse(forecast, row["deployment"], f"{row['predictor']} refuses: {row['refusal']}")
    value = pl.coalesce("n_max_extended", "n_max")
    limits = rows.select(pl.coalesce("low", value) if cautious else value).to_series()
    return {query.batch: n for query, n in zip(forecast.deployments, limits, strict=True)}


def near_free_by_batch(
    forecast: Forecast, epsilon: float, *, most: int, cautious: bool
) -> dict[int, frozenset[int]]:
    """Return the near-free K by batch size, 0 among them, the longest of them N_max - 1.

    A shorter draft than that need not be one, where T(N) is known: behind an N that leaves the
    tolerance T(N) may fall again. Of a law all up to the longest are.

    Parameters
    ----------
    cautious
        As of `boundary_by_batch`.

    Raises
    ------
    EvidenceError
        The predictor refuses a batch size.
    """
    longest = draft_lengths(boundary_by_batch(forecast, cautious=cautious), most=most)
    total, by_law = forecast.total, forecast.answers["predictor"].is_in(LAWS).all()
    us = total.moved_us(1.0) if cautious else total.model_us
    ratio = us / total.model_us[:, :1]
    return {
        query.batch: frozenset(
            k
            for k in range(longest[query.batch] + 1)
            if k == 0 or by_law or ratio[place, k] <= 1.0 + epsilon
        )
        for place, query in enumerate(forecast.deployments)
    }


def ratio_by_batch(forecast: Forecast) -> dict[int, dict[int, float]]:
    """Return T(N) / T(1) by batch size; EvidenceError where it is not known."""
    model, grid = forecast.total.model_us, forecast.total.grid.tolist()
    for place, reason in enumerate(forecast.total.refusals):
        if reason is not None:
            _refuse(forecast, place, f"T(N) is not known: {reason}")
    return {
        query.batch: dict(zip(grid, (model[place] / model[place, 0]).tolist(), strict=True))
        for place, query in enumerate(forecast.deployments)
    }


def schedule_report(
    forecast: Forecast, choices: Mapping[int, Choice], option: Option, notes: Sequence[str]
) -> Iterator[str]:
    """Yield the facts behind an option: where it goes, what reads it, and T(K + 1) / T(1).

    Parameters
    ----------
    choices
        K by batch size, with its speedup where that chose it, else NaN.
    notes
        What is assumed, and what speaks against the drafter.
    """
    yield f"# {heading(forecast)}"
    yield from (f"# {note}" for note in notes)
    yield f"# goes to: {option.place}"
    yield from (f"# {note}" for note in (*option.notes, *forecast.deployments[0].caveats))
    yield from (f"# {line}" for line in _read_by(option.parsers))
    yield from (f"# {line}" for line in columns(_table(list(entries(forecast, choices))), left=0))
    yield from (f"# {remark}" for remark in remarks(forecast, choices))


def _read_by(parsers: Sequence[Parser]) -> Iterator[str]:
    """Yield a line a release with the files and lines that read an option."""
    releases = dict.fromkeys((parser.package, parser.version) for parser in parsers)
    for package, version in releases:
        places: dict[str, list[str]] = {}
        for parser in parsers:
            if (parser.package, parser.version) == (package, version):
                first, last = parser.lines
                span = f"{first}" if first == last else f"{first}-{last}"
                places.setdefault(parser.file, []).append(span)
        files = "; ".join(f"{file}:{', '.join(spans)}" for file, spans in places.items())
        yield f"read by {package} {version}, {files} (--format json has names and digests)"


def heading(forecast: Forecast) -> str:
    """Return one line that names what a schedule is of: a deployment, less its batch size."""
    first = forecast.deployments[0]
    return title(first).replace(f"b = {first.batch}, ", "")


def idle(choices: Iterable[Choice]) -> Iterator[str]:
    """Yield what a drafter takes where it drafts nothing, if K is 0 anywhere."""
    if any(not choice.k for choice in choices):
        yield IDLE


def remarks(forecast: Forecast, choices: Mapping[int, Choice]) -> Iterator[str]:
    """Yield what to know of draft lengths besides their table; arguments as of `schedule_report`.

    What a law's boundary refers to, what a drafter takes where K = 0, and where none is faster.
    """
    anchored = any(query.full_baseline > 1 for query in forecast.deployments)
    if anchored and forecast.answers["predictor"].is_in(LAWS).any():
        yield (
            "with balanced routing a law's N_max is relative to T(ceil(E / (b k))), where "
            "every expert is awake, not to T(1)"
        )
    yield from idle(choices.values())
    slower = [batch for batch, choice in choices.items() if choice.speedup < 1]
    if slower:
        least, many = min(slower), f"{len(slower)} of {len(choices)}"
        to_the_end = len(slower) == sum(batch >= least for batch in choices)
        where = f"from b = {least} on" if to_the_end else f"the smallest of them b = {least}"
        yield f"without a drafter it is faster at {many} batch sizes, {where}"


def ends(asked: Sequence[Deployment], written: int) -> Iterator[str]:
    """Yield where memory ends a schedule, or would.

    Parameters
    ----------
    asked
        Deployments by batch size from 1 on.
    written
        How many of them the schedule has.
    """
    over = next((each for each in asked if unfit(each.memory)), None)
    if over is None:
        return
    line = next(memory_lines(over.memory, over.platform))
    what = "ends here" if written < len(asked) else "goes on, memory ignored"
    yield f"# at b = {over.batch} the schedule {what}: {line}"


def entries(forecast: Forecast, choices: Mapping[int, Choice]) -> Iterator[Entry]:
    """Yield the ranges of batch sizes of one K; arguments as of `schedule_report`."""
    if not choices:
        return
    place = {query.batch: number for number, query in enumerate(forecast.deployments)}
    rows = headline(forecast.answers).filter(baseline=1)
    module = pl.coalesce("limiting_module_extended", "limiting_module")
    limiter = dict(rows.select("deployment", module).rows())
    by_speed = not any(math.isnan(choice.speedup) for choice in choices.values())
    model = forecast.total.model_us
    for part in ranges({batch: choice.k for batch, choice in choices.items()}):
        batches = [b for b in choices if part.first <= b <= part.last]
        cost = max(float(model[place[b], part.k] / model[place[b], 0]) for b in batches)
        yield Entry(
            *part,
            cost=None if math.isnan(cost) else cost,
            expected=min(choices[b].speedup for b in batches) if by_speed else None,
            limited_by=None if by_speed else limiter.get(place[batches[-1]]),
        )


def _table(found: Sequence[Entry]) -> list[list[object]]:
    """Return a row an entry under a head; none without entries."""
    by_speed = any(entry.expected is not None for entry in found)
    why = "speedup at least" if by_speed else "limited at its end by"
    rows = [
        [
            *(entry.first, entry.last, entry.k),
            "-" if entry.cost is None else f"{entry.cost:.3f}",
            (entry.limited_by or "-") if entry.expected is None else f"{entry.expected:.2f}",
        ]
        for entry in found
    ]
    return [["from b", "to b", "K", "T(K+1)/T(1) at most", why], *rows] if rows else []


def _refuse(forecast: Forecast, place: int, why: str) -> None:
    query = forecast.deployments[place]
    raise EvidenceError(
        f"no schedule for {title(query)}: {why}",
        remedy=f"Choose another predictor with --by. {no_forward(query)}{_by_another(query)}",
    )


def _by_another(query: Deployment) -> str:
    """Return whose schedule to ask for where the experts of another engine are known."""
    others = [
        name
        for name in ENGINES
        if name != query.engine.name and any(f"--moe {name}==" in each for each in query.instead)
    ]
    return f"; {others[0]}'s own option is `nearfree schedule {others[0]}`" if others else ""
