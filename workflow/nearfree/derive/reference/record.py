"""Groups in the log: one event a kernel, whose curves are unpacked where they are asked for."""

import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import polars as pl
from msgspec import MsgspecError, Struct

from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.groups import CURVE_COLUMNS, Coded, Constants, Group, Key, formats
from nearfree.derive.reference.kriging import APART, COORDINATES, coordinates
from nearfree.derive.reference.packing import Packed, first_us_of, opened, squeezed, told
from nearfree.derive.reference.regimes import REGIMES, Known, Reference
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Array, neutral
from nearfree.errors import EvidenceError
from nearfree.log.events import BandsCalibrated, Event, KernelReferenced, RegimeBand
from nearfree.log.evidence import read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout, parse_take
from nearfree.log.reader import read_bytes

STREAM = "kernels"
"""Where kernels' constants and curves stand in the log."""


def referenced(
    group: Group, *, source: str, epsilon: float, members: Mapping[str, str]
) -> KernelReferenced:
    """Return the event of a group.

    Parameters
    ----------
    members
        The SHA-256 of each file of the source.
    """
    rows = group.curves
    lengths = group.counts.sum(axis=1)
    grids = [tuple(map(int, each[:end])) for each, end in zip(group.n, lengths, strict=True)]
    every = list(dict.fromkeys(grids))
    names = {name: rows[name].unique(maintain_order=True).to_list()
             for name in ("backend_version", "routing", "member")}  # fmt: skip
    places = {name: {each: at for at, each in enumerate(of)} for name, of in names.items()}
    ends = tuple((each.low, each.high) for each in (group.ratio, group.residual))
    packed = Packed(
        names["backend_version"],
        names["routing"],
        names["member"],
        {name: rows[name].to_list() for name in COORDINATES if rows[name].count()}
        | {name: rows[name].to_list() for name in APART if (rows[name] != 1).any()}
        | {name: [places[name][each] for each in rows[name]] for name in names}
        | {"grid": [every.index(each) for each in grids]},
        [list(each) for each in every],
        told(group.first_us),
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
        packed=squeezed(packed, _scale(*ends)),
        stepped=True,
    )


_Ends = tuple[float, float]


def scale_of(kernel: KernelReferenced) -> float:
    """Return how many codes of the residual one of the ratio is."""
    return _scale(kernel.ratio, kernel.residual)


def _scale(ratio: _Ends, residual: _Ends) -> float:
    return (ratio[1] - ratio[0]) / ((residual[1] - residual[0]) or 1.0)


def group_of(event: Event) -> Group:
    """Return the group of an event.

    Raises
    ------
    EvidenceError
        Its constants are those of another form, or its curves cannot be unpacked or are not as many
        as it says.
    """
    data: KernelReferenced = event.data
    constants = constants_of(event).values
    try:
        packed = opened(data.packed, scale_of(data), stepped=data.stepped)
        return _unpacked(data, constants, packed)
    except (
        MsgspecError, lzma.LZMAError, pl.exceptions.PolarsError,
        ValueError, IndexError, KeyError, TypeError,
    ) as error:  # fmt: skip
        raise EvidenceError(
            f"the curves of {event.event_id} cannot be unpacked: {error}",
            remedy="Check the log with `nearfree verify`",
        ) from error


def constants_of(event: Event) -> Constants:
    """Return a group's constants, its curves left packed; the errors are those of `group_of`."""
    data: KernelReferenced = event.data
    try:
        values = _constants(data)
    except ValueError as error:
        raise EvidenceError(
            f"the constants of {event.event_id} are those of another form",
            remedy="Run `nearfree calibrate --kernels` with this version",
        ) from error
    return Constants(key=_key(data), values=values, count=data.curves)


def _key(data: KernelReferenced) -> Key:
    return Key(*(getattr(data, name) for name in Key._fields))


def _constants(data: KernelReferenced) -> dict[str, dict[str, float]]:
    """Return the constants of a group; those that its form got after it was made are neutral."""
    family = FAMILIES.get(data.family)
    if family is None or {*data.constants} != {*family.hypotheses}:
        raise ValueError("another family")
    filled = {hypothesis: neutral(family) | of for hypothesis, of in data.constants.items()}
    if any({*of} != {each.name for each in family.constants} for of in filled.values()):
        raise ValueError("other constants")
    return filled


def _unpacked(
    data: KernelReferenced, constants: dict[str, dict[str, float]], packed: Packed
) -> Group:
    columns = packed.columns
    numbers = [value for of in columns.values() for value in of if value is not None]
    none: list[int | None] = [None] * len(columns["grid"])
    of = {name: columns.get(name, none) for name in COORDINATES}
    of |= {name: columns.get(name, [1] * len(none)) for name in APART}
    sizes = [value + (name == "context") for name in of for value in of[name] if value is not None]
    if min(numbers, default=0) < 0 or min(sizes, default=0) < 1:
        raise ValueError("a place or size is too small")
    grids = [packed.grids[place] for place in columns["grid"] if place is not None]
    if not all(grid and grid[0] > 0 and grid == sorted({*grid}) for grid in grids):
        raise ValueError("a grid does not rise from 1 or more")
    width = max(map(len, grids))
    n = np.array([grid + grid[-1:] * (width - len(grid)) for grid in grids], dtype=np.float64)
    counts = np.arange(width)[None, :] < np.array([len(grid) for grid in grids])[:, None]
    first = first_us_of(packed.first_us, data.curves)
    named: dict[str, Sequence[str | None]] = {
        "backend_version": packed.releases,
        "routing": packed.routings,
        "member": packed.members,
    }
    frame: dict[str, Sequence[int | str | None]] = {**of} | {
        name: [of[place] for place in columns[name] if place is not None]
        for name, of in named.items()
    }
    types = {name: pl.String if name in named else pl.Int64 for name in CURVE_COLUMNS}
    rows = pl.DataFrame(frame, schema_overrides=types).select(CURVE_COLUMNS)
    heights = {rows.height, len(first), len(n), data.curves}
    if len(heights) > 1 or {len(packed.ratio), len(packed.residual), int(counts.sum())} != {
        data.points
    }:
        raise ValueError(f"{data.curves} curves of {data.points} points are not what is packed")
    if not np.isfinite(coordinates(data.family, rows, n).shape).all():
        raise ValueError("a curve has no shape")
    return Group(
        key=_key(data),
        values=constants,
        curves=rows,
        n=n,
        counts=counts,
        first_us=first,
        ratio=Coded(*data.ratio, packed.ratio),
        residual=Coded(*data.residual, packed.residual),
    )


