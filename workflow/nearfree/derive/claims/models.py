"""Claims on whole models: modules compose by their minimum, and the limiter moves to attention."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl
from msgspec import structs

from nearfree.core.label import AXES
from nearfree.decoders.ranks.attention_uses import ATTENTION, base_of
from nearfree.decoders.ranks.modules import MOE
from nearfree.derive.claims.cases import Case, doublings, n_max, plain, setting_case, within_step
from nearfree.derive.claims.scope_tables import BASES, Row, ScopeTables, pairs

LAWS = ("principle", "principle_resolved", "principle_counted")
"""The principle of a model: with the paper's granularities, a release's, or counted ones."""


def minimum(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether a model's boundary is the smallest boundary of its modules."""
    for row, predictions in _compositions(tables, module):
        composed, summed = predictions.get("modules_minimum"), predictions.get("modules_sum")
        if composed is None or composed["predicted"] is None:
            continue
        predicted = composed["predicted"]
        text = f"{n_max(row)}, minimum {plain(predicted)} ({composed['limiter']})"
        if summed is not None and summed["predicted"] is not None:
            text += f"; the sum of the modules' times gives {plain(summed['predicted'])}"
        agrees, gap = within_step(row, predicted), doublings(predicted, row["n_max"])
        yield setting_case(row, text, composed, agrees=agrees, gap=gap)


def law(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether the principle of a model lies between N_max and the next N of the grid."""
    for row in tables.bounds(module):
        prediction = tables.prediction(row, *LAWS)
        if prediction is not None and not prediction["unbounded"]:
            predicted = prediction["n_max"]
            text = f"{n_max(row)}, {prediction['predictor']} {plain(predicted)}"
            agrees, gap = within_step(row, predicted), doublings(predicted, row["n_max"])
            yield setting_case(row, text, prediction, agrees=agrees, gap=gap)


def names_limiter(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether the principle names the module whose measured time grows most."""
    for row, predictions in _compositions(tables, module):
        laws = (predictions[name] for name in LAWS if name in predictions)
        prediction = next((law for law in laws if law["limiter"]), None)
        if prediction is not None and prediction["measured_limiter"] is not None:
            text = (
                f"{prediction['limiter']} by {prediction['predictor']}, "
                f"{prediction['measured_limiter']} measured"
            )
            yield setting_case(row, text, prediction, agrees=prediction["same_limiter"])


def limiter_shifts(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether the MoE FFN limits a model at the shortest L, and attention at the longest."""
    composed = [pair for pair in _compositions(tables, module) if pair[0]["routing"]]
    limiters = {row["row_id"]: _limiter(predictions) for row, predictions in composed}
    ends: dict[tuple[Any, ...], list[tuple[Row, Row]]] = defaultdict(list)
    for a, b in pairs((row for row, _ in composed), "context"):
        ends[tuple(a[name] for name in ("stream", "model", *AXES) if name != "context")].append(
            (a, b)
        )
    for family in ends.values():
        short, long = max(family, key=lambda pair: pair[1]["context"] - pair[0]["context"])
        first, last = (limiters[row["row_id"]] for row in (short, long))
        if first and last:
            limiting = [base_of(row["measured_limiter"]) for row in (first, last)]
            agrees = limiting == [MOE, ATTENTION]
            text = (
                f"{first['measured_limiter']} at L = {short['context']}, "
                f"{last['measured_limiter']} at L = {long['context']}"
            )
            case = setting_case(short, text, agrees=agrees, varied="context")
            yield structs.replace(case, ids=(first["row_id"], last["row_id"]))


def _limiter(predictions: dict[str, Row]) -> Row | None:
    return next((row for row in predictions.values() if row["measured_limiter"]), None)


def _compositions(tables: ScopeTables, module: str) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Yield each model's boundary with its rows of the table `composition`, by predictor."""
    frame = tables.frames["composition"].filter(pl.col("epsilon") == tables.epsilon)
    by_setting: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    rows = frame.drop("from_ids").to_dicts()
    for row in sorted(rows, key=lambda row: BASES.index(row["basis"]), reverse=True):
        by_setting[row["platform"], row["stream"], row["setting_key"]][row["predictor"]] = row
    for bound in tables.bounds(module):
        predictions = by_setting.get((bound["platform"], bound["stream"], bound["setting_key"]))
        if predictions:
            yield bound, predictions
