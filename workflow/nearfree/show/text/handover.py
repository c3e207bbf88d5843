"""A sentence on CPUs that a virtual machine's host moved while forwards ran on several of them."""

from collections.abc import Iterable, Iterator

from nearfree.core.boundary import median
from nearfree.hardware.handover import APART_NS
from nearfree.log.events import DecodeMeasured, LatencyMeasured
from nearfree.log.evidence import Take


def handover_text(takes: Iterable[Take]) -> Iterator[str]:
    """Yield in how many forwards and decodes the CPUs were apart; nothing if in none."""
    forwards: list[float | None] = []
    decodes: list[float | None] = []
    for take in takes:
        for event in take.events_of(LatencyMeasured):
            forwards += event.data.handover_ns or ()
        decodes += [event.data.handover_ns for event in take.events_of(DecodeMeasured)]
    known_ns = [trip_ns for trip_ns in (*forwards, *decodes) if trip_ns is not None]
    if not known_ns:
        return
    shortest_ns = min(known_ns)
    counts = [
        f"{apart} of {len(trips_ns)} {name}"
        for name, trips_ns in (("forwards", forwards), ("decodes", decodes))
        if (apart := sum((trip_ns or 0) > shortest_ns + APART_NS for trip_ns in trips_ns))
    ]
    if counts:
        close_ns = median([trip for trip in known_ns if trip <= shortest_ns + APART_NS])
        yield (
            f"this machine's host moved its CPUs: a value took {close_ns:.0f} ns from one to "
            f"another and back, but up to {max(known_ns):.0f} in {' and '.join(counts)}"
        )