class Recorded(Mapping[Key, Group]):
    """The groups of a log by their keys, each unpacked once, when it is first asked for."""

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
        """Return how many groups there are."""
        return len(self.events)


_Band = tuple[str, str, str, str]
"""Regime, module, formats and routing."""


def band_key(of: RegimeBand) -> _Band:
    """Return what a band is of."""
    return of.regime, of.module, of.formats, of.routing


class RecordedReference(Struct, frozen=True, kw_only=True):
    """The newest take of kernels: its groups, their events, and the bands of regimes."""

    reference: Reference
    events: Mapping[Key, Event]
    bands: Mapping[_Band, RegimeBand]
    bands_events: tuple[str, ...] = ()
    """The events that bands are from."""

    def bands_of(self, regimes: Sequence[str], asked: pl.DataFrame) -> Array:
        """Return how far log(T(N) / T(baseline)) may be off, of each question in its regime."""
        widest = max((each.band for each in self.bands.values()), default=1.0)
        said = (self.said(*each) for each in zip(regimes, rows_of_bands(asked), strict=True))
        return np.array([each.band if each else widest for each in said])

    def said(self, regime: str, kind: tuple[str, str, str]) -> RegimeBand | None:
        """Return what is known of a kind of question in a regime, None of a module without curves.

        One that was not scored in its regime has what the next says that knows less, and one that
        was scored in none the widest band of its formats, else of those in which such rows meet
        other numbers, else of its module.

        Parameters
        ----------
        kind
            Module, formats and how loads are spread, as of `rows_of_bands`.
        """
        module, formats, _ = kind
        lesser = REGIMES[REGIMES.index(regime) :: -1]
        exact = (self.bands.get((each, *kind)) for each in lesser)
        entering, apart, _ = formats.partition("/")

        def unlike(each: str) -> int:
            same_rows = bool(apart) and each.startswith(entering + apart)
            return 0 if each == formats else 1 if same_rows else 2

        near = (
            max((each for key, each in self.bands.items() if key[:2] == (less, module)
                 and unlike(key[2]) <= most), key=lambda each: each.band, default=None)
            for most in range(3) for less in lesser
        )  # fmt: skip
        return next(filter(None, chain(exact, near)), None)

    def events_of(self, known: Known) -> list[list[str]]:
        """Return the events that each row rests on: those of its groups, and of bands."""
        events = [self.events[group.key].event_id for group in known.groups]
        return [[*events, *self.bands_events]] * len(known.regime)


def rows_of_bands(rows: pl.DataFrame) -> list[tuple[str, str, str]]:
    """Return what each question's band is by: module, formats, and how loads are spread."""
    named = rows.select(pl.col("module").replace("dense_ffn", "gemm"), *formats(), "routing")
    return [
        (module, "/".join(filter(None, formats)), (routing or "").partition(":")[0])
        for module, *formats, routing in named.iter_rows()
    ]


def newest_kernels(layout: Layout) -> tuple[dict[Key, Event], dict[_Band, Event]]:
    """Return the newest event of each kernel, and of each band, of whatever take.

    A take holds what it found that was not on record before, and the bands of its modules.
    """
    found = read_scope(layout, PUBLIC, stream=STREAM, only=(KernelReferenced, BandsCalibrated))
    takes = sorted(found, key=lambda take: take.order)
    kernels = {_key(event.data): event for take in takes for event in take.of(KernelReferenced)}
    bands = {
        band_key(each): event
        for take in takes
        for event in take.of(BandsCalibrated)
        for each in event.data.bands
    }
    return kernels, bands


def recorded_kernels(layout: Layout) -> list[str]:
    """Return the events that say what is known of kernels, and the bands."""
    kernels, bands = newest_kernels(layout)
    found = (event.event_id for event in (*kernels.values(), *bands.values()))
    return list(dict.fromkeys(found))


def kernel_takes(layout: Layout) -> dict[str, str]:
    """Return the takes of which anything is read of kernels, with the SHA-256 of their seals."""
    return takes_of(layout, recorded_kernels(layout))


def takes_of(layout: Layout, event_ids: Iterable[str]) -> dict[str, str]:
    """Return the takes that events stand in, with the SHA-256 of their seals."""
    takes = {event_id.rpartition(".")[0] for event_id in event_ids}
    return {take: sha256(read_bytes(layout.seal(parse_take(take)))) for take in sorted(takes)}


def recorded_reference(layout: Layout, chips: Mapping[str, Chip]) -> RecordedReference | None:
    """Return what is on record of kernels, None without anything."""
    kernels, bands = newest_kernels(layout)
    if not kernels:
        return None
    groups = Recorded(kernels)
    return RecordedReference(
        reference=Reference(groups, chips, groups.constants),
        events=groups.events,
        bands={
            key: each
            for key, event in bands.items()
            for each in event.data.bands
            if band_key(each) == key
        },
        bands_events=tuple(dict.fromkeys(event.event_id for event in bands.values())),
    )
