"""The report's section on predictors: their scores, constants, calibrations and forms."""

from collections.abc import Iterable, Mapping

import polars as pl

from nearfree.log.events import Event
from nearfree.show.page.sections import Cell, Grid, Row, cell

_SCORED = ("settings", "refused or undecided", "hits", "hit", "x1.31", "x2")
_STATED = ("covered", "width")
_TOLD = ("platform", "module", "predictor", "facts", *_SCORED, *_STATED, "sample", "refusal")
_GROUPED = ("GPUs", "module", "predictor", *_SCORED, "T error", *_STATED)
_KEYS = ["platform", "origin", "module", "predictor", "basis"]


def scores(counted: pl.DataFrame, epsilon: float) -> Grid:
    """Return scores by platform, module and predictor.

    Parameters
    ----------
    counted
        Rows of the table `scores`, of all scopes.
    """
    rows = []
    for row in counted.filter(epsilon=epsilon).sort(_KEYS).to_dicts():
        settings, row_id = row["settings"], row["row_id"]
        rows.append(
            (
                Cell(f"{row['platform']} ({row['origin']})"),
                Cell(row["module"]),
                Cell(_words(row["predictor"])),
                Cell(_words(row["basis"] or "-")),
                cell(settings, row_id),
                cell(f"{row['missed']} ({row['missed'] / settings:.0%})", row_id),
                cell(row["hits"], row_id),
                *(cell(_share(row[name]), row_id) for name in _SHARES),
                Cell(_sample(row)),
                Cell(_refusals(row)),
            )
        )
    return Grid(_TOLD, tuple(rows))


_SHARES = ("hit_share", "within_1_31", "within_2", "covered", "width")


def _refusals(row: Row) -> str:
    """Return the first reason for a refusal, and how many others there are."""
    others = f" (and {row['refusals'] - 1} more)" if row["refusals"] > 1 else ""
    return f"{row['refusal']}{others}" if row["refusal"] else ""


def _sample(row: Row) -> str:
    if row["predictor"] != "work_model":
        return "nothing calibrated"
    if not row["answered"]:
        return "-"
    return "constants: in sample" if row["in_sample"] else "constants: out of sample"


def imported_scores(accuracy: pl.DataFrame) -> Grid:
    """Return the scores on imported curves by module, unseen GPUs first, the ceiling among them.

    Parameters
    ----------
    accuracy
        Rows of that table.
    """
    rows = []
    for row in by_module(accuracy).to_dicts():
        missed = row["settings"] - row["answered"] + row["undecided"]
        shares = ("hit_share", "within_1_31", "within_2", "t_ratio_error", "interval_coverage")
        rows.append(
            (
                Cell("calibrated on" if row["seen"] else "unseen"),
                Cell(" ".join(filter(None, (row["module"], row["routing"])))),
                Cell(_words(row["predictor"])),
                cell(row["settings"], row["row_id"]),
                cell(f"{missed} ({missed / row['settings']:.0%})", row["row_id"]),
                cell(row["hits"], row["row_id"]),
                *(cell(_share(row[name]), row["row_id"]) for name in shares),
                cell(_share(row["interval_width"]), row["row_id"]),
            )
        )
    return Grid(_GROUPED, tuple(rows))


def by_module(accuracy: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `accuracy` that the page shows, in its order."""
    return accuracy.filter(grouping="module").sort("seen", "module", "routing", "predictor")


def constants(events: Mapping[str, Event]) -> Grid:
    """Return every calibrated constant: value, unit, meaning and the event that holds it."""
    rows = [
        (
            Cell(family),
            Cell(constant.hypothesis),
            Cell(constant.name),
            _of(event, f"{constant.value:.4g}"),
            Cell(constant.unit),
            Cell(constant.meaning),
        )
        for family, event in events.items()
        for constant in event.data.constants
    ]
    return Grid(("family", "hypothesis", "constant", "value", "unit", "meaning"), tuple(rows))


def calibrations(events: Mapping[str, Event]) -> Grid:
    """Return the data that each family's constants were fitted to, and the band of T(N)."""
    rows = [
        (
            Cell(family),
            Cell(", ".join(event.data.platforms)),
            _of(event, str(event.data.curves)),
            _of(event, f"{event.data.band:.3f}"),
            Cell(event.data.selection),
            Cell("; ".join(f"{n}, SHA-256 {d[:12]}" for n, d in event.data.files.items())),
            _of(event, event.event_id),
        )
        for family, event in events.items()
    ]
    head = ("family", "calibrated on", "curves", "band of ln T(N)/T(baseline)", "selection")
    return Grid((*head, "from", "event"), tuple(rows))


def forms(events: Iterable[Event]) -> Grid:
    """Return every form of T(N) that was tried, in the order of its event."""
    rows = [
        (Cell(event.data.family), _of(event, text)) for event in events for text in event.data.tried
    ]
    return Grid(("family", "form: hit / within x1.31 / within x2 / error of T(N)"), tuple(rows))


def calibrated_on(events: Mapping[str, Event]) -> str:
    """Return the platforms that any constant was calibrated on, as text."""
    return ", ".join(sorted({name for event in events.values() for name in event.data.platforms}))


def _of(event: Event, text: str) -> Cell:
    return cell(text, event.event_id)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _share(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
