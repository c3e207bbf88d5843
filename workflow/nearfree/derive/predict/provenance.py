"""What tables of predictions are made from, by name and digest, as their manifests say it."""

from collections.abc import Sequence

from nearfree.core.scopes import SOURCES
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import seals_digest, table_digest
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.log.line import sha256
from nearfree.log.names import Layout


def read_from(layout: Layout) -> dict[str, str]:
    """Return the rules and constants that answers rest on, by name and digest."""
    return seals_digest(layout, SOURCES) | {
        f"constants/{family}": sha256(event_id.encode())
        for family, event_id in calibrated(layout).items()
    }


def calibrated(layout: Layout) -> dict[str, str]:
    """Return the event of each family's constants."""
    return {name: event.event_id for name, event in recorded_constants(layout).items()}


def tolerances_digest(tolerances: Sequence[float]) -> dict[str, str]:
    """Return tolerances as an input, by name and digest."""
    return {"config/config.yaml:tolerances": sha256(repr(tuple(tolerances)).encode())}


def digests(layout: Layout, scope: str, *tables: Table) -> dict[str, str]:
    """Return tables as inputs, by name and digest."""
    return {table.name: table_digest(layout, scope, table) for table in tables}
