"""Calibrated constants: made from curves, kept in the log, read back."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from nearfree.core.scopes import PUBLIC
from nearfree.derive.work_model.families import CALIBRATED_DTYPES, FAMILIES
from nearfree.derive.work_model.family import Family, Fitted, neutral, shared
from nearfree.derive.work_model.fit import band, fit
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated, Event
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout

if TYPE_CHECKING:
    from nearfree.derive.work_model.samples import Sample

STREAM = "constants"
"""Where constants stand in the log."""
COLLECTIVE_STREAM = "collective_constants"
"""Where those of collectives do, which are calibrated by themselves."""


def calibrated(
    found: "Mapping[str, Sample]",
    *,
    platforms: Sequence[str],
    epsilon: float,
    files: Mapping[str, str],
) -> list[ConstantsCalibrated]:
    """Return one event a family, its constants fitted to the family's curves.

    Parameters
    ----------
    files
        What the curves were imported from, by name and SHA-256.
    """
    return [
        _event(shared(FAMILIES[name]), found[name], platforms, epsilon, files)
        for name in FAMILIES
        if name in found
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
    """Return the newest event of each family that holds for the calibrated element types.

    Parameters
    ----------
    collectives
        Whether those of collectives are among them, which were calibrated on other platforms.

    Raises
    ------
    EvidenceError
        The constants of a family are not those of its form any more.
    """
    streams = (STREAM, COLLECTIVE_STREAM) if collectives else (STREAM,)
    every = (read_scope(layout, PUBLIC, stream=stream) for stream in streams)
    takes = sorted((take for takes in every for take in takes), key=lambda take: take.order)
    events = {event.data.family: event for take in takes for event in calibrations(take)}
    for name, event in events.items():
        family = FAMILIES.get(name)
        named = {(each.hypothesis, each.name) for each in event.data.constants}
        asked = {
            (hypothesis, each.name): each.neutral
            for hypothesis in (family.hypotheses if family else ())
            for each in (family.constants if family else ())
        }
        needed = {key for key, neutral in asked.items() if neutral is None}
        if not needed <= named <= {*asked}:
            raise EvidenceError(
                f"the constants of {name} in {event.event_id} are those of another form",
                remedy="Run `nearfree calibrate` with this version",
            )
    return events


def calibrations(take: Take) -> list[Event]:
    """Return the events of a take whose constants hold for the calibrated element types.

    The data of each is a ConstantsCalibrated.
    """
    events = take.of(ConstantsCalibrated)
    return [event for event in events if {*CALIBRATED_DTYPES} <= {*event.data.dtypes}]


def fitted(event: ConstantsCalibrated) -> Fitted:
    """Return the constants of an event as they enter the form."""
    family = FAMILIES[event.family]
    values: dict[str, dict[str, float]] = {name: neutral(family) for name in family.hypotheses}
    for each in event.constants:
        values[each.hypothesis][each.name] = each.value
    return Fitted(family=event.family, values=values, band=event.band)
