"""The constants of engines' steps in the log."""

from msgspec import Struct

from nearfree.core.scopes import PUBLIC
from nearfree.derive.engine_step.form import CONSTANTS, StepConstants
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated, Event
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout

STREAM = "engine_step"
"""The stream of the log that holds them."""
FAMILY = "engine_step_"
"""Prefix of the family's name, before the engine's name."""
HYPOTHESIS = "serving"
_FIRST = {"layer_us", "step_us", "request_us"}
"""The constants of all forms; those of later forms are 0 in a take of an earlier one."""


class RecordedStep(Struct, frozen=True, kw_only=True):
    """The constants of an engine's step, the band of log T, and the event that recorded them."""

    constants: StepConstants
    band: float
    event: Event

    @property
    def text(self) -> str:
        """The steps that the constants were calibrated on, as answers print it."""
        data: ConstantsCalibrated = self.event.data
        return f"{data.family} on {data.curves} published steps of {data.selection}"


def recorded_steps(layout: Layout) -> dict[str, RecordedStep]:
    """Return the newest constants by engine; engines without a fit are absent.

    Raises EvidenceError if they are the constants of another form.
    """
    takes = sorted(read_scope(layout, PUBLIC, stream=STREAM), key=lambda take: take.order)
    events = {
        event.data.family: event for take in takes for event in take.events_of(ConstantsCalibrated)
    }
    return {name.removeprefix(FAMILY): _step(event) for name, event in events.items()}


def _step(event: Event) -> RecordedStep:
    data: ConstantsCalibrated = event.data
    values = {constant.name: constant.value for constant in data.constants}
    if not _FIRST <= {*values} <= {constant.name for constant in CONSTANTS}:
        raise EvidenceError(
            f"the constants of {data.family} in {event.event_id} are those of another form",
            remedy="Run `nearfree calibrate --steps` with this version",
        )
    return RecordedStep(constants=StepConstants(**values), band=data.band, event=event)
