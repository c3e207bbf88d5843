"""The text of `nearfree schedule`: N_max and T(N) by batch size, and an option's evidence.

Without an acceptance there is no option, but the best K and its gain by batch size and acceptance.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from nearfree.core.predictors import LAWS
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.doubts import all_caveats
from nearfree.derive.predict.forecast.forecast import Forecast, headline
from nearfree.derive.schedule.draft_lengths import draft_lengths, ranges
from nearfree.derive.schedule.engines import ENGINES
from nearfree.derive.schedule.expected import Choice
from nearfree.derive.schedule.option import Option, Parser
from nearfree.errors import EvidenceError
from nearfree.show.text.context_schedule import RATES, ContextSchedule, caveats
from nearfree.show.text.forecast import columns, no_forward, title
from nearfree.show.text.memory import first_unfit

IDLE = (
    "where K = 0 the drafter still runs once per step, to fill its cache: a vLLM step was measured "
    "to take 6.6 % longer at 2 requests and 21.6 % longer at 189 (vllm-project/vllm issue 49548)"
)
ASSUMED = (
    "the attention backend is assumed: give the one that the engine logs at start-up by --attention"
)


class Entry(NamedTuple):
    """K for a range of batch sizes, and the reason for it.

    Parameters
    ----------
    first, last
        The ends of the range.
    k
        Draft tokens.
    cost
        T(K + 1) / T(1) at most in the range, None where T(N) is not known.
    expected
        The least speedup in the range, None where K was chosen by the boundary.
    limited_by
        The module that limits the boundary at the range's end, None where K was chosen by speedup
        or no module limits.
    """

    first: int
    last: int
    k: int
    cost: float | None
    expected: float | None
    limited_by: str | None


def boundary_by_batch(forecast: Forecast, *, cautious: bool) -> dict[int, float]:
    """Return N_max by batch size, from one predictor's forecast of one deployment at each size.

    A law's extended value counts, the one with the batch in its formula.

    Parameters
    ----------
    cautious
        Whether to take the lower end of the interval, where there is one.

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
    """Return the near-free K by batch size, from 0 to N_max - 1.

    Where T(N) is known, a shorter K is left out if its own T(K + 1) is beyond the tolerance: T(N)
    may fall again behind such an N. By a law every K up to N_max - 1 is near-free.

    Parameters
    ----------
    cautious
        As in `boundary_by_batch`.

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
            if k == 0 or by_law or ratio[index, k] <= 1.0 + epsilon
        )
        for index, query in enumerate(forecast.deployments)
    }


def ratio_by_batch(forecast: Forecast) -> dict[int, dict[int, float]]:
    """Return T(N) / T(1) by batch size and N; EvidenceError where it is unknown."""
    model, grid = forecast.total.model_us, forecast.total.grid.tolist()
    for index, reason in enumerate(forecast.total.refusals):
        if reason is not None:
            _refuse(forecast, index, f"T(N) is not known: {reason}")
    return {
        query.batch: dict(zip(grid, (model[index] / model[index, 0]).tolist(), strict=True))
        for index, query in enumerate(forecast.deployments)
    }


def schedule_report(
    forecast: Forecast, choices: Mapping[int, Choice], option: Option, notes: Sequence[str]
) -> Iterator[str]:
    """Yield an option's evidence: where to put it, the source that reads it, and T(K + 1) / T(1).

    Parameters
    ----------
    choices
        K by batch size, with its speedup if K was chosen by it, else NaN.
    notes
        Assumptions, and warnings about the drafter.
    """
    yield f"# {heading(forecast)}"
    yield from (f"# {note}" for note in notes)
    yield f"# goes to: {option.place}"
    every = all_caveats(forecast.total, forecast.deployments, 0)
    yield from (f"# {note}" for note in (*option.notes, *every))
    yield from (f"# {line}" for line in _read_by(option.parsers))
    yield from (f"# {line}" for line in columns(_table(list(entries(forecast, choices))), left=0))
    yield from (f"# {remark}" for remark in remarks(forecast, choices))


def _read_by(parsers: Sequence[Parser]) -> Iterator[str]:
    """Yield one line per release with the files and lines that read an option."""
    releases = dict.fromkeys((parser.package, parser.version) for parser in parsers)
    for package, version in releases:
        spans_by_file: dict[str, list[str]] = {}
        for parser in parsers:
            if (parser.package, parser.version) == (package, version):
                first, last = parser.lines
                span = f"{first}" if first == last else f"{first}-{last}"
                spans_by_file.setdefault(parser.file, []).append(span)
        files = "; ".join(f"{file}:{', '.join(spans)}" for file, spans in spans_by_file.items())
        yield f"read by {package} {version}, {files} (--format json has names and digests)"


def heading(forecast: Forecast) -> str:
    """Return one line that describes a schedule's deployment, without a batch size."""
    first = forecast.deployments[0]
    return title(first).replace(f"b = {first.batch}, ", "")


def idle_note(choices: Iterable[Choice]) -> Iterator[str]:
    """Yield the cost of a drafter that drafts nothing, if K is 0 anywhere."""
    if any(not choice.k for choice in choices):
        yield IDLE


