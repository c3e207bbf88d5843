"""The stages `predictions` and `validation`: tables in, tables out."""

from nearfree.events.names import Layout
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.platforms import PLATFORMS
from nearfree.tables.schema import Table
from nearfree.tables.settings import SETTINGS
from nearfree.tables.store import read_table, table_digest, write_table
from nearfree.theory.predictions import PREDICTIONS, predict
from nearfree.theory.validation import VALIDATION, validate


def write_predictions(layout: Layout, scope: str) -> None:
    """Write a scope's predictions."""
    settings = read_table(layout, scope, SETTINGS)
    platforms = read_table(layout, scope, PLATFORMS)
    known = {*settings["row_id"], *platforms["row_id"]}
    frame = PREDICTIONS.build(predict(settings, platforms), known)
    write_table(layout, scope, PREDICTIONS, frame, _digests(layout, scope, SETTINGS, PLATFORMS))


def write_validation(layout: Layout, scope: str) -> None:
    """Write a scope's validation."""
    boundaries = read_table(layout, scope, BOUNDARIES)
    predictions = read_table(layout, scope, PREDICTIONS)
    known = {*boundaries["row_id"], *predictions["row_id"]}
    frame = VALIDATION.build(validate(boundaries, predictions), known)
    made_from = _digests(layout, scope, BOUNDARIES, PREDICTIONS)
    write_table(layout, scope, VALIDATION, frame, made_from)


def _digests(layout: Layout, scope: str, *tables: Table) -> dict[str, str]:
    return {table.name: table_digest(layout, scope, table) for table in tables}
