"""What `nearfree schedule` takes from a forecast, and what it says of an option."""

from collections.abc import Iterator, Mapping

import polars as pl

from nearfree.errors import EvidenceError
from nearfree.exports.option import Option
from nearfree.exports.schedule import ranges
from nearfree.report.columns import columns
from nearfree.report.forecast import title
from nearfree.theory.forecast.forecast import Forecast, headline


def boundary_by_batch(found: Forecast, *, cautious: bool) -> dict[int, float]:
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
    rows = headline(found.answers).filter(baseline=1).sort("deployment")
    refused = rows.filter(pl.col("refusal").is_not_null())
    if not refused.is_empty():
        row = refused.row(0, named=True)
        _refuse(found, row["deployment"], f"{row['predictor']} refuses: {row['refusal']}")
    value = pl.coalesce("n_max_extended", "n_max")
    limits = rows.select(pl.coalesce("low", value) if cautious else value).to_series()
    return {each.batch: n for each, n in zip(found.deployments, limits, strict=True)}


def ratio_by_batch(found: Forecast) -> dict[int, dict[int, float]]:
    """Return T(N) / T(1) by batch size; EvidenceError where it is not known."""
    model, grid = found.total.model_us, found.total.grid.tolist()
    for place, reason in enumerate(found.total.refusals):
        if reason is not None:
            _refuse(found, place, f"T(N) is not known: {reason}")
    return {
        each.batch: dict(zip(grid, (model[place] / model[place, 0]).tolist(), strict=True))
        for place, each in enumerate(found.deployments)
    }


def schedule_report(
    found: Forecast, k_by_batch: Mapping[int, int], option: Option
) -> Iterator[str]:
    """Yield what stands behind an option: where it goes, what reads it, and T(K + 1) / T(1)."""
    first = found.deployments[0]
    yield f"# {title(first).replace(f'b = {first.batch}, ', '')}"
    yield f"# goes to: {option.place}"
    yield from (f"# {note}" for note in option.notes)
    yield from (f"# read by {parser}" for parser in option.parsers)
    if k_by_batch:
        yield from (f"# {line}" for line in columns(list(_ranges(found, k_by_batch)), left=0))


def _ranges(found: Forecast, k_by_batch: Mapping[int, int]) -> Iterator[list[object]]:
    """Yield a row a range of batch sizes: K, and what K + 1 positions cost in it at most."""
    place = {each.batch: number for number, each in enumerate(found.deployments)}
    rows = headline(found.answers).filter(baseline=1)
    limiter = dict(rows.select("deployment", "limiting_module").rows())
    model = found.total.model_us
    yield ["from b", "to b", "K", "T(K+1)/T(1)", "limited at its end by"]
    for each in ranges(k_by_batch):
        inside = [place[b] for b in k_by_batch if each.first <= b <= each.last]
        cost = max(model[at, each.k] / model[at, 0] for at in inside)
        said = "-" if cost != cost else f"{cost:.3f}"  # noqa: PLR0124 (NaN where it is not known)
        yield [each.first, each.last, each.k, said, limiter.get(inside[-1]) or "-"]


def _refuse(found: Forecast, place: int, why: str) -> None:
    raise EvidenceError(
        f"no schedule for {title(found.deployments[place])}: {why}",
        remedy="Choose another predictor with --by, or ask for what is known",
    )
