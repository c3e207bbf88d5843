"""What `nearfree lookup` prints: a deployment table, or the paper's own beside its print."""

from collections.abc import Iterator
from typing import Any

import polars as pl

from nearfree.derive.laws.laws import LAWS
from nearfree.derive.predict.forecast.forecast import Forecast, headline
from nearfree.derive.predict.forecast.total import PREDICTOR
from nearfree.show.text.forecast import amount, columns, interval


def lookup_report(forecast: Forecast, epsilon: float) -> Iterator[str]:
    """Yield N_max by predictor, a line a deployment and baseline, and why where one refuses."""
    answers, end = headline(forecast.answers), float(forecast.total.grid[-1])
    yield f"N_max at the tolerance {epsilon:g}; over: idle compute / work model"
    rows: list[list[object]] = [
        ["model", "platform", "backends", "routing", "b", "L", "from N", *LAWS, PREDICTOR,
         "interval", "over", "limited by"]
    ]  # fmt: skip
    for (place, baseline), part in answers.group_by("deployment", "baseline", maintain_order=True):
        by_predictor = {row["predictor"]: row for row in part.to_dicts()}
        query = forecast.deployments[int(str(place))]
        backends = ", ".join(str(backend) for backend in (query.attention, query.moe) if backend)
        setting = [query.decoder.name, query.platform, backends, query.routing or "-"]
        values = _values(by_predictor, end)
        rows.append([*setting, query.batch, query.context, baseline, *values])
    yield from columns(rows)
    refused = answers.drop_nulls("refusal")
    for predictor, reason in (
        refused.select("predictor", "refusal").unique(maintain_order=True).rows()
    ):
        yield f"refused by {predictor}: {reason}"


def _values(by_predictor: dict[str, dict[str, Any]], end: float) -> list[object]:
    laws = [amount(by_predictor[name]["n_max"]) for name in LAWS]
    model, idle = by_predictor[PREDICTOR], by_predictor["idle_compute"]["n_max"]
    if model["refusal"]:
        return [*laws, "refused", "", "", ""]
    over = "" if idle is None or model["censored"] else amount(idle / model["n_max"])
    limiter = model["limiting_module"]
    return [
        *laws,
        amount(model["n_max"], censored=model["censored"]),
        interval(model, end),
        over,
        "nothing up to there" if limiter is None else f"{limiter}: {model['limiting_term']}",
    ]


def published_report(answers: pl.DataFrame) -> Iterator[str]:
    """Yield the paper's deployment table as computed, as printed, and by the sources' values."""
    equal = int(answers["equal"].sum())
    yield f"paper, tab:practical_lookup: {equal} of {answers.height} rows round to what is printed"
    rows: list[list[object]] = [
        ["row", "model", "platform", "b", "E", "k", "routing", "idle compute", "printed",
         "principle", "printed", "over", "limited by", "equal"]
    ]  # fmt: skip
    rows += [_published(row) for row in answers.to_dicts()]
    yield from columns(rows)
    yield ""
    yield "with what the sources say of real shapes (M_attn, M_moe and tau of the releases)"
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
