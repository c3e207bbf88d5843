"""The stage `boundaries`: from latencies and printed values to N_max at each tolerance."""

from collections.abc import Sequence

from nearfree.derive.tables.boundaries import (
    BOUNDARIES,
    SENSITIVITY,
    measured_rows,
    published_rows,
    sensitivity_rows,
)
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.store import read_table, seals_digest, table_digest, write_table
from nearfree.log.events import BoundaryPublished
from nearfree.log.evidence import read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout

BOUNDED = (BOUNDARIES, SENSITIVITY)
PAPER = 0.2
"""The paper's headline tolerance."""


def bound(
    layout: Layout, scope: str, tolerances: Sequence[float], *, epsilon: float = PAPER
) -> None:
    """Write the tables of boundaries and of their sensitivity at the given tolerances.

    Parameters
    ----------
    epsilon
        The headline tolerance, at which noise is judged.
    """
    latency = read_table(layout, scope, LATENCY, without=["from_ids"])
    takes = read_scope(layout, scope, only=(BoundaryPublished,))
    known = {event.event_id for take in takes for event in take.events} | set(latency["row_id"])
    rows = [*measured_rows(latency, tolerances), *published_rows(takes, tolerances)]
    frame = BOUNDARIES.build(BOUNDARIES.frame(rows), known)
    made_from = {
        "latency": table_digest(layout, scope, LATENCY),
        "config/config.yaml:tolerances": sha256(repr(tuple(tolerances)).encode()),
        **seals_digest(layout, scope),
    }
    write_table(layout, scope, BOUNDARIES, frame, made_from)
    moved = SENSITIVITY.frame(sensitivity_rows(frame, latency, epsilon))
    known = {*frame["row_id"], *latency["row_id"]}
    made_from = {
        "boundaries": table_digest(layout, scope, BOUNDARIES),
        "latency": made_from["latency"],
        "config/config.yaml:epsilon": sha256(repr(epsilon).encode()),
    }
    write_table(layout, scope, SENSITIVITY, SENSITIVITY.build(moved, known), made_from)
