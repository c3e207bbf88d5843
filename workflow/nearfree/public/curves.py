"""Imported curves as two frames: the setting of each curve, and its points."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.core.label import setting_key
from nearfree.core.scopes import IMPORTED
from nearfree.core.setting import FIELDS
from nearfree.errors import EvidenceError
from nearfree.log.events import LatencyImported
from nearfree.log.evidence import newest_takes, read_scope
from nearfree.log.names import Layout

TYPES = {str: pl.String(), int: pl.Int64(), bool: pl.Boolean()}
"""The column type of a field's values."""
_EVENT_FIELDS = (
    "source", "member", "member_sha256", "platform", "backend_version", "kernel", "distribution",
)  # fmt: skip
SETTINGS_SCHEMA: dict[str, Any] = {
    "curve": pl.Int64(),
    "source": pl.String(),
    "member": pl.String(),
    "member_sha256": pl.String(),
    "platform": pl.String(),
    "setting_key": pl.String(),
    **{name: TYPES[field.kind] for name, field in FIELDS.items()},
    "backend_version": pl.String(),
    "kernel": pl.String(),
    "distribution": pl.String(),
    "event_id": pl.String(),
}
POINTS_SCHEMA: dict[str, Any] = {
    "curve": pl.Int64(),
    "n": pl.Int64(),
    "latency_us": pl.Float64(),
    "context": pl.Int64(),
}


class ImportedCurves(Struct, frozen=True):
    """Curves T(N): `settings` has a row per curve, `points` a row per point; `curve` joins them.

    `context` of a point is null unless it varies along the curve.
    """

    settings: pl.DataFrame
    points: pl.DataFrame

    def of(self, settings: pl.DataFrame) -> "ImportedCurves":
        """Return the curves of some rows of `settings`."""
        points = self.points.join(
            settings.select("curve"), on="curve", how="semi", maintain_order="left"
        )
        return ImportedCurves(settings, points)


def read_curves(layout: Layout, stream: str | None = None) -> ImportedCurves:
    """Return the log's imported curves, of one stream or of all, in a fixed order.

    Only the newest take of a stream counts.

    Raises
    ------
    EvidenceError
        Nothing of that stream was imported.
    """
    newest = newest_takes(read_scope(layout, IMPORTED, stream=stream), LatencyImported)
    if not newest:
        raise EvidenceError(
            f"the log holds no imported curves{f' of {stream}' if stream else ''}",
            remedy="Run `nearfree import aiconfigurator` or `nearfree import curves FILE.csv`",
        )
    events = [event for take in newest for event in take.events_of(LatencyImported)]
    return curves_of((event.data, event.event_id) for event in events)


def curves_of(imported: Iterable[tuple[LatencyImported, str]]) -> ImportedCurves:
    """Return the frames of curves, given with their events' ids and numbered from 0."""
    pairs = list(imported)
    events = [event for event, _ in pairs]
    settings = [event.setting for event in events]
    columns: dict[str, list[Any]] = {
        "curve": list(range(len(events))),
        **{name: [getattr(event, name) for event in events] for name in _EVENT_FIELDS},
        "setting_key": [setting_key(setting) for setting in settings],
        **{name: [getattr(setting, name) for setting in settings] for name in FIELDS},
        "event_id": [event_id for _, event_id in pairs],
    }
    lengths = pl.Series("curve", [len(event.n) for event in events], dtype=pl.UInt32)
    contexts = (event.contexts or (None,) * len(event.n) for event in events)
    return ImportedCurves(
        settings=pl.DataFrame({name: columns[name] for name in SETTINGS_SCHEMA}, SETTINGS_SCHEMA),
        points=pl.DataFrame(
            {
                "curve": pl.int_range(len(events), dtype=pl.Int64, eager=True)
                .repeat_by(lengths)
                .explode(),
                "n": list(chain.from_iterable(event.n for event in events)),
                "latency_us": list(chain.from_iterable(event.latency_us for event in events)),
                "context": list(chain.from_iterable(contexts)),
            },
            POINTS_SCHEMA,
        ),
    )
