"""Groups: a kernel on a platform in one format, with its own constants and its curves' residuals.

The residual is log(T / T_form) at each N of each curve. Curves are kept up to four times their
N_max, in 8 bits per point. Scores and answers both use these 8-bit curves, so that what is scored
is what answers.
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
    COORDINATES,
    SAME_SHAPE,
    UNRELATED_FIELDS,
    Coordinates,
    coordinates,
    kernel,
    kriging_weights,
)
from nearfree.derive.reference.packing import first_us_codes, first_us_of
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import (
    Array,
    Features,
    Fitted,
    Flags,
    family_for_dtype,
    neutral,
    times_of,
)
from nearfree.derive.work_model.fit import Measured, fit, selected_curves
from nearfree.derive.work_model.prepare import RAN

LEAST_CURVES = 4
"""Fewest curves of a group; constants fitted to fewer would only reproduce the curves."""
MOST_FITTED = 200
"""Most curves that constants are fitted to, evenly spread over a group's settings."""
_KEPT_UP_TO = 4.0
"""Curves are kept up to this multiple of their N_max."""
_LEVELS, _DECIMALS = 255, 9
_DIGITS, _NOTHING = 1e-3, 1e-6
"""Relative and absolute differences of one fit's constants on two processors: the last of four
digits, and constants that are fitted to zero."""
_PRINTED = {name: backend.name for backend in BACKENDS for name in backend.printed}
"""Backends by their names in the paper's tables, which include a release."""
RUN_AS = {"float16": "bfloat16"}
"""Formats that run the kernels of another format."""
FORMAT_COLUMNS = ("dtype", "weights", "kv_dtype")


class Key(NamedTuple):
    """A kernel, its platform and its formats; `weights` and `kv_dtype` only where they differ."""

    platform: str
    family: str
    backend: str
    kernel: str | None
    dtype: str
    weights: str | None
    kv_dtype: str | None

    @property
    def elsewhere(self) -> tuple[str | None, ...]:
        """The key without its platform."""
        return self[1:]


Parts = tuple[Array, Array, Array, Flags]
"""N, T(N), log(T / T_form) and which points belong to a curve, [curves, grid]."""
CURVE_COLUMNS = ("backend_version", "routing", *COORDINATES, *UNRELATED_FIELDS, "member")
"""The columns of a curve that are kept beside its points."""


def keys_of(rows: pl.DataFrame) -> list[Key]:
    """Return the key of each row of questions, in their order."""
    ran = [pl.col(RAN)] if RAN in rows.columns else []
    keyed = rows.select(
        "platform",
        "family",
        pl.coalesce(*ran, pl.col("backend").replace(_PRINTED)).alias("backend"),
        pl.coalesce(*ran, "kernel").alias("kernel"),
        *formats(),
    )
    return [_twin(Key(*row)) for row in keyed.iter_rows()]


def formats() -> list[pl.Expr]:
    """Return `dtype` as its kernels' format, and `weights` and `kv_dtype` where they differ."""
    activations, *others = (pl.col(name).replace(RUN_AS) for name in FORMAT_COLUMNS)
    return [activations, *(pl.when(format_ != activations).then(format_) for format_ in others)]


def _twin(key: Key) -> Key:
    """Return a key, or that of the kernel from the same source that has public curves."""
    backend, kernel = TWINS.get(key.kernel or "", (key.backend, key.kernel))
    return key._replace(backend=backend, kernel=kernel)


@cache
def version_of(release: str | None) -> Version:
    """Return a release as a version; version 0 if it is not one."""
    try:
        return Version(release or "0")
    except InvalidVersion:
        return Version("0")


def version_ranks(releases: pl.Series) -> dict[str, int]:
    """Return each release's rank by its version; releases without one come first, by text."""

    def order(release: str) -> tuple[bool, Version, str]:
        try:
            return True, Version(release), release
        except InvalidVersion:
            return False, Version("0"), release

    return {name: rank for rank, name in enumerate(sorted(releases.unique(), key=order))}


class Coded(Struct, frozen=True):
    """Numbers in 8 bits: `low` + code (`high` - `low`) / 255, [curves, grid]."""

    low: float
    high: float
    codes: bytes

    @classmethod
    def of(cls, values: Array, counts: Flags) -> "Coded":
        """Return the values that count, one after the other."""
        counted = values[counts]
        low, high = (float(f"{end:.5g}") for end in (counted.min(), counted.max()))
        step = (high - low) / _LEVELS or 1.0
        codes = np.clip(np.round((counted - low) / step), 0, _LEVELS).astype(np.uint8)
        return cls(low, high, codes.tobytes())

    def values(self, counts: Flags) -> Array:
        """Return the numbers, [curves, grid]; other points repeat the last that counts."""
        step = (self.high - self.low) / _LEVELS or 1.0
        flat = self.low + np.frombuffer(self.codes, np.uint8) * step
        ends = np.cumsum(counts.sum(axis=1))[:, None]
        first = ends - counts.sum(axis=1, keepdims=True)
        column = np.arange(counts.shape[1])[None, :]
        return np.asarray(flat[np.minimum(first + column, ends - 1)])


