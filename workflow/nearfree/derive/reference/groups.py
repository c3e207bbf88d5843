"""A kernel on a platform in one format: its own constants, and how its curves miss the form.

What misses is a residual, log(T / T_form), at each N of each curve. Curves are kept up to four
times their N_max, in 8 bits a point, and everything that follows from them is what follows from
these bits: what is scored is what answers.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct
from packaging.version import InvalidVersion, Version

from nearfree.backends.public_kernels import TWINS
from nearfree.backends.records import BACKENDS
from nearfree.derive.reference.kriging import (
    APART,
    AT_ONE_PLACE,
    COORDINATES,
    Places,
    coordinates,
    kernel,
    weights_of,
)
from nearfree.derive.reference.packing import first_us_of, told
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import (
    Array,
    Features,
    Fitted,
    Flags,
    neutral,
    times_of,
    told_in,
)
from nearfree.derive.work_model.fit import Measured, fit, taken
from nearfree.derive.work_model.prepare import RAN

LEAST_CURVES = 4
"""Fewer than this are no group: its constants would be those of the curves themselves."""
MOST_FITTED = 200
"""Curves that constants are fitted to, evenly spread over a group's settings."""
_UP_TO = 4.0
_LEVELS, _DECIMALS = 255, 9
_DIGITS, _NOTHING = 1e-3, 1e-6
"""How far constants of one fit are apart on two processors: of four digits the last, and what is
fitted to be nothing."""
_PRINTED = {name: each.name for each in BACKENDS for name in each.printed}
"""Names of the paper's tables, which hold a release, by their backend's own."""
RUN_AS = {"float16": "bfloat16"}
"""Formats whose kernels are those of another."""
FORMAT_COLUMNS = ("dtype", "weights", "kv_dtype")


class Key(NamedTuple):
    """Which kernel, where and in which formats; `weights` and `kv_dtype` where they differ."""

    platform: str
    family: str
    backend: str
    kernel: str | None
    dtype: str
    weights: str | None
    kv_dtype: str | None

    @property
    def elsewhere(self) -> tuple[str | None, ...]:
        """All but the platform."""
        return self[1:]


Parts = tuple[Array, Array, Array, Flags]
"""N, T(N), log(T / T_form) and which of them are a curve's own, [curves, grid]."""
CURVE_COLUMNS = ("backend_version", "routing", *COORDINATES, *APART, "member")
"""What is kept of a curve beside its points."""


def keys_of(rows: pl.DataFrame) -> list[Key]:
    """Return the key of each row of questions, in their order."""
    ran = [pl.col(RAN)] if RAN in rows.columns else []
    named = rows.select(
        "platform",
        "family",
        pl.coalesce(*ran, pl.col("backend").replace(_PRINTED)).alias("backend"),
        pl.coalesce(*ran, "kernel").alias("kernel"),
        *formats(),
    )
    return [_twin(Key(*row)) for row in named.iter_rows()]


def formats() -> list[pl.Expr]:
    """Return `dtype` by its kernels, and `weights` and `kv_dtype` where they are others."""
    entering, *stored = (pl.col(name).replace(RUN_AS) for name in FORMAT_COLUMNS)
    return [entering, *(pl.when(each != entering).then(each) for each in stored)]


def _twin(key: Key) -> Key:
    """Return a key, or that of the kernel of the same source whose curves are public."""
    backend, kernel = TWINS.get(key.kernel or "", (key.backend, key.kernel))
    return key._replace(backend=backend, kernel=kernel)


@cache
def version_of(release: str | None) -> Version:
    """Return a release as a version, the least of what is no number."""
    try:
        return Version(release or "0")
    except InvalidVersion:
        return Version("0")


def version_order(release: str) -> tuple[bool, Version, str]:
    """Return what sorts releases: by version, and before all what is none, as text."""
    try:
        return True, Version(release), release
    except InvalidVersion:
        return False, Version("0"), release


class Coded(Struct, frozen=True):
    """Numbers in 8 bits: `low` + code (`high` - `low`) / 255, [curves, grid]."""

    low: float
    high: float
    codes: bytes

    @classmethod
    def of(cls, values: Array, counts: Flags) -> "Coded":
        """Return those of the values that count, one after the other."""
        kept = values[counts]
        low, high = (float(f"{end:.5g}") for end in (kept.min(), kept.max()))
        step = (high - low) / _LEVELS or 1.0
        codes = np.clip(np.round((kept - low) / step), 0, _LEVELS).astype(np.uint8)
        return cls(low, high, codes.tobytes())

    def values(self, counts: Flags) -> Array:
        """Return the numbers, [curves, grid]; those that do not count repeat the last that does."""
        step = (self.high - self.low) / _LEVELS or 1.0
        flat = self.low + np.frombuffer(self.codes, np.uint8) * step
        ends = np.cumsum(counts.sum(axis=1))[:, None]
        first = ends - counts.sum(axis=1, keepdims=True)
        place = np.arange(counts.shape[1])[None, :]
        return np.asarray(flat[np.minimum(first + place, ends - 1)])


