"""Calibrated constants as the log holds them, and the files that they are fitted to."""

from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.derive.work_model.families import CALIBRATED_DTYPES, FAMILIES
from nearfree.derive.work_model.family import Fitted, neutral
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated, Event
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout

STREAM = "constants"
"""The log's stream of constants."""
COLLECTIVE_STREAM = "collective_constants"
"""The log's stream of the constants of collectives, which are calibrated separately."""


def imported_files(layout: Layout, stream: str) -> dict[str, str]:
    """Return the files of a stream's newest import, SHA-256 by name; EvidenceError without one."""
    takes = read_scope(layout, IMPORTED, stream=stream)
    if not takes:
        raise EvidenceError(
            f"the log holds no imported curves of {stream}",
            remedy="Run `nearfree import aiconfigurator`, or name another --stream",
        )
    return dict(max(takes, key=lambda take: take.order).started.data.plan.files)


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
