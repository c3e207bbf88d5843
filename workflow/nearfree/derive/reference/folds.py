"""Cross-validation of regimes: curves are left out, and predicted by groups of the rest.

R2m leaves a model out everywhere, by the fields of `kinds.py`. R2s leaves out a shape, R1 a GPU,
R0 its siblings too, and R3 a release. Folds follow from a digest of the model or shape. Bands are
calibrated on one half of the models and scored on the other half, and the other way round.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import polars as pl

from nearfree.derive.reference.build import Curves, groups_of, scored_rows
from nearfree.derive.reference.groups import Group, Key
from nearfree.derive.reference.kinds import MODEL_FIELDS
from nearfree.derive.reference.kriging import SAME_SHAPE, coordinates, kernel
from nearfree.derive.reference.record import rows_of_bands
from nearfree.derive.reference.regimes import GroupTimes, Reference, select_rows
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import moved_to_meet

Fold = Literal["R0", "R1", "R2m", "R2s", "R3"]
Prediction = tuple[Curves, Flags, GroupTimes]
"""Curves, flags of the predicted ones among them, and their T(N)."""
FOLD_KINDS: tuple[Fold, ...] = ("R0", "R1", "R2m", "R2s", "R3")
"""The kinds of cross-validation."""
FOLDS = 5
COVERED = 0.8
"""Target share of curves that a band covers."""


def model_digests(rows: pl.DataFrame, *, shape: bool = False) -> list[bytes]:
    """Return the SHA-1 of each row's model, or of its shape, as text."""
    hashes = []
    for row in rows.iter_rows(named=True):
        names = MODEL_FIELDS[row["module"]] + (
            ("d_ff",) if shape and row["d_ff"] is not None else ()
        )
        hashes.append(hashlib.sha1(",".join(str(row[name]) for name in names).encode(),
                                  usedforsecurity=False).digest())  # fmt: skip
    return hashes


def predictions_of(
    regime: Fold,
    all_curves: Sequence[Curves],
    chips: Mapping[str, Chip],
    epsilon: float,
    groups: Mapping[Key, Group] | None = None,
) -> Iterator[Prediction]:
    """Yield predictions of left-out curves; curves without a group have none.

    Curves of one point have no boundary and are skipped. `groups` are those of all curves, if they
    exist already.
    """
    all_curves = [curves for curves in all_curves if curves.part.counts.shape[1] > 1]
    if regime in ("R2m", "R2s"):
        folds = [
            np.array(
                [
                    digest[0] % FOLDS
                    for digest in model_digests(curves.part.rows, shape=regime == "R2s")
                ]
            )
            for curves in all_curves
        ]
        for fold in range(FOLDS):
            yield from _predicted_fold(all_curves, [each == fold for each in folds], chips, epsilon)
    elif regime == "R3":
        for curves in all_curves:
            yield from _predicted_releases(curves, chips, epsilon)
    else:
        all_groups = groups if groups is not None else groups_of_all(all_curves, epsilon)
        reference = Reference(all_groups, chips)
        for curves in all_curves:
            platform = str(curves.part.rows["platform"][0])
            others = reference.without(platform, siblings=regime == "R0")
            for rows, times in others.times(curves.part):
                yield curves, rows, times


