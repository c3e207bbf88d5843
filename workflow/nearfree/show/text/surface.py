"""Answers for many deployments: `lookup`, `predict --positions K` and `surface`."""

import io
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl

from nearfree.core.predictors import LAWS, WORK_MODEL
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast, headline
from nearfree.derive.predict.forecast.surface import NEAR_FREE, cost_of_positions
from nearfree.errors import ConfigError
from nearfree.log.document import replace
from nearfree.show.text.answer_json import with_about
from nearfree.show.text.forecast import NO_LIMIT, amount, columns, formats, gpus, interval
from nearfree.show.text.memory import unfit


def check_points_file(path: Path) -> None:
    """Raise ConfigError for a file whose name ends with neither .parquet nor .csv, or no folder."""
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(
            f"{path} is neither a .parquet nor a .csv file",
            remedy="Give --output a name that ends with .parquet or .csv",
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"there is no folder {path.parent} for {path}", remedy="Make it, or name another"
        )


def write_points(path: Path, queries: Sequence[Deployment], points: pl.DataFrame) -> None:
    """Write points with their deployments' columns to a file of `check_points_file`.

    Raises
    ------
    WriteError
        The file cannot be written; one that was there is unchanged.
    """
    rows, content = with_about(queries, points), io.BytesIO()
    if path.suffix == ".csv":
        rows.write_csv(content)
    else:
        rows.write_parquet(content)
    replace(path, content.getvalue())


_SETTING = ("model", "platform", "formats", "backends", "routing", "b", "L")
"""Headings of the columns of `_setting`."""


def _setting(query: Deployment) -> list[object]:
    """Return a deployment's cells under the headings `_SETTING`."""
    names = query.decoder.name, gpus(query), formats(query), _backends(query)
    return [*names, query.routing or "-", query.batch, query.context]


_UNFIT = "!"


def _backends(query: Deployment) -> str:
    """Return the attention backend, the engine, and the engine of the CUDA graphs."""
    graphs = f"graphs of {query.graphs.engine}" if query.graphs else None
    engine = query.moe or query.server
    return ", ".join(str(name) for name in (query.attention, engine, graphs) if name)


def surface_report(
    queries: Sequence[Deployment], boundaries: pl.DataFrame, epsilon: float
) -> Iterator[str]:
    """Yield N_max by batch (down) and context (across), per model, platform and routing."""
    rows = {(row["deployment"], row["baseline"] == 1): row for row in boundaries.to_dicts()}
    first = True
    for (decoder, _, routing), group in groupby(
        enumerate(queries), lambda entry: (entry[1].decoder, entry[1].platform, entry[1].routing)
    ):
        block = list(group)
        query = block[0][1]
        setting = f"{gpus(query)}, {formats(query)}, {_backends(query)}"
        setting += f", {routing} routing" if routing else ""
        for single in (True, False):
            if not single and all(other.full_baseline == 1 for _, other in block):
                continue
            baseline = "N = 1" if single else "the paper's baseline N = ceil(E / (b k))"
            yield from [] if first else [""]
            first = False
            yield (
                f"{decoder.name} on {setting}: "
                f"N_max at the tolerance {epsilon:g} from {baseline}, by the work model"
            )
            yield from _matrix(block, rows, single=single)
    if any(unfit(query.memory) for query in queries):
        yield f"{_UNFIT} does not fit in memory"
    reasons = boundaries["refusal"].drop_nulls().unique(maintain_order=True)
    yield from (f"refused: {reason}" for reason in reasons)


def _matrix(
    block: Sequence[tuple[int, Deployment]], rows: dict[tuple[int, bool], dict[str, object]],
    *, single: bool,
) -> Iterator[str]:  # fmt: skip
    contexts = list(dict.fromkeys(query.context for _, query in block))
    table: list[list[object]] = [["b \\ L", *contexts]]
    cells: dict[int, list[object]] = {}
    for index, query in block:
        row = rows.get((index, single)) or rows[index, True]
        cell = amount(row["n_max"], censored=bool(row["censored"]))  # type: ignore[arg-type]
        if unfit(query.memory) and not row["refusal"]:
            cell += _UNFIT
        cells.setdefault(query.batch, []).append(cell)
    table += [[batch, *values] for batch, values in cells.items()]
    yield from columns(table, left=0)