class Constants(Struct, frozen=True, kw_only=True):
    """A kernel's constants by hypothesis, and how many curves they were fitted to."""

    key: Key
    values: dict[str, dict[str, float]]
    count: int


class Group(Struct, frozen=True, kw_only=True, dict=True):
    """A kernel's constants by hypothesis, and its curves.

    `curves` has a row a curve: CURVE_COLUMNS. `n` [curves, grid] begins at its first N, of experts
    below the baseline where that was timed, and `counts` says how far a curve goes; `first_us`
    [curves] is T(first N); `ratio` is log(T(N) / T(first N)) and `residual` log(T / T_form).
    """

    key: Key
    values: dict[str, dict[str, float]]
    curves: pl.DataFrame
    n: Array
    counts: Flags
    first_us: Array
    ratio: Coded
    residual: Coded

    @property
    def count(self) -> int:
        """How many curves it has."""
        return self.curves.height

    @property
    def constants(self) -> Constants:
        """The constants without the curves."""
        return Constants(key=self.key, values=self.values, count=self.count)

    @cached_property
    def releases(self) -> tuple[str | None, ...]:
        """The releases that its curves are of."""
        return tuple(self.curves["backend_version"].unique(maintain_order=True))

    @cached_property
    def routings(self) -> frozenset[str]:
        """How loads are spread in its curves, empty for those of modules without experts."""
        return frozenset(each or "" for each in self.curves["routing"].unique())

    @cached_property
    def _at(self) -> Places:
        return coordinates(self.key.family, self.curves, self.n)

    @cached_property
    def _knots(self) -> Array:
        """The places along N at which any curve has a point, [knots]."""
        return np.unique(np.round(self._at.along[self.counts], 6))

    @cached_property
    def _at_knots(self) -> Array:
        """Each curve's residual at each knot, [curves, knots]; beyond its ends that of its ends."""
        residual = self.residual.values(self.counts)
        lengths = self.counts.sum(axis=1)
        return np.stack(
            [
                np.interp(self._knots, along[:length], each[:length])
                for along, each, length in zip(self._at.along, residual, lengths, strict=True)
            ]
        )

    @cached_property
    def _told(self) -> Array:
        """What each curve's residual contributes at each knot, [curves, knots]."""
        return weights_of(self.key.family, self._at, self._at_knots)

    def residuals(self, asked: Places) -> tuple[Array, Array]:
        """Return the kriged residual of questions, [rows, grid], and how near they are to curves.

        Of a shape that was measured it is that of its own curves: those of this release, or where
        there are none, of all others.

        Returns
        -------
        The residuals, and the kernel between questions and curves, [rows, curves].
        """
        near = kernel(asked, self._at)
        of_knots = near @ self._told
        own = np.isin(near, AT_ONE_PLACE) & (near == near.max(axis=1, keepdims=True))
        measured = own.any(axis=1)
        if measured.any():  # who was measured is no mixture
            shares = own[measured] / own[measured].sum(axis=1, keepdims=True)
            of_knots[measured] = shares @ self._at_knots
        # A product of matrices differs in its last bits by how many rows are asked together.
        of_knots = np.round(of_knots, _DECIMALS)
        right = np.clip(np.searchsorted(self._knots, asked.along), 1, max(len(self._knots) - 1, 1))
        if len(self._knots) == 1:
            return np.broadcast_to(of_knots, asked.along.shape), near
        left = right - 1
        gap = self._knots[right] - self._knots[left]
        share = np.clip((asked.along - self._knots[left]) / gap, 0.0, 1.0)
        rows = np.arange(len(of_knots))[:, None]
        found = of_knots[rows, left] * (1.0 - share) + of_knots[rows, right] * share
        return np.asarray(found), near

    def says_the_same(self, other: "Group") -> bool:
        """Return whether constants and curves, point by point, are those of another group.

        Constants are as far as a fit gives them again on another processor, residuals with them.
        """
        return (
            self.ratio == other.ratio
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.n[self.counts], other.n[other.counts])
            and np.array_equal(self.first_us, other.first_us)
            and self._fits_as(other)
        )

    def _fits_as(self, other: "Group") -> bool:
        """Return whether constants, and the residuals of equal curves, are those of another fit."""
        ours, theirs = (
            {(of, name): each[name] for of, each in group.values.items() for name in each}
            for group in (self, other)
        )
        if ours.keys() != theirs.keys():
            return False
        alike = np.allclose([*ours.values()], [theirs[key] for key in ours], _DIGITS, _NOTHING)
        here, there = (each.residual.values(each.counts) for each in (self, other))
        two_codes = 2 * (self.residual.high - self.residual.low) / _LEVELS
        return bool(alike and np.allclose(here, there, rtol=0.0, atol=two_codes))

    @cached_property
    def curve_texts(self) -> list[str]:
        """What each curve is: its shape, routing and release."""
        texts = []
        names = [name for name in COORDINATES if name != "batch"]
        for row in self.curves.iter_rows(named=True):
            sizes = "x".join(str(row[name]) for name in names if row[name])
            routed = f" {row['routing']}" if row["routing"] else ""
            texts.append(f"{sizes}{routed} of {row['backend_version']}")
        return texts


