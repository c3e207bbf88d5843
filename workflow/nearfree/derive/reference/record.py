"""Groups in the log: one event per kernel, whose curves are unpacked on demand."""

import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import polars as pl
from msgspec import MsgspecError, Struct

from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.groups import CURVE_COLUMNS, Coded, Constants, Group, Key, formats
from nearfree.derive.reference.kriging import COORDINATES, UNRELATED_FIELDS, coordinates
from nearfree.derive.reference.packing import (
    Packed,
    first_us_codes,
    first_us_of,
    packed_text,
    unpacked,
)
from nearfree.derive.reference.regimes import R0, REGIMES, GroupTimes, Reference
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Array, neutral
from nearfree.derive.work_model.gemm import GEMM
from nearfree.errors import EvidenceError
from nearfree.log.events import BandsCalibrated, Event, KernelReferenced, RegimeBand
from nearfree.log.evidence import read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout, parse_take
from nearfree.log.reader import read_bytes

STREAM = "kernels"
"""The log's stream of kernels' constants and curves."""


def referenced(
    group: Group, *, source: str, epsilon: float, members: Mapping[str, str]
) -> KernelReferenced:
    """Return the event of a group.

    `members` is the SHA-256 of each file of the source.
    """
    rows = group.curves
    lengths = group.counts.sum(axis=1)
    grids = [tuple(map(int, n[:end])) for n, end in zip(group.n, lengths, strict=True)]
    distinct_grids = list(dict.fromkeys(grids))
    names = {name: rows[name].unique(maintain_order=True).to_list()
             for name in ("backend_version", "routing", "member")}  # fmt: skip
    index_of = {
        column: {value: index for index, value in enumerate(values)}
        for column, values in names.items()
    }
    ends = tuple((coded.low, coded.high) for coded in (group.ratio, group.residual))
    packed = Packed(
        names["backend_version"],
        names["routing"],
        names["member"],
        {name: rows[name].to_list() for name in COORDINATES if rows[name].count()}
        | {name: rows[name].to_list() for name in UNRELATED_FIELDS if (rows[name] != 1).any()}
        | {name: [index_of[name][value] for value in rows[name]] for name in names}
        | {"grid": [distinct_grids.index(grid) for grid in grids]},
        [list(grid) for grid in distinct_grids],
        first_us_codes(group.first_us),
        group.ratio.codes,
        group.residual.codes,
    )
    return KernelReferenced(
        source=source,
        **group.key._asdict(),
        constants=group.values,
        epsilon=epsilon,
        curves=rows.height,
        points=int(lengths.sum()),
        members={name: members[name] for name in sorted(names["member"])},
        ratio=ends[0],
        residual=ends[1],
        packed=packed_text(packed, _scale(*ends)),
        stepped=True,
    )


_Ends = tuple[float, float]


def scale_of(kernel: KernelReferenced) -> float:
    """Return the codes of the residual per code of the ratio."""
    return _scale(kernel.ratio, kernel.residual)


def _scale(ratio: _Ends, residual: _Ends) -> float:
    return (ratio[1] - ratio[0]) / ((residual[1] - residual[0]) or 1.0)


def group_of(event: Event) -> Group:
    """Return the group of an event.

    Raises EvidenceError if its constants are those of another form, or its curves cannot be
    unpacked or differ in number from its fields.
    """
    data: KernelReferenced = event.data
    constants = constants_of(event).values
    try:
        packed = unpacked(data.packed, scale_of(data), stepped=data.stepped)
        return _group_from(data, constants, packed)
    except (
        MsgspecError, lzma.LZMAError, pl.exceptions.PolarsError,
        ValueError, IndexError, KeyError, TypeError,
    ) as error:  # fmt: skip
        raise EvidenceError(
            f"the curves of {event.event_id} cannot be unpacked: {error}",
            remedy="Check the log with `nearfree verify`",
        ) from error


def constants_of(event: Event) -> Constants:
    """Return a group's constants without unpacking its curves; raises as `group_of`."""
    data: KernelReferenced = event.data
    family = FAMILIES.get(data.family)
    if family is not None and {*data.constants} == {*family.hypotheses}:
        # Constants that are newer than the event are neutral.
        values = {name: neutral(family) | given for name, given in data.constants.items()}
        names = {constant.name for constant in family.constants}
        if all({*filled} == names for filled in values.values()):
            return Constants(key=_key(data), values=values, count=data.curves)
    raise EvidenceError(
        f"the constants of {event.event_id} are those of another form",
        remedy="Run `nearfree calibrate --kernels` with this version",
    )


