"""Simulated takes: which they are, and that they share no results root with real ones."""

from msgspec import MsgspecError

from nearfree.core.plan import AskedPlan, ProfilePlan
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.events import RunStarted
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import decode

_HARDWARE = "hardware"


def is_simulated(layout: Layout, take: TakeName) -> bool | None:
    """Return whether a sealed take is simulated; None for one that no device was asked for."""
    for attempt in layout.attempts(take):
        try:
            with layout.segment(take, attempt).open("rb") as segment:
                started = decode(segment.readline()).data
        except (OSError, MsgspecError, NearfreeError):
            continue  # a killed attempt may hold nothing; whoever reads the take tells of damage
        if isinstance(started, RunStarted):
            asked = isinstance(started.plan, AskedPlan | ProfilePlan)
            return bool(getattr(started.plan, "curves", False)) if asked else None
    return None


def simulated(layout: Layout, scope: str) -> bool | None:
    """Return whether a scope's machine is simulated, None if nothing of it is sealed.

    One take tells: others of another kind are refused.
    """
    takes = sorted(layout.takes(scope), key=lambda take: take.stream != _HARDWARE)
    found = (is_simulated(layout, take) for take in takes)
    return next((each for each in found if each is not None), None)


def refuse_mixed(layout: Layout, *, as_simulated: bool) -> None:
    """Raise EvidenceError if a root holds takes of machines of the other kind."""
    for scope in sorted({take.scope for take in layout.takes()}):
        if simulated(layout, scope) not in (None, as_simulated):
            there, new = ("measured", "simulated") if as_simulated else ("simulated", "measured")
            raise EvidenceError(
                f"{layout.root} holds {there} takes of {scope}: what is {new} stays apart",
                remedy="Choose another results root with --results "
                "(for the workflow: --config results=FOLDER)",
            )
