"""The text of `nearfree schedule`: N_max and T(N) by batch size, and the facts of an option."""

import math
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from nearfree.derive.laws.laws import LAWS
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast, headline
from nearfree.derive.schedule.draft_lengths import draft_lengths, ranges
from nearfree.derive.schedule.expected import Choice
from nearfree.derive.schedule.option import Option
from nearfree.errors import EvidenceError
from nearfree.show.text.forecast import columns, title
from nearfree.show.text.memory import memory_lines, unfit

IDLE = (
    "where K = 0 the drafter still runs once a step, for its cache: vLLM was measured to take "
    "6.6 % more at 2 requests and 21.6 % more at 189 (vllm-project/vllm issue 49548)"
)


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
    most
        The longest draft, tokens.
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
    forecast: Forecast, choices: Mapping[int, Choice], option: Option, *, assumed: bool
) -> Iterator[str]:
    """Yield the facts behind an option: where it goes, what reads it, and T(K + 1) / T(1).

    Parameters
    ----------
    choices
        K by batch size, with its speedup where that chose it, else NaN.
    assumed
        Whether nobody named the attention that the engine runs.
    """
    first = forecast.deployments[0]
    yield f"# {title(first).replace(f'b = {first.batch}, ', '')}"
    if assumed:
        yield "# attention is assumed: name what the engine logs at start-up with --attention"
    yield f"# goes to: {option.place}"
    yield from (f"# {note}" for note in (*option.notes, *first.caveats))
    yield from (f"# read by {parser}" for parser in option.parsers)
    if choices:
        anchored = [
            query.full_baseline for query in forecast.deployments if query.full_baseline > 1
        ]
        if anchored and forecast.answers["predictor"].is_in(LAWS).any():
            yield (
                "# with balanced routing a law's N_max is relative to T(ceil(E / (b k))), where "
                "every expert is awake, not to T(1)"
            )
        yield from (f"# {line}" for line in columns(list(_ranges(forecast, choices)), left=0))
        if any(not choice.k for choice in choices.values()):
            yield f"# {IDLE}"
        slower = [batch for batch, choice in choices.items() if choice.speedup < 1]
        if slower:
            yield (
                f"# without a drafter it is faster at {len(slower)} of {len(choices)} batch sizes, "
                f"from b = {min(slower)} on"
            )


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


def _ranges(forecast: Forecast, choices: Mapping[int, Choice]) -> Iterator[list[object]]:
    """Yield a row a range of batch sizes: K, what K + 1 positions cost in it at most, and why K.

    Where K was chosen by expected tokens per second, that is the least speedup in the range; else
    what limits the boundary at the range's end.
    """
    place = {query.batch: number for number, query in enumerate(forecast.deployments)}
    rows = headline(forecast.answers).filter(baseline=1)
    module = pl.coalesce("limiting_module_extended", "limiting_module")
    limiter = dict(rows.select("deployment", module).rows())
    by_speed = not any(math.isnan(choice.speedup) for choice in choices.values())
    model = forecast.total.model_us
    yield ["from b", "to b", "K", "T(K+1)/T(1)", "speedup" if by_speed else "limited at its end by"]
    for part in ranges({batch: choice.k for batch, choice in choices.items()}):
        batches = [b for b in choices if part.first <= b <= part.last]
        cost = max(model[place[b], part.k] / model[place[b], 0] for b in batches)
        shown_cost = "-" if math.isnan(cost) else f"{cost:.3f}"
        least = min(choices[b].speedup for b in batches)
        why = f"{least:.2f}" if by_speed else limiter.get(place[batches[-1]]) or "-"
        yield [part.first, part.last, part.k, shown_cost, why]


def _refuse(forecast: Forecast, place: int, why: str) -> None:
    raise EvidenceError(
        f"no schedule for {title(forecast.deployments[place])}: {why}",
        remedy="Choose another predictor with --by, or ask for what is known",
    )