def _key(data: KernelReferenced) -> Key:
    return Key(*(getattr(data, name) for name in Key._fields))


def _group_from(
    data: KernelReferenced, constants: dict[str, dict[str, float]], packed: Packed
) -> Group:
    columns = packed.columns
    numbers = [value for values in columns.values() for value in values if value is not None]
    absent: list[int | None] = [None] * len(columns["grid"])
    sizes = {name: columns.get(name, absent) for name in COORDINATES}
    sizes |= {name: columns.get(name, [1] * len(absent)) for name in UNRELATED_FIELDS}
    # A context may be 0, other sizes are 1 or more.
    least = [
        value + (name == "context")
        for name, values in sizes.items()
        for value in values
        if value is not None
    ]
    if min(numbers, default=0) < 0 or min(least, default=0) < 1:
        raise ValueError("a place or size is too small")
    grids = [packed.grids[index] for index in columns["grid"] if index is not None]
    if not all(grid and grid[0] > 0 and grid == sorted({*grid}) for grid in grids):
        raise ValueError("a grid does not rise from 1 or more")
    width = max(map(len, grids))
    n = np.array([grid + grid[-1:] * (width - len(grid)) for grid in grids], dtype=np.float64)
    counts = np.arange(width)[None, :] < np.array([len(grid) for grid in grids])[:, None]
    first_us = first_us_of(packed.first_us, data.curves)
    rows = _curve_rows(packed, sizes)
    heights = {rows.height, len(first_us), len(n), data.curves}
    if len(heights) > 1 or {len(packed.ratio), len(packed.residual), int(counts.sum())} != {
        data.points
    }:
        raise ValueError(f"its text does not hold {data.curves} curves of {data.points} points")
    if not np.isfinite(coordinates(data.family, rows, n).shape).all():
        raise ValueError("a curve has no shape")
    return Group(
        key=_key(data),
        values=constants,
        curves=rows,
        n=n,
        counts=counts,
        first_us=first_us,
        ratio=Coded(*data.ratio, packed.ratio),
        residual=Coded(*data.residual, packed.residual),
    )


def _curve_rows(packed: Packed, sizes: Mapping[str, Sequence[int | None]]) -> pl.DataFrame:
    """Return CURVE_COLUMNS of packed curves, from their sizes and their indices into texts."""
    texts: dict[str, Sequence[str | None]] = {
        "backend_version": packed.releases,
        "routing": packed.routings,
        "member": packed.members,
    }
    frame: dict[str, Sequence[int | str | None]] = {**sizes} | {
        name: [values[index] for index in packed.columns[name] if index is not None]
        for name, values in texts.items()
    }
    types = {name: pl.String if name in texts else pl.Int64 for name in CURVE_COLUMNS}
    return pl.DataFrame(frame, schema_overrides=types).select(CURVE_COLUMNS)


class Recorded(Mapping[Key, Group]):
    """The groups of a log by their keys; each is unpacked once, at its first use."""

    def __init__(self, events: Mapping[Key, Event]) -> None:
        self.events = dict(events)
        self._groups: dict[Key, Group] = {}

    def __getitem__(self, key: Key) -> Group:
        """Return a group; KeyError if there is none of that key."""
        if key not in self._groups:
            self._groups[key] = group_of(self.events[key])
        return self._groups[key]

    def constants(self, key: Key) -> Constants:
        """Return a group's constants; its curves stay packed."""
        return constants_of(self.events[key])

    def __iter__(self) -> Iterator[Key]:
        """Return an iterator over the keys, in the log's order."""
        return iter(self.events)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.events)


_Band = tuple[str, str, str, str]
"""Regime, module, formats and routing."""


def band_key(band: RegimeBand) -> _Band:
    """Return the key of a band: regime, module, formats and routing."""
    return band.regime, band.module, band.formats, band.routing


