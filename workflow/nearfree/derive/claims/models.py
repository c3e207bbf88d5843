"""Claims on whole models: modules compose by their minimum, and the limiter moves to attention."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

from nearfree.derive.claims.cases import Case, group_of, n_max, named, plain
from nearfree.derive.claims.compare import apart, lands
from nearfree.derive.claims.scope_tables import BASES, Log, Row, pairs

LAWS = ("principle", "principle_resolved", "principle_counted")
"""The principle of a model: with the paper's granularities, a release's, or those counted."""
_ATTENTION, _MOE = "attention", "MoE FFN"


def minimum(log: Log) -> Iterator[Case]:
    """Yield whether the smallest boundary of a model's modules is the model's."""
    for row, told in _composed(log):
        least, total = told.get("modules_minimum"), told.get("modules_sum")
        if least is None or least["predicted"] is None:
            continue
        text = f"{named(row)}: {n_max(row)}, minimum {plain(least['predicted'])}"
        text += f" ({least['limiter']})"
        if total is not None and total["predicted"] is not None:
            text += f"; the sum of the modules' times gives {plain(total['predicted'])}"
        gap = apart(least["predicted"], row["n_max"])
        ids = (row["row_id"], least["row_id"])
        yield Case(group_of(row), lands(row, least["predicted"]), text, ids, gap)


def law(log: Log) -> Iterator[Case]:
    """Yield whether the principle of a model lies between N_max and the next N of the grid."""
    for row in log.bounds("model"):
        said = log.said(row, *LAWS)
        if said is not None and not said["unbounded"]:
            text = f"{named(row)}: {n_max(row)}, {said['predictor']} {plain(said['n_max'])}"
            gap = apart(said["n_max"], row["n_max"])
            ids = (row["row_id"], said["row_id"])
            yield Case(group_of(row), lands(row, said["n_max"]), text, ids, gap)


def names_limiter(log: Log) -> Iterator[Case]:
    """Yield whether the principle names the module whose time was seen to grow most."""
    for row, told in _composed(log):
        said = next((told[name] for name in LAWS if name in told and told[name]["limiter"]), None)
        if said is None or said["measured_limiter"] is None:
            continue
        text = (
            f"{named(row)}: {said['limiter']} by {said['predictor']}, "
            f"{said['measured_limiter']} measured"
        )
        yield Case(group_of(row), said["same_limiter"], text, (row["row_id"], said["row_id"]))


def limiter_shifts(log: Log) -> Iterator[Case]:
    """Yield whether the MoE FFN limits a model at the shortest L, and attention at the longest."""
    seen = {row["row_id"]: told for row, told in _composed(log) if row["routing"]}
    rows = [row for row in log.bounds("model") if row["row_id"] in seen]
    ends: dict[tuple[Any, ...], list[tuple[Row, Row]]] = defaultdict(list)
    for a, b in pairs(rows, "context"):
        ends[tuple(a[n] for n in ("stream", "model", "routing", "top_k", "batch"))].append((a, b))
    for family in ends.values():
        short, long = max(family, key=lambda pair: pair[1]["context"] - pair[0]["context"])
        first, last = (_limiter(seen[row["row_id"]]) for row in (short, long))
        if first and last:
            agrees = (first["measured_limiter"], last["measured_limiter"]) == (_MOE, _ATTENTION)
            text = (
                f"{named(short, 'context')}: {first['measured_limiter']} at L = "
                f"{short['context']}, {last['measured_limiter']} at L = {long['context']}"
            )
            yield Case(group_of(short), agrees, text, (first["row_id"], last["row_id"]))


def _limiter(told: dict[str, Row]) -> Row | None:
    return next((row for row in told.values() if row["measured_limiter"]), None)


def _composed(log: Log) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Yield each model's boundary with what is composed of it, by predictor."""
    frame = log.frames["composition"].filter(pl.col("epsilon") == log.epsilon)
    found: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    rows = frame.drop("from_ids").to_dicts()
    for row in sorted(rows, key=lambda row: BASES.index(row["basis"]), reverse=True):
        found[row["platform"], row["stream"], row["setting_key"]][row["predictor"]] = row
    for bound in log.bounds("model"):
        told = found.get((bound["platform"], bound["stream"], bound["setting_key"]))
        if told:
            yield bound, told
