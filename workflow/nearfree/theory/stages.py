"""The stages `predictions`, `validation` and `accuracy`: tables in, tables out."""

from collections.abc import Sequence

from nearfree.config import Config
from nearfree.events.names import Layout
from nearfree.public.curves import SCOPE as IMPORTED
from nearfree.tables.boundaries import BOUNDARIES
from nearfree.tables.platforms import PLATFORMS
from nearfree.tables.settings import SETTINGS
from nearfree.tables.store import read_table, seals_digest, write_table
from nearfree.theory.accuracy import ACCURACY, DRIFT, accuracy
from nearfree.theory.answers import Answerer
from nearfree.theory.made_from import calibrated, digests, read_from, tolerances_digest
from nearfree.theory.predictions import PREDICTIONS, predict
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