def form_us(family: str, values: dict[str, dict[str, float]], features: Features) -> Array:
    """Return T(N) by a form with some constants, [rows, grid]."""
    return times_of(FAMILIES[family], Fitted(family=family, values=values, band=0.0), features)


class Below(Struct, frozen=True):
    """Points of curves below their baselines: the curves' numbers, and T(N) there.

    Some experts sleep there, and boundaries are not judged from there: nothing is fitted to them,
    and residuals say how far off the form is.
    """

    asked: list[int]
    measured: Measured

    def of(self, asked: Sequence[int], values: dict[str, dict[str, float]], family: str) -> Parts:
        """Return N, T(N), log(T / T_form) and which of them count, [curves asked, grid]."""
        n, us = self.measured.features["n"], self.measured.latency_us
        found = n, us, np.log(us / form_us(family, values, self.measured.features))
        own = {each: place for place, each in enumerate(self.asked)}
        known = np.array([each in own for each in asked])[:, None]
        places = np.array([own.get(each, 0) for each in asked])
        first, second, third = (each[places] for each in found)
        return first, second, third, self.measured.counts[places] & known


def made(
    key: Key,
    rows: pl.DataFrame,
    measured: Measured,
    members: Sequence[str],
    epsilon: float,
    *,
    below: Below | None = None,
) -> Group | None:
    """Return the group of some curves, None of too few.

    Parameters
    ----------
    rows
        A row a curve: the columns of a question.
    measured
        Their points from the baseline on.
    members
        The file that each is from.
    epsilon
        The tolerance up to four times whose N_max curves are fitted and kept.
    below
        Points below the baseline, of whichever curves have some.
    """
    if rows.height < LEAST_CURVES:
        return None
    order = np.lexsort((rows["backend_version"].to_numpy(), rows["setting_key"].to_numpy()))
    chosen = np.zeros(rows.height, dtype=bool)
    evenly = np.linspace(0, rows.height - 1, min(MOST_FITTED, rows.height)).round().astype(int)
    chosen[order[evenly]] = True
    family = FAMILIES[key.family]
    fitted = fit(told_in(family, key.dtype), taken(measured, chosen), epsilon)
    values = {name: neutral(family) | {**each} for name, each in fitted.values.items()}
    ratio = np.log(measured.latency_us / measured.latency_us[:, :1])
    last = last_pass(measured.counts & (ratio <= np.log1p(epsilon)))
    n, us = measured.features["n"], measured.latency_us
    until = _UP_TO * n[np.arange(len(n)), last]
    counts = measured.counts & ((n <= until[:, None]) | (np.arange(n.shape[1])[None, :] < 2))
    parts = n, us, np.log(us / form_us(key.family, values, measured.features)), counts
    if below is not None:
        lower = below.of(rows["asked"].to_list(), values, key.family)
        parts = _compact(*map(np.hstack, zip(lower, parts, strict=True)))
    n, us, residual, counts = parts
    width = int(counts.sum(axis=1).max())
    return Group(
        key=key,
        values=values,
        curves=rows.with_columns(pl.Series("member", list(members), dtype=pl.String)).select(
            CURVE_COLUMNS
        ),
        n=n[:, :width],
        counts=counts[:, :width],
        first_us=first_us_of(told(us[:, 0]), len(us)),
        ratio=Coded.of(np.log(us / us[:, :1]), counts),
        residual=Coded.of(residual, counts),
    )


def _compact(n: Array, us: Array, residual: Array, counts: Flags) -> Parts:
    """Return points with those that count first; behind them the last of them is repeated."""
    order = np.argsort(~counts, axis=1, kind="stable")
    last = counts.sum(axis=1, keepdims=True) - 1
    order = np.take_along_axis(order, np.minimum(np.arange(n.shape[1]), last), axis=1)
    first, second, third = (np.take_along_axis(each, order, axis=1) for each in (n, us, residual))
    return first, second, third, np.arange(n.shape[1])[None, :] <= last
