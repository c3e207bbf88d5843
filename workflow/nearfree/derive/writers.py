"""The stages `predictions`, `validation` and `accuracy`: tables in, tables out."""

from collections.abc import Sequence

from nearfree.config.files import Config
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.predictions import PREDICTIONS, predict
from nearfree.derive.predict.provenance import (
    calibrated,
    digests,
    read_from,
    tolerances_digest,
)
from nearfree.derive.score.accuracy import ACCURACY, DRIFT, accuracy
from nearfree.derive.score.composition import COMPOSITION, compose
from nearfree.derive.score.scores import SCORES, score_rows
from nearfree.derive.score.validation import VALIDATION, validate
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import read_table, seals_digest, write_table
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.log.events import LatencyMeasured, PredictionRecorded
from nearfree.log.evidence import Take, open_takes, read_scope
from nearfree.log.names import Layout
from nearfree.public.curves import SCOPE as IMPORTED


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
    takes = read_scope(layout, scope, only=(PredictionRecorded,))
    rows = predict(settings, platforms, config.datasheets(scope), answerer, tolerances, takes=takes)
    constants = calibrated(layout)
    recorded = {event.event_id for take in takes for event in take.of(PredictionRecorded)}
    known = {*settings["row_id"], *platforms["row_id"], *constants.values(), *recorded}
    made_from = (
        digests(layout, scope, SETTINGS, PLATFORMS)
        | seals_digest(layout, scope)
        | tolerances_digest(tolerances)
        | read_from(layout)
    )
    write_table(layout, scope, PREDICTIONS, PREDICTIONS.build(rows, known), made_from)


def write_validation(layout: Layout, scope: str) -> None:
    """Write a scope's validation, how the boundaries of its models compose, and the scores."""
    boundaries = read_table(layout, scope, BOUNDARIES)
    predictions = read_table(layout, scope, PREDICTIONS)
    known = {*boundaries["row_id"], *predictions["row_id"]}
    frame = VALIDATION.build(validate(boundaries, predictions), known)
    made_from = digests(layout, scope, BOUNDARIES, PREDICTIONS)
    write_table(layout, scope, VALIDATION, frame, made_from)
    shares = read_table(layout, scope, TIME_SHARES)
    dated = open_takes(layout, scope, only=(LatencyMeasured, PredictionRecorded))
    rows = compose(frame, boundaries, predictions, shares, (Take(*each) for each in dated))
    known = {*frame["row_id"], *known, *shares["row_id"]}
    composition = COMPOSITION.build(COMPOSITION.frame(rows), known)
    write_table(layout, scope, COMPOSITION, composition, made_from | seals_digest(layout, scope))
    counted = SCORES.build(
        score_rows(frame, composition), {*frame["row_id"], *composition["row_id"]}
    )
    write_table(layout, scope, SCORES, counted, digests(layout, scope, VALIDATION, COMPOSITION))


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
