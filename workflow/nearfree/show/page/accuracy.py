"""The report's section on predictors: their scores, constants, calibrations and forms."""

from collections.abc import Callable, Iterable, Mapping

import polars as pl
from msgspec import structs

from nearfree.log.events import Event
from nearfree.show.page.sections import Column, Grid, Row, backed, grid, words

_KEYS = ["platform", "origin", "module", "predictor", "basis"]


def scores(rows: pl.DataFrame, epsilon: float) -> Grid:
    """Return the scores at a tolerance, by platform, module and predictor."""
    columns: dict[str, Column] = {
        "platform": lambda row: f"{row['platform']} ({row['origin']})",
        "module": "module",
        "predictor": lambda row: words(row["predictor"]),
        "facts": lambda row: words(row["basis"] or "-"),
        **_counts(lambda row: row["missed"]),
        **{head: backed(_share(name)) for head, name in _SHARES.items()},
        "sample": _sample,
        "refusal": _refusals,
    }
    return grid(rows.filter(epsilon=epsilon).sort(_KEYS).to_dicts(), columns)


def _counts(missed: Callable[[Row], int]) -> dict[str, Column]:
    """Return the columns that count settings, unanswered settings and hits."""
    return {
        "settings": backed("settings"),
        "refused or undecided": backed(
            lambda row: f"{missed(row)} ({missed(row) / row['settings']:.0%})"
        ),
        "hits": backed("hits"),
    }


_SHARES = {
    "hit": "hit_share",
    "x1.31": "within_1_31",
    "x2": "within_2",
    "covered": "covered",
    "width": "width",
}
_IMPORTED_SHARES = {
    "hit": "hit_share",
    "x1.31": "within_1_31",
    "x2": "within_2",
    "T error": "t_ratio_error",
    "covered": "interval_coverage",
    "width": "interval_width",
}
"""Columns of shares by heading, for measured and for imported curves."""


def _refusals(row: Row) -> str:
    """Return the first reason for a refusal, and the number of other reasons."""
    others = f" (and {row['refusals'] - 1} more)" if row["refusals"] > 1 else ""
    return f"{row['refusal']}{others}" if row["refusal"] else ""


def _sample(row: Row) -> str:
    if row["predictor"] != "work_model":
        return "nothing calibrated"
    if not row["answered"]:
        return "-"
    return "constants: in sample" if row["in_sample"] else "constants: out of sample"


def imported_scores(accuracy: pl.DataFrame) -> Grid:
    """Return the scores on imported curves by module, unseen GPUs first, with the noise ceiling."""
    columns: dict[str, Column] = {
        "GPUs": lambda row: "calibrated on" if row["seen"] else "unseen",
        "module": lambda row: " ".join(filter(None, (row["module"], row["routing"]))),
        "predictor": lambda row: words(row["predictor"]),
        **_counts(lambda row: row["settings"] - row["answered"] + row["undecided"]),
        **{head: backed(_share(name)) for head, name in _IMPORTED_SHARES.items()},
    }
    return grid(by_module(accuracy).to_dicts(), columns)


def by_module(accuracy: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the table `accuracy` that the page shows, in its order."""
    return accuracy.filter(grouping="module").sort("seen", "module", "routing", "predictor")


def constants(events: Mapping[str, Event]) -> Grid:
    """Return every calibrated constant: value, unit, meaning and its event."""
    rows = [
        structs.asdict(constant) | {"family": family, "row_id": event.event_id}
        for family, event in events.items()
        for constant in event.data.constants
    ]
    columns: dict[str, Column] = {
        "family": "family",
        "hypothesis": "hypothesis",
        "constant": "name",
        "value": backed(lambda row: f"{row['value']:.4g}"),
        "unit": "unit",
        "meaning": "meaning",
    }
    return grid(rows, columns)


def calibrations(events: Mapping[str, Event]) -> Grid:
    """Return the data that each family's constants were fitted to, and the band of T(N)."""
    rows = [
        structs.asdict(event.data) | {"family": family, "row_id": event.event_id}
        for family, event in events.items()
    ]
    columns: dict[str, Column] = {
        "family": "family",
        "calibrated on": lambda row: ", ".join(row["platforms"]),
        "curves": backed("curves"),
        "band of ln T(N)/T(baseline)": backed(lambda row: f"{row['band']:.3f}"),
        "selection": "selection",
        "from": lambda row: "; ".join(f"{n}, SHA-256 {d[:12]}" for n, d in row["files"].items()),
        "event": backed("row_id"),
    }
    return grid(rows, columns)


def forms(events: Iterable[Event]) -> Grid:
    """Return every candidate form of T(N), in the order of its event."""
    rows = [
        {"family": event.data.family, "form": text, "row_id": event.event_id}
        for event in events
        for text in event.data.tried
    ]
    head = "form: hit / within x1.31 / within x2 / error of T(N)"
    return grid(rows, {"family": "family", head: backed("form")})


def _share(name: str) -> Callable[[Row], str]:
    """Return the text of a share, a dash where it is unknown."""
    return lambda row: f"{row[name]:.3f}" if isinstance(row[name], float) else "-"