def inverse_report(
    forecast: Forecast, positions: int, epsilon: float, accepted: float | None
) -> Iterator[str]:
    """Yield T(K) / T(1) of K positions in each deployment, the near-free ones first."""
    rows = cost_of_positions(forecast, positions, epsilon)
    free = rows.filter(verdict=NEAR_FREE)
    unfits = {index for index, query in enumerate(forecast.deployments) if unfit(query.memory)}
    over = len(unfits & {*free["deployment"]})
    are, do = "position is" if positions == 1 else "positions are", "does" if over == 1 else "do"
    yield (
        f"{positions} {are} near-free (T({positions}) <= {1 + epsilon:g} T(1), by the work model) "
        f"in {free.height} of {rows.height} settings"
        + (f", of which {over} {do} not fit in memory" if over else "")
    )
    ratio = f"T({positions})/T(1)"
    accepted_head = [] if accepted is None else ["accepted / N_max"]
    head: list[object] = [*_SETTING, ratio, "interval",
                          "N_max", *accepted_head, "verdict"]  # fmt: skip
    table: list[list[object]] = [head]
    later = pl.col("verdict").ne_missing(pl.lit(NEAR_FREE))
    for row in rows.sort(later, maintain_order=True).to_dicts():
        query = forecast.deployments[row["deployment"]]
        setting = _setting(query)
        if row["refusal"]:
            dash = ["-"] if accepted_head else []
            table.append([*setting, "-", "", "-", *dash, row["refusal"]])
            continue
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        sign = "<= " if row["censored"] else ""
        accepted_cell = [] if accepted is None else [f"{sign}{accepted / row['n_max']:.2f}"]
        n_max = amount(row["n_max"], censored=row["censored"])
        verdict = row["verdict"] + (", does not fit" if row["deployment"] in unfits else "")
        table.append([*setting, f"{row['ratio']:.3f}", interval, n_max, *accepted_cell, verdict])
    yield from columns(table)


def lookup_report(forecast: Forecast, epsilon: float) -> Iterator[str]:
    """Yield N_max by predictor, a line per deployment and baseline, then the refusals."""
    answers, end = headline(forecast.answers), float(forecast.total.grid[-1])
    yield f"N_max at the tolerance {epsilon:g}; over: idle compute / work model"
    rows: list[list[object]] = [
        [*_SETTING, "from N", *LAWS, WORK_MODEL,
         "interval", "over", "limited by"]
    ]  # fmt: skip
    for (index, baseline), group in answers.group_by("deployment", "baseline", maintain_order=True):
        by_predictor = {row["predictor"]: row for row in group.to_dicts()}
        query = forecast.deployments[int(str(index))]
        values = _values(by_predictor, end)
        rows.append([*_setting(query), baseline, *values])
    yield from columns(rows)
    refused = answers.drop_nulls("refusal")
    for predictor, reason in (
        refused.select("predictor", "refusal").unique(maintain_order=True).rows()
    ):
        yield f"refused by {predictor}: {reason}"


def _values(by_predictor: dict[str, dict[str, Any]], end: float) -> list[object]:
    laws = [amount(by_predictor[name]["n_max"]) for name in LAWS]
    model, idle = by_predictor[WORK_MODEL], by_predictor["idle_compute"]["n_max"]
    if model["refusal"]:
        return [*laws, "refused", "", "", ""]
    over = "" if idle is None or model["censored"] else _times(idle / model["n_max"])
    limiter = model["limiting_module"]
    return [
        *laws,
        amount(model["n_max"], censored=model["censored"]),
        interval(model, end),
        over,
        NO_LIMIT if limiter is None else f"{limiter}: {model['limiting_term']}",
    ]


def _times(ratio: float) -> str:
    return "unbounded" if ratio == math.inf else f"{ratio:.3g}" if ratio < 10 else f"{ratio:.0f}"


def published_report(answers: pl.DataFrame) -> Iterator[str]:
    """Yield the paper's deployment table: computed, printed, and by the values of source rules."""
    equal = int(answers["equal"].sum())
    yield f"paper, tab:practical_lookup: {equal} of {answers.height} rows round to what is printed"
    rows: list[list[object]] = [
        ["row", "model", "platform", "b", "E", "k", "routing", "idle compute", "printed",
         "principle", "printed", "idle / principle", "limited by", "equal"]
    ]  # fmt: skip
    rows += [_published(row) for row in answers.to_dicts()]
    yield from columns(rows)
    yield ""
    yield "with M_attn, M_moe and tau of these shapes as read from the releases' sources"
    for row in answers.to_dicts():
        value = row["refusal"] or f"{row['resolved']:g} by {row['resolved_term']}"
        yield f"  row {row['row']}: {value}; {row['rule'] or ''}"
        if row["difference"]:
            yield f"         {row['difference']}"


def _published(row: dict[str, Any]) -> list[object]:
    moe = row["experts"] is not None
    return [
        *(row[name] for name in ("row", "model_type", "platform", "batch")),
        *([row["experts"], row["top_k"] or "any", row["routing"]] if moe else "---"),
        *(_between(row), f"{row['printed_idle_compute']:g}"),
        *(f"{row['principle']:.1f}", f"{row['printed_principle']:g}"),
        "-" if row["over_prediction"] is None else f"{row['over_prediction']:g}",
        *(row["tie"] or row["limiting_term"], "yes" if row["equal"] else "no"),
    ]


def _between(row: dict[str, Any]) -> str:
    low, high = row["idle_compute"], row["idle_compute_high"]
    if low is None:
        return "unbounded"
    single = high is None or round(low, 1) == round(high, 1)
    return f"{low:.1f}" if single else f"{low:.1f} to {high:.1f}"
