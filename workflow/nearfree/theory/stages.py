"""The stages `predictions`, `validation` and `accuracy`: tables in, tables out."""

from collections.abc import Sequence

from nearfree.config import Config
from nearfree.events.line import sha256
from nearfree.events.names import Layout
from nearfree.public.curves import SCOPE as IMPORTED
from nearfree.sources.record import SCOPE as SOURCES
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.platforms import PLATFORMS
from nearfree.tables.schema import Table
from nearfree.tables.settings import SETTINGS
from nearfree.tables.store import read_table, seals_digest, table_digest, write_table
from nearfree.theory.accuracy import ACCURACY, DRIFT, accuracy
from nearfree.theory.answers import Answerer
from nearfree.theory.predictions import PREDICTIONS, predict
from nearfree.theory.times.constants import recorded_constants
from nearfree.theory.validation import VALIDATION, validate


def write_predictions(
    layout: Layout, scope: str, config: Config, tolerances: Sequence[float]
) -> None:
    """Write a scope's predictions, by the rules and constants of the log alone.

    Parameters
    ----------
    config
        The platforms.
    """
    settings = read_table(layout, scope, SETTINGS)
    platforms = read_table(layout, scope, PLATFORMS)
    answerer = Answerer(layout, config, offline=True, log_alone=True)
    rows = predict(settings, platforms, config.datasheets(scope), answerer, tolerances)
    constants = calibrated(layout)
    known = {*settings["row_id"], *platforms["row_id"], *constants.values()}
    made_from = (
        digests(layout, scope, SETTINGS, PLATFORMS)
        | tolerances_digest(tolerances)
        | read_from(layout)
    )
    write_table(layout, scope, PREDICTIONS, PREDICTIONS.build(rows, known), made_from)


def write_validation(layout: Layout, scope: str) -> None:
    """Write a scope's validation."""
    boundaries = read_table(layout, scope, BOUNDARIES)
    predictions = read_table(layout, scope, PREDICTIONS)
    known = {*boundaries["row_id"], *predictions["row_id"]}
    frame = VALIDATION.build(validate(boundaries, predictions), known)
    made_from = digests(layout, scope, BOUNDARIES, PREDICTIONS)
    write_table(layout, scope, VALIDATION, frame, made_from)


def write_accuracy(layout: Layout, config: Config, epsilon: float) -> None:
    """Write how predictors do on the imported curves, and how boundaries moved between versions.

    Raises
    ------
    EvidenceError
        Nothing is imported.
    """
    answerer = Answerer(layout, config, offline=True, log_alone=True)
    scored, moved, known = accuracy(layout, answerer, epsilon)
    made_from = seals_digest(layout, IMPORTED) | tolerances_digest([epsilon]) | read_from(layout)
    write_table(layout, IMPORTED, ACCURACY, ACCURACY.build(scored, known), made_from)
    write_table(layout, IMPORTED, DRIFT, DRIFT.build(moved, known), made_from)


def read_from(layout: Layout) -> dict[str, str]:
    """Return the rules and constants that answers rest on, by name and digest."""
    return seals_digest(layout, SOURCES) | {
        f"constants/{family}": sha256(event_id.encode())
        for family, event_id in calibrated(layout).items()
    }


def calibrated(layout: Layout) -> dict[str, str]:
    """Return the event of each family's constants."""
    return {name: event.event_id for name, event in recorded_constants(layout).items()}


def tolerances_digest(tolerances: Sequence[float]) -> dict[str, str]:
    """Return tolerances as an input, by name and digest."""
    return {"config/config.yaml:tolerances": sha256(repr(tuple(tolerances)).encode())}


def digests(layout: Layout, scope: str, *tables: Table) -> dict[str, str]:
    """Return tables as inputs, by name and digest."""
    return {table.name: table_digest(layout, scope, table) for table in tables}
