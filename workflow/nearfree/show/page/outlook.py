"""The report's section on models: predicted N_max, the paper's lookup table, changed releases."""

import polars as pl

from nearfree.derive.outlook.outlook import MODELS
from nearfree.derive.predict.forecast.forecast import PREDICTORS, headline
from nearfree.derive.predict.forecast.total import PREDICTOR
from nearfree.show.page.sections import Cell, Grid, Row, cell
from nearfree.show.text.forecast import amount

_KEY = ("model", "platform", "attention", "moe", "routing", "batch", "context", "baseline")


def models(lookup: pl.DataFrame) -> Grid:
    """Return N_max of each deployment by predictor, and the limiter of the work model's.

    Parameters
    ----------
    lookup
        Rows of that table at one tolerance.
    """
    rows = []
    for key, part in headline(lookup).group_by(_KEY, maintain_order=True):
        by_predictor = {row["predictor"]: row for row in part.to_dicts()}
        model = by_predictor[PREDICTOR]
        rows.append(
            (
                *(Cell("-" if value is None else str(value)) for value in key),
                *(_value(by_predictor[name]) for name in PREDICTORS),
                cell(_interval(model), model["row_id"]),
                Cell(_limiter(model)),
                Cell(model["evidence"] or "-"),
            )
        )
    names = tuple(name.replace("_", " ") for name in PREDICTORS)
    head = ("model", "platform", "attention", "MoE", "routing", "b", "L", "from N")
    return Grid((*head, *names, "interval", "limited by", "rule"), tuple(rows))


def model_files(lookup: pl.DataFrame) -> list[str]:
    """Return the ids of the model files that rows of `lookup` are made from."""
    ids = lookup["from_ids"].explode().drop_nulls().unique().sort()
    return [identifier for identifier in ids if identifier.startswith(MODELS)]


def published(lookup: pl.DataFrame) -> Grid:
    """Return the paper's deployment table as computed, beside its print."""
    head = ("model", "platform", "b", "E", "k", "routing", "idle compute", "printed", "principle",
            "printed", "over", "limited by", "with the sources' own values", "why")  # fmt: skip
    rows = []
    for row in lookup.sort("row").to_dicts():
        top_k = None if row["experts"] is None else row["top_k"] or "any"
        given = (row["model_type"], row["platform"], row["batch"], row["experts"], top_k,
                 row["routing"])  # fmt: skip
        over = row["over_prediction"]
        rows.append(
            (
                *(Cell("-" if value is None else str(value)) for value in given),
                cell(_rounded(row["idle_compute"]), row["row_id"]),
                Cell(_rounded(row["printed_idle_compute"])),
                cell(_rounded(row["principle"]), row["row_id"]),
                Cell(_rounded(row["printed_principle"])),
                Cell("-" if over is None else f"{over:g}x"),
                Cell(row["tie"] or row["limiting_term"] or "-"),
                cell(row["refusal"] or _rounded(row["resolved"]), row["row_id"]),
                Cell(row["difference"] or "-"),
            )
        )
    return Grid(head, tuple(rows))


def changes(drift: pl.DataFrame) -> Grid:
    """Return the releases in which a granularity changed, with its rule."""
    rows = [
        (
            Cell(f"{row['package']} {row['previous']} to {row['version']}"),
            Cell(", ".join(str(part) for part in _layer(row))),
            Cell(row["platform"]),
            cell(row["change"], row["row_id"]),
            Cell(row["rule"] or "-"),
        )
        for row in drift.filter("differs").to_dicts()
    ]
    return Grid(("releases", "layer", "platform", "change", "rule"), tuple(rows))


def _layer(row: Row) -> list[object]:
    moe = row["module"] == "moe_ffn"
    return [row["model"], "MoE FFN" if moe else "attention", *([row["routing"]] if moe else [])]


def _value(row: Row) -> Cell:
    if row["unbounded"]:
        return cell("unbounded", row["row_id"])
    return cell(amount(row["n_max"], censored=row["censored"]), row["row_id"])


def _interval(row: Row) -> str:
    return "-" if row["low"] is None else f"{row['low']:g} to {row['high']:g}"


def _limiter(row: Row) -> str:
    if row["limiting_module"] is None:
        return row["refusal"] or "nothing up to there"
    return f"{row['limiting_module']}: {row['limiting_term']}"


def _rounded(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.0f}"
