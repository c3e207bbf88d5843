"""Calibrated constants: fitted to curves, stored in the log, and read back."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from nearfree.core.scopes import PUBLIC
from nearfree.derive.work_model.families import CALIBRATED_DTYPES, FAMILIES
from nearfree.derive.work_model.family import Family, Fitted, neutral, without_neutral
from nearfree.derive.work_model.fit import band, fit
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated, Event
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout

if TYPE_CHECKING:
    from nearfree.derive.work_model.samples import Sample

STREAM = "constants"
"""The log's stream of constants."""
COLLECTIVE_STREAM = "collective_constants"
"""The log's stream of the constants of collectives, which are calibrated separately."""


def calibrated(
    samples: "Mapping[str, Sample]",
    *,
    platforms: Sequence[str],
    epsilon: float,
    files: Mapping[str, str],
) -> list[ConstantsCalibrated]:
    """Return one event per family, with constants fitted to the family's curves.

    `files` are those that the curves were imported from: SHA-256 by name.
    """
    return [
        _event(without_neutral(FAMILIES[name]), samples[name], platforms, epsilon, files)
        for name in FAMILIES
        if name in samples
    ]


def _event(
    family: Family,
    sample: "Sample",
    platforms: Sequence[str],
    epsilon: float,
    files: Mapping[str, str],
) -> ConstantsCalibrated:
    from nearfree.derive.work_model.samples import SELECTIONS
    from nearfree.derive.work_model.tried_forms import TRIED

    members = sample.curves.select("member", "member_sha256").unique().sort(pl.all())
    fitted = fit(family, sample.measured, epsilon)
    groups = sample.curves["platform"]
    if groups.n_unique() == 1:
        groups = sample.curves["backend_version"]
    return ConstantsCalibrated(
        family=family.name,
        dtypes=CALIBRATED_DTYPES,
        constants=tuple(
            constant.calibrated(hypothesis, fitted.values[hypothesis][constant.name])
            for hypothesis in family.hypotheses
            for constant in family.constants
        ),
        band=band(family, sample.measured, groups.to_list(), epsilon),
        epsilon=epsilon,
        platforms=tuple(platforms),
        selection=SELECTIONS[family.name],
        curves=sample.curves.height,
        rows_sha256=sample.rows_sha256,
        files=dict(files),
        members=dict(members.iter_rows()),
        tried=TRIED[family.name],
    )


def recorded_constants(layout: Layout, *, collectives: bool = True) -> dict[str, Event]:
    """Return each family's newest event for the calibrated element types.

    Parameters
    ----------
    collectives
        Whether to include collectives, which were calibrated on other platforms.

    Raises
    ------
    EvidenceError
        The constants of a family are those of an older form.
    """
    streams = (STREAM, COLLECTIVE_STREAM) if collectives else (STREAM,)
    scopes = (read_scope(layout, PUBLIC, stream=stream) for stream in streams)
    takes = sorted((take for takes in scopes for take in takes), key=lambda take: take.order)
    events = {event.data.family: event for take in takes for event in calibrations(take)}
    for name, event in events.items():
        family = FAMILIES.get(name)
        recorded = {(constant.hypothesis, constant.name) for constant in event.data.constants}
        allowed = {
            (hypothesis, constant.name): constant.neutral
            for hypothesis in (family.hypotheses if family else ())
            for constant in (family.constants if family else ())
        }
        required = {key for key, neutral in allowed.items() if neutral is None}
        if not required <= recorded <= {*allowed}:
            raise EvidenceError(
                f"the constants of {name} in {event.event_id} are those of another form",
                remedy="Run `nearfree calibrate` with this version",
            )
    return events


def calibrations(take: Take) -> list[Event]:
    """Return the events of a take with constants for the calibrated element types.

    The data of each is a ConstantsCalibrated.
    """
    events = take.events_of(ConstantsCalibrated)
    return [event for event in events if {*CALIBRATED_DTYPES} <= {*event.data.dtypes}]


def fitted(event: ConstantsCalibrated) -> Fitted:
    """Return an event's constants for its family's form."""
    family = FAMILIES[event.family]
    values: dict[str, dict[str, float]] = {name: neutral(family) for name in family.hypotheses}
    for constant in event.constants:
        values[constant.hypothesis][constant.name] = constant.value
    return Fitted(family=event.family, values=values, band=event.band)