def scored_predictions(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Yield the predictions of curves that are scored."""
    for curves, rows, times in predictions:
        kept = rows & scored_rows(curves.part.rows)
        if kept.any():
            yield curves, kept, times.select(kept[rows])


def groups_of_all(all_curves: Iterable[Curves], epsilon: float) -> dict[Key, Group]:
    """Return the groups of all curves, by their keys."""
    return {
        key: group for curves in all_curves for key, group in groups_of(curves, epsilon).items()
    }


def _predicted_fold(
    all_curves: Sequence[Curves],
    held_out: Sequence[Flags],
    chips: Mapping[str, Chip],
    epsilon: float,
) -> Iterator[Prediction]:
    """Yield predictions of held-out curves by groups of all others."""
    groups: dict[Key, Group] = {}
    for curves, rows in zip(all_curves, held_out, strict=True):
        groups |= groups_of(curves, epsilon, ~rows)
    reference = Reference(groups, chips)
    for curves, rows in zip(all_curves, held_out, strict=True):
        yield from _predicted_rows(curves, rows, reference)


def _predicted_rows(curves: Curves, rows: Flags, reference: Reference) -> Iterator[Prediction]:
    """Yield predictions of the flagged curves."""
    if not rows.any():
        return
    (indices,) = np.nonzero(rows)
    for covered, times in reference.times(select_rows(curves.part, rows)):
        flags = np.zeros(len(rows), dtype=bool)
        flags[indices[covered]] = True
        yield curves, flags, times


def _predicted_releases(
    curves: Curves, chips: Mapping[str, Chip], epsilon: float
) -> Iterator[Prediction]:
    """Yield predictions of curves that have a twin, by the curves of other releases."""
    releases = curves.part.rows["backend_version"].to_numpy()
    keys = np.array([str(key) for key in curves.keys])
    for key in dict.fromkeys(curves.keys):
        of_key = keys == str(key)
        if len(set(releases[of_key])) == 1:
            continue
        for release in sorted(set(releases[of_key])):
            others, held_out = of_key & (releases != release), of_key & (releases == release)
            twins = held_out & _has_twin(curves, held_out, others)
            if not twins.any():
                continue
            groups = groups_of(curves, epsilon, others)
            yield from _predicted_rows(curves, twins, Reference(groups, chips))


def _has_twin(curves: Curves, held_out: Flags, others: Flags) -> Flags:
    """Return which held-out curves have one of the same shape among the others, [rows]."""
    family, rows, n = curves.part.family.name, curves.part.rows, curves.part.features["n"]
    left, right = (
        coordinates(family, rows.filter(pl.Series(flags)), n[flags]) for flags in (held_out, others)
    )
    has_twin = np.zeros(len(held_out), dtype=bool)
    has_twin[held_out] = np.isin(kernel(left, right), SAME_SHAPE).any(axis=1)
    return has_twin


def needed_shifts(curves: Curves, rows: Flags, times: GroupTimes, epsilon: float) -> Array:
    """Return the shift of log ratios that moves each prediction to [N_max, next N), [rows]."""
    ratio = times.latency_us / times.latency_us[:, :1]
    return moved_to_meet(ratio, curves.latency_us[rows], curves.part.counts[rows], epsilon)


def within_a_factor(
    curves: Curves, rows: Flags, times: GroupTimes, epsilon: float, factor: float
) -> Flags:
    """Return whether predictions of N_max are within a factor of [N_max, next N), [rows].

    A factor of 1 requires the grid point itself.
    """
    counts, grid = curves.part.counts[rows], curves.part.features["n"][rows]
    row = np.arange(len(counts))
    predicted_last, last = (
        last_pass(counts & (latency_us <= (1.0 + epsilon) * latency_us[:, :1]))
        for latency_us in (times.latency_us, curves.latency_us[rows])
    )
    ends = counts.sum(axis=1) - 1
    after = np.where(last < ends, grid[row, np.minimum(last + 1, ends)], np.inf)
    n = grid[row, predicted_last]
    return np.asarray((factor * n >= grid[row, last]) & (n < factor * after))


def band_of(shifts: Iterable[float]) -> float:
    """Return the band that covers a share COVERED of these curves and of one more like them."""
    ordered = np.sort(np.array(list(shifts)))
    rank = int(np.ceil(COVERED * (len(ordered) + 1))) - 1
    return float(f"{ordered[min(rank, len(ordered) - 1)]:.4g}")


Half = tuple[tuple[str, str, str], int]
"""A kind of question (module, formats, routing), and 0 or 1: a half of the models."""


def kinds_and_halves(questions: pl.DataFrame) -> list[Half]:
    """Return the kind of each question, and the half that its model belongs to."""
    halves = [digest[1] % 2 for digest in model_digests(questions)]
    return list(zip(rows_of_bands(questions), halves, strict=True))


def calibrated_bands(predictions: Sequence[Prediction], epsilon: float) -> dict[Half, float]:
    """Return bands by kind of question and by the half of the models that each is calibrated on.

    A half without curves of a kind has the band of the other half. `epsilon` is the tolerance whose
    boundary the predictions are shifted to.
    """
    shifts: dict[Half, list[float]] = {}
    for curves, rows, times in predictions:
        questions = curves.part.rows.filter(pl.Series(rows))
        shifts_of_rows = needed_shifts(curves, rows, times, epsilon)
        for (kind, half), shift in zip(kinds_and_halves(questions), shifts_of_rows, strict=True):
            shifts.setdefault((kind, half), []).append(float(shift))
            shifts.setdefault((kind, 1 - half), [])
    return {
        (kind, half): band_of(values or shifts[kind, 1 - half])
        for (kind, half), values in shifts.items()
    }