class Constants(Struct, frozen=True, kw_only=True):
    """A kernel's constants by hypothesis, and the number of curves behind them."""

    key: Key
    values: dict[str, dict[str, float]]
    count: int


class Group(Struct, frozen=True, kw_only=True, dict=True):
    """A kernel's constants by hypothesis, and its curves.

    `curves` has a row per curve with CURVE_COLUMNS. `n` [curves, grid] begins at a curve's first N,
    which for experts is below the baseline if that was timed; `counts` flags the points of a curve.
    `first_us` [curves] is T(first N), `ratio` log(T(N) / T(first N)), `residual` log(T / T_form).
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
        """The number of curves."""
        return self.curves.height

    @property
    def constants(self) -> Constants:
        """The constants without the curves."""
        return Constants(key=self.key, values=self.values, count=self.count)

    @cached_property
    def releases(self) -> tuple[str | None, ...]:
        """The releases of its curves."""
        return tuple(self.curves["backend_version"].unique(maintain_order=True))

    @cached_property
    def routings(self) -> frozenset[str]:
        """The routings of its curves; the empty one for modules without experts."""
        return frozenset(routing or "" for routing in self.curves["routing"].unique())

    @cached_property
    def _coordinates(self) -> Coordinates:
        return coordinates(self.key.family, self.curves, self.n)

    @cached_property
    def _knots(self) -> Array:
        """The coordinates along N of the points of all curves, [knots]."""
        return np.unique(np.round(self._coordinates.along[self.counts], 6))

    @cached_property
    def _knot_residuals(self) -> Array:
        """Each curve's residual at each knot, [curves, knots]; constant beyond a curve's ends."""
        residual = self.residual.values(self.counts)
        lengths = self.counts.sum(axis=1)
        return np.stack(
            [
                np.interp(self._knots, along[:length], values[:length])
                for along, values, length in zip(
                    self._coordinates.along, residual, lengths, strict=True
                )
            ]
        )

    @cached_property
    def _knot_weights(self) -> Array:
        """The kriging weights of each curve at each knot, [curves, knots]."""
        return kriging_weights(self.key.family, self._coordinates, self._knot_residuals)

    def residuals(self, questions: Coordinates) -> tuple[Array, Array]:
        """Return the kriged residual of questions, [rows, grid], and their nearness to the curves.

        A shape that was measured has the residual of its own curves: those of this release, or if
        there are none, the mean of all others.

        Returns
        -------
        The residuals, and the kernel between questions and curves, [rows, curves].
        """
        nearness = kernel(questions, self._coordinates)
        at_knots = nearness @ self._knot_weights
        nearest = nearness == nearness.max(axis=1, keepdims=True)
        own = np.isin(nearness, SAME_SHAPE) & nearest
        measured = own.any(axis=1)
        if measured.any():
            shares = own[measured] / own[measured].sum(axis=1, keepdims=True)
            at_knots[measured] = shares @ self._knot_residuals
        # The last bits of a matrix product depend on the number of rows.
        at_knots = np.round(at_knots, _DECIMALS)
        along, knots = questions.along, self._knots
        if len(knots) == 1:
            return np.broadcast_to(at_knots, along.shape), nearness
        right = np.clip(np.searchsorted(knots, along), 1, len(knots) - 1)
        left = right - 1
        share = np.clip((along - knots[left]) / (knots[right] - knots[left]), 0.0, 1.0)
        rows = np.arange(len(at_knots))[:, None]
        residual = at_knots[rows, left] * (1.0 - share) + at_knots[rows, right] * share
        return np.asarray(residual), nearness

    def says_the_same(self, other: "Group") -> bool:
        """Return whether two groups have the same curves, and constants of the same fit.

        Constants and residuals may differ as much as those of one fit on two processors.
        """
        return (
            self.ratio == other.ratio
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.n[self.counts], other.n[other.counts])
            and np.array_equal(self.first_us, other.first_us)
            and self._fits_as(other)
        )

    def _fits_as(self, other: "Group") -> bool:
        """Return whether constants and residuals of equal curves are those of one fit."""
        ours, theirs = (
            {
                (hypothesis, name): value
                for hypothesis, constants in group.values.items()
                for name, value in constants.items()
            }
            for group in (self, other)
        )
        if ours.keys() != theirs.keys():
            return False
        alike = np.allclose([*ours.values()], [theirs[key] for key in ours], _DIGITS, _NOTHING)
        our_residuals, their_residuals = (
            group.residual.values(group.counts) for group in (self, other)
        )
        two_codes = 2 * (self.residual.high - self.residual.low) / _LEVELS
        return bool(alike and np.allclose(our_residuals, their_residuals, rtol=0.0, atol=two_codes))

    @cached_property
    def curve_texts(self) -> list[str]:
        """A text per curve: its shape, routing and release."""
        texts = []
        names = [name for name in COORDINATES if name != "batch"]
        for row in self.curves.iter_rows(named=True):
            sizes = "x".join(str(row[name]) for name in names if row[name])
            routing = f" {row['routing']}" if row["routing"] else ""
            texts.append(f"{sizes}{routing} of {row['backend_version']}")
        return texts


def form_us(family: str, values: dict[str, dict[str, float]], features: Features) -> Array:
    """Return T(N) by a family's form with these constants, [rows, grid], in microseconds."""
    return times_of(FAMILIES[family], Fitted(family=family, values=values, band=0.0), features)