def remarks(forecast: Forecast, choices: Mapping[int, Choice]) -> Iterator[str]:
    """Yield the remarks below a table of draft lengths; arguments as in `schedule_report`.

    They name the baseline of a law's N_max, a drafter's cost where K = 0, and the batch sizes at
    which decoding without a drafter is faster.
    """
    anchored = any(query.full_baseline > 1 for query in forecast.deployments)
    if anchored and forecast.answers["predictor"].is_in(LAWS).any():
        yield (
            "with balanced routing a law's N_max is relative to T(ceil(E / (b k))), where "
            "every expert is active, not to T(1)"
        )
    yield from idle_note(choices.values())
    slower = [batch for batch, choice in choices.items() if choice.speedup < 1]
    if slower:
        first, count = min(slower), f"{len(slower)} of {len(choices)}"
        to_the_end = len(slower) == sum(batch >= first for batch in choices)
        where = f"from b = {first} on" if to_the_end else f"the smallest of them b = {first}"
        yield f"decoding without a drafter is faster at {count} batch sizes, {where}"


def memory_end(queries: Sequence[Deployment], written: int) -> Iterator[str]:
    """Yield the first batch size that memory does not hold, and whether the schedule ends there.

    Parameters
    ----------
    queries
        Deployments by batch size from 1 on.
    written
        Number of batch sizes that the schedule has.
    """
    if end := first_unfit(queries):
        what = "ends here" if written < len(queries) else "goes on, memory ignored"
        yield f"# at b = {end[0]} the schedule {what}: {end[1]}"


def entries(forecast: Forecast, choices: Mapping[int, Choice]) -> Iterator[Entry]:
    """Yield the ranges of batch sizes that share one K; arguments as in `schedule_report`."""
    if not choices:
        return
    index_by_batch = {query.batch: index for index, query in enumerate(forecast.deployments)}
    rows = headline(forecast.answers).filter(baseline=1)
    module = pl.coalesce("limiting_module_extended", "limiting_module")
    limiter = dict(rows.select("deployment", module).rows())
    by_speed = not any(math.isnan(choice.speedup) for choice in choices.values())
    model = forecast.total.model_us
    for part in ranges({batch: choice.k for batch, choice in choices.items()}):
        batches = [b for b in choices if part.first <= b <= part.last]
        indices = [index_by_batch[b] for b in batches]
        cost = max(float(model[index, part.k] / model[index, 0]) for index in indices)
        yield Entry(
            *part,
            cost=None if math.isnan(cost) else cost,
            expected=min(choices[b].speedup for b in batches) if by_speed else None,
            limited_by=None if by_speed else limiter.get(indices[-1]),
        )


def _table(entries: Sequence[Entry]) -> list[list[object]]:
    """Return a heading and one row per entry; empty without entries."""
    by_speed = any(entry.expected is not None for entry in entries)
    why = "speedup at least" if by_speed else "limited at its end by"
    rows = [
        [
            *(entry.first, entry.last, entry.k),
            "-" if entry.cost is None else f"{entry.cost:.3f}",
            (entry.limited_by or "-") if entry.expected is None else f"{entry.expected:.2f}",
        ]
        for entry in entries
    ]
    return [["from b", "to b", "K", "T(K+1)/T(1) at most", why], *rows] if rows else []


def _refuse(forecast: Forecast, index: int, why: str) -> None:
    query = forecast.deployments[index]
    raise EvidenceError(
        f"no schedule for {title(query)}: {why}",
        remedy=f"Choose another predictor with --by. {no_forward(query)}{_by_another(query)}",
    )


def _by_another(query: Deployment) -> str:
    """Return the command for another engine whose kernels for the experts are known."""
    others = [
        name
        for name in ENGINES
        if name != query.engine.name
        and any(f"--moe {name}==" in options for options in query.instead)
    ]
    return f"; {others[0]}'s own option is `nearfree schedule {others[0]}`" if others else ""


def choices_table(schedules: Sequence[ContextSchedule], notes: Sequence[str]) -> Iterator[str]:
    """Yield one table per context: the best K and its gain over no drafts, at doubling batch sizes.

    Parameters
    ----------
    notes
        Assumptions, and warnings about the drafter.
    """
    yield "# no option without --acceptance: best K, and its gain over serving without drafts"
    yield from (f"# {note}" for note in choice_notes(schedules, notes))
    for schedule in schedules:
        yield f"# {heading(schedule.forecast)}"
        head: list[object] = ["b", *(f"acceptance {rate}" for rate in RATES)]
        rows: list[list[object]] = [head]
        for batch in _doubling(max(schedule.best[RATES[0]])):
            choices = (schedule.best[rate][batch] for rate in RATES)
            cells = [f"K = {choice.k}, {choice.speedup - 1:+.0%}" for choice in choices]
            rows.append([batch, *cells])
        yield from columns(rows, left=0)
        yield from memory_end(schedule.deployments, len(schedule.forecast.deployments))


def choice_notes(schedules: Sequence[ContextSchedule], notes: Sequence[str]) -> Iterator[str]:
    """Yield distinct notes and caveats, and a drafter's idle cost if the best K is 0 anywhere."""
    yield from dict.fromkeys((*notes, *caveats(schedules)))
    yield from idle_note(
        choice
        for schedule in schedules
        for by_batch in schedule.best.values()
        for choice in by_batch.values()
    )


def _doubling(last: int) -> Iterator[int]:
    batch = 1
    while batch < last:
        yield batch
        batch *= 2
    yield last
