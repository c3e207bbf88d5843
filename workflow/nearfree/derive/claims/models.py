"""Claims on whole models: modules compose by their minimum, and the limiter moves to attention."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

from nearfree.core.label import AXES
from nearfree.decoders.modules import ATTENTION, MOE
from nearfree.derive.claims.cases import (
    Case,
    describe_setting,
    doublings,
    group_of,
    n_max,
    plain,
    within_step,
)
from nearfree.derive.claims.scope_tables import BASES, Row, ScopeTables, pairs

LAWS = ("principle", "principle_resolved", "principle_counted")
"""The principle of a model: with the paper's granularities, a release's, or those counted."""


def minimum(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether the smallest boundary of a model's modules is the model's."""
    for row, predictions in _composed(tables):
        least, total = predictions.get("modules_minimum"), predictions.get("modules_sum")
        if least is None or least["predicted"] is None:
            continue
        text = f"{describe_setting(row)}: {n_max(row)}, minimum {plain(least['predicted'])}"
        text += f" ({least['limiter']})"
        if total is not None and total["predicted"] is not None:
            text += f"; the sum of the modules' times gives {plain(total['predicted'])}"
        gap = doublings(least["predicted"], row["n_max"])
        ids = (row["row_id"], least["row_id"])
        yield Case(group_of(row), within_step(row, least["predicted"]), text, ids, gap)


def law(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether the principle of a model lies between N_max and the next N of the grid."""
    for row in tables.bounds("model"):
        prediction = tables.prediction(row, *LAWS)
        if prediction is not None and not prediction["unbounded"]:
            predicted = prediction["n_max"]
            law_text = f"{prediction['predictor']} {plain(predicted)}"
            text = f"{describe_setting(row)}: {n_max(row)}, {law_text}"
            gap = doublings(predicted, row["n_max"])
            ids = (row["row_id"], prediction["row_id"])
            yield Case(group_of(row), within_step(row, predicted), text, ids, gap)


def names_limiter(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether the principle names the module whose time was seen to grow most."""
    for row, predictions in _composed(tables):
        named_limiter = next(
            (
                predictions[name]
                for name in LAWS
                if name in predictions and predictions[name]["limiter"]
            ),
            None,
        )
        if named_limiter is None or named_limiter["measured_limiter"] is None:
            continue
        text = (
            f"{describe_setting(row)}: {named_limiter['limiter']} by {named_limiter['predictor']}, "
            f"{named_limiter['measured_limiter']} measured"
        )
        yield Case(
            group_of(row),
            named_limiter["same_limiter"],
            text,
            (row["row_id"], named_limiter["row_id"]),
        )


def limiter_shifts(tables: ScopeTables) -> Iterator[Case]:
    """Yield whether the MoE FFN limits a model at the shortest L, and attention at the longest."""
    seen = {row["row_id"]: predictions for row, predictions in _composed(tables) if row["routing"]}
    rows = [row for row in tables.bounds("model") if row["row_id"] in seen]
    ends: dict[tuple[Any, ...], list[tuple[Row, Row]]] = defaultdict(list)
    for a, b in pairs(rows, "context"):
        ends[tuple(a[n] for n in ("stream", "model", *AXES) if n != "context")].append((a, b))
    for family in ends.values():
        short, long = max(family, key=lambda pair: pair[1]["context"] - pair[0]["context"])
        first, last = (_limiter(seen[row["row_id"]]) for row in (short, long))
        if first and last:
            agrees = (first["measured_limiter"], last["measured_limiter"]) == (MOE, ATTENTION)
            text = (
                f"{describe_setting(short, 'context')}: {first['measured_limiter']} at L = "
                f"{short['context']}, {last['measured_limiter']} at L = {long['context']}"
            )
            yield Case(group_of(short), agrees, text, (first["row_id"], last["row_id"]))


def _limiter(predictions: dict[str, Row]) -> Row | None:
    return next((row for row in predictions.values() if row["measured_limiter"]), None)


def _composed(tables: ScopeTables) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Yield each model's boundary with what is composed of it, by predictor."""
    frame = tables.frames["composition"].filter(pl.col("epsilon") == tables.epsilon)
    by_setting: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    rows = frame.drop("from_ids").to_dicts()
    for row in sorted(rows, key=lambda row: BASES.index(row["basis"]), reverse=True):
        by_setting[row["platform"], row["stream"], row["setting_key"]][row["predictor"]] = row
    for bound in tables.bounds("model"):
        predictions = by_setting.get((bound["platform"], bound["stream"], bound["setting_key"]))
        if predictions:
            yield bound, predictions