class Below(Struct, frozen=True):
    """Points below the baselines of curves: the keys of the curves, and T(N).

    Some experts are inactive there, and boundaries do not refer to them. Nothing is fitted to these
    points; their residuals show the form's error.
    """

    asked: list[int]
    measured: Measured

    def parts(
        self, curves: Sequence[int], values: dict[str, dict[str, float]], family: str
    ) -> Parts:
        """Return N, T(N), log(T / T_form) and which points count, for curves by their keys."""
        n, us = self.measured.features["n"], self.measured.latency_us
        residual = np.log(us / form_us(family, values, self.measured.features))
        row_of = {curve: row for row, curve in enumerate(self.asked)}
        has_points = np.array([curve in row_of for curve in curves])[:, None]
        rows = np.array([row_of.get(curve, 0) for curve in curves])
        return n[rows], us[rows], residual[rows], self.measured.counts[rows] & has_points


def fitted_group(
    key: Key,
    rows: pl.DataFrame,
    measured: Measured,
    members: Sequence[str],
    epsilon: float,
    *,
    below: Below | None = None,
) -> Group | None:
    """Return the group of some curves, None if they are fewer than LEAST_CURVES.

    Parameters
    ----------
    rows
        The curves, with the columns of a question.
    measured
        Their points from the baseline on.
    members
        The file of each curve.
    epsilon
        The tolerance of N_max: curves are fitted and kept up to four times it.
    below
        Points below the baseline, for the curves that have some.
    """
    if rows.height < LEAST_CURVES:
        return None
    order = np.lexsort((rows["backend_version"].to_numpy(), rows["setting_key"].to_numpy()))
    selected = np.zeros(rows.height, dtype=bool)
    evenly_spaced = (
        np.linspace(0, rows.height - 1, min(MOST_FITTED, rows.height)).round().astype(int)
    )
    selected[order[evenly_spaced]] = True
    family = FAMILIES[key.family]
    fitted = fit(family_for_dtype(family, key.dtype), selected_curves(measured, selected), epsilon)
    values = {name: neutral(family) | {**constants} for name, constants in fitted.values.items()}
    ratio = np.log(measured.latency_us / measured.latency_us[:, :1])
    last = last_pass(measured.counts & (ratio <= np.log1p(epsilon)))
    n, us = measured.features["n"], measured.latency_us
    until = _KEPT_UP_TO * n[np.arange(len(n)), last]
    counts = measured.counts & ((n <= until[:, None]) | (np.arange(n.shape[1])[None, :] < 2))
    parts = n, us, np.log(us / form_us(key.family, values, measured.features)), counts
    if below is not None:
        lower = below.parts(rows["asked"].to_list(), values, key.family)
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
        first_us=first_us_of(first_us_codes(us[:, 0]), len(us)),
        ratio=Coded.of(np.log(us / us[:, :1]), counts),
        residual=Coded.of(residual, counts),
    )


def _compact(n: Array, us: Array, residual: Array, counts: Flags) -> Parts:
    """Return the points that count first, then repetitions of the last of them."""
    order = np.argsort(~counts, axis=1, kind="stable")
    last = counts.sum(axis=1, keepdims=True) - 1
    order = np.take_along_axis(order, np.minimum(np.arange(n.shape[1]), last), axis=1)
    n, us, residual = (np.take_along_axis(values, order, axis=1) for values in (n, us, residual))
    return n, us, residual, np.arange(n.shape[1])[None, :] <= last