class RecordedReference(Struct, frozen=True, kw_only=True):
    """The newest kernels on record: their groups and events, and the bands of regimes."""

    reference: Reference
    events: Mapping[Key, Event]
    bands: Mapping[_Band, RegimeBand]
    bands_events: tuple[str, ...] = ()
    """The events of the bands."""

    def bands_of(self, regimes: Sequence[str], questions: pl.DataFrame) -> Array:
        """Return the error band of log(T(N) / T(baseline)) of each question in its regime."""
        widest = max((record.band for record in self.bands.values()), default=1.0)
        kinds = rows_of_bands(questions)
        records = (self.band(*each) for each in zip(regimes, kinds, strict=True))
        return np.array([record.band if record else widest for record in records])

    def band(self, regime: str, kind: tuple[str, str, str]) -> RegimeBand | None:
        """Return the band of a kind of question in a regime, None for a module without bands.

        A kind without a band in its regime has that of the next weaker regime. A kind without any
        band has the widest band of its formats, else that of formats with the same activations and
        other weights or cache, else that of its module. A dense product in R0 has no like formats:
        public curves of other weights are of other kernels. `kind` is module, formats and routing,
        as `rows_of_bands` returns them.
        """
        module, formats, _ = kind
        weaker_regimes = REGIMES[REGIMES.index(regime) :: -1]
        exact = (self.bands.get((weaker, *kind)) for weaker in weaker_regimes)
        activations, separator, _ = formats.partition("/")
        has_like = (regime, module) != (R0, GEMM.name)

        def difference(other: str) -> int:
            same_rows = bool(separator) and other.startswith(activations + separator)
            return 0 if other == formats else 1 if same_rows and has_like else 2

        near = (
            max((record for key, record in self.bands.items() if key[:2] == (weaker, module)
                 and difference(key[2]) <= most), key=lambda record: record.band, default=None)
            for most in range(3) for weaker in weaker_regimes
        )  # fmt: skip
        return next(filter(None, chain(exact, near)), None)

    def events_of(self, times: GroupTimes) -> list[list[str]]:
        """Return the events behind each row: those of its groups, and of bands."""
        events = [self.events[group.key].event_id for group in times.groups]
        return [[*events, *self.bands_events]] * len(times.regime)


def rows_of_bands(rows: pl.DataFrame) -> list[tuple[str, str, str]]:
    """Return the kind of each question, by which bands are kept: module, formats, and routing."""
    kinds = rows.select(pl.col("module").replace("dense_ffn", "gemm"), *formats(), "routing")
    return [
        (module, "/".join(filter(None, formats)), (routing or "").partition(":")[0])
        for module, *formats, routing in kinds.iter_rows()
    ]


def newest_kernels(layout: Layout) -> tuple[dict[Key, Event], dict[_Band, Event]]:
    """Return the newest event of each kernel and of each band, over all takes.

    A take holds only the kernels that differ from those on record, and the bands of its modules.
    """
    unordered = read_scope(layout, PUBLIC, stream=STREAM, only=(KernelReferenced, BandsCalibrated))
    takes = sorted(unordered, key=lambda take: take.order)
    kernels = {
        _key(event.data): event for take in takes for event in take.events_of(KernelReferenced)
    }
    bands = {
        band_key(band): event
        for take in takes
        for event in take.events_of(BandsCalibrated)
        for band in event.data.bands
    }
    return kernels, bands


def recorded_kernels(layout: Layout) -> list[str]:
    """Return the events of the newest kernels and bands."""
    kernels, bands = newest_kernels(layout)
    event_ids = (event.event_id for event in (*kernels.values(), *bands.values()))
    return list(dict.fromkeys(event_ids))


def kernel_takes(layout: Layout) -> dict[str, str]:
    """Return the takes of the newest kernels and bands, with the SHA-256 of their seals."""
    return takes_of(layout, recorded_kernels(layout))


def takes_of(layout: Layout, event_ids: Iterable[str]) -> dict[str, str]:
    """Return the takes of events, with the SHA-256 of their seals."""
    takes = {event_id.rpartition(".")[0] for event_id in event_ids}
    return {take: sha256(read_bytes(layout.seal(parse_take(take)))) for take in sorted(takes)}


def recorded_reference(layout: Layout, chips: Mapping[str, Chip]) -> RecordedReference | None:
    """Return the kernels on record, None if there are none."""
    kernels, bands = newest_kernels(layout)
    if not kernels:
        return None
    groups = Recorded(kernels)
    return RecordedReference(
        reference=Reference(groups, chips, groups.constants),
        events=groups.events,
        bands={
            key: band
            for key, event in bands.items()
            for band in event.data.bands
            if band_key(band) == key
        },
        bands_events=tuple(dict.fromkeys(event.event_id for event in bands.values())),
    )
