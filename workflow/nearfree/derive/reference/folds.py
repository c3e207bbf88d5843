"""What each regime says of curves that it does not know: they are left out, the rest made anew.

R2m leaves a model out everywhere (of products a depth K, of attention a head layout, of attention
layers the width and a rank's heads), R2s a shape,
R1 a GPU, R0 its siblings too, and R3 a release. Folds follow from a digest of what is left out;
bands are calibrated on one half of the models and scored on the other, and the other way round.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import polars as pl

from nearfree.derive.reference.build import Curves, groups_of, scored_rows
from nearfree.derive.reference.groups import Group, Key
from nearfree.derive.reference.kriging import AT_ONE_PLACE, coordinates, kernel
from nearfree.derive.reference.record import rows_of_bands
from nearfree.derive.reference.regimes import Known, Reference, rows_of
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.truth.truth import last_pass
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import moved_to_meet

Fold = Literal["R0", "R1", "R2m", "R2s", "R3"]
EVERY: tuple[Fold, ...] = ("R0", "R1", "R2m", "R2s", "R3")
"""What can be left out."""
FOLDS = 5
COVERED = 0.8
"""Share of curves that a band is to cover."""
_MODEL = {
    "gemm": ("d_model",),
    "moe_ffn": ("d_model", "experts", "top_k"),
    "attention": ("heads", "kv_heads", "head_dim"),
    "mla": ("heads", "latent", "rope_dim", "nope_dim", "value_dim"),
    "indexer": ("heads", "head_dim", "span"),
    "attention_layer": ("d_model", "heads", "latent", "span"),
}


def digests(rows: pl.DataFrame, *, shape: bool = False) -> list[bytes]:
    """Return the SHA-1 of the text that says which model a row is of, or which shape."""
    found = []
    for row in rows.iter_rows(named=True):
        names = _MODEL[row["module"]] + (("d_ff",) if shape and row["d_ff"] is not None else ())
        found.append(hashlib.sha1(",".join(str(row[name]) for name in names).encode(),
                                  usedforsecurity=False).digest())  # fmt: skip
    return found


def predicted(
    regime: Fold,
    every: Sequence[Curves],
    chips: Mapping[str, Chip],
    epsilon: float,
    groups: Mapping[Key, Group] | None = None,
) -> Iterator[tuple[Curves, Flags, Known]]:
    """Yield what a regime says of curves, with which of them; none where nothing is known.

    Parameters
    ----------
    every
        All curves, by platform and form; those of one point say nothing of a boundary.
    groups
        Those of all curves, where they are made already.
    """
    every = [curves for curves in every if curves.part.counts.shape[1] > 1]
    if regime in ("R2m", "R2s"):
        of = [
            np.array([each[0] % FOLDS for each in digests(curves.part.rows, shape=regime == "R2s")])
            for curves in every
        ]
        for fold in range(FOLDS):
            kept = [each != fold for each in of]
            yield from _asked(every, [~each for each in kept], kept, chips, epsilon)
    elif regime == "R3":
        for curves in every:
            yield from _releases(curves, chips, epsilon)
    else:
        made = groups if groups is not None else groups_of_all(every, epsilon)
        whole = Reference(made, chips)
        for curves in every:
            platform = str(curves.part.rows["platform"][0])
            known = whole.without(platform, siblings=regime == "R0")
            for rows, said in known.timed(curves.part):
                yield curves, rows, said


def only_scored(
    told: Iterable[tuple[Curves, Flags, Known]],
) -> Iterator[tuple[Curves, Flags, Known]]:
    """Yield what was said of curves that are scored."""
    for curves, rows, said in told:
        kept = rows & scored_rows(curves.part.rows)
        if kept.any():
            yield curves, kept, said.of(kept[rows])


def groups_of_all(every: Iterable[Curves], epsilon: float) -> dict[Key, Group]:
    """Return the groups of all curves, by their keys."""
    return {key: group for each in every for key, group in groups_of(each, epsilon).items()}


def _asked(
    every: Sequence[Curves],
    asked: Sequence[Flags],
    kept: Sequence[Flags],
    chips: Mapping[str, Chip],
    epsilon: float,
) -> Iterator[tuple[Curves, Flags, Known]]:
    groups: dict[Key, Group] = {}
    for curves, mine in zip(every, kept, strict=True):
        groups |= groups_of(curves, epsilon, mine)
    known = Reference(groups, chips)
    for curves, rows in zip(every, asked, strict=True):
        yield from _among(curves, rows, known)


def _among(curves: Curves, rows: Flags, known: Reference) -> Iterator[tuple[Curves, Flags, Known]]:
    """Yield what is known of some rows of curves."""
    if not rows.any():
        return
    (places,) = np.nonzero(rows)
    for some, said in known.timed(rows_of(curves.part, rows)):
        of = np.zeros(len(rows), dtype=bool)
        of[places[some]] = True
        yield curves, of, said


def _releases(
    curves: Curves, chips: Mapping[str, Chip], epsilon: float
) -> Iterator[tuple[Curves, Flags, Known]]:
    """Yield what curves of other releases say of those that they are twins of."""
    releases = curves.part.rows["backend_version"].to_numpy()
    keys = np.array([str(key) for key in curves.keys])
    for key in dict.fromkeys(curves.keys):
        mine = keys == str(key)
        if len(set(releases[mine])) == 1:
            continue
        for release in sorted(set(releases[mine])):
            others, asked = mine & (releases != release), mine & (releases == release)
            twins = asked & _twins(curves, asked, others)
            if not twins.any():
                continue
            groups = groups_of(curves, epsilon, others)
            yield from _among(curves, twins, Reference(groups, chips))


def _twins(curves: Curves, asked: Flags, others: Flags) -> Flags:
    """Return which of the curves asked of have another one of the same shape, [rows]."""
    family, rows, n = curves.part.family.name, curves.part.rows, curves.part.features["n"]
    mine, theirs = (
        coordinates(family, rows.filter(pl.Series(flags)), n[flags]) for flags in (asked, others)
    )
    found = np.zeros(len(asked), dtype=bool)
    found[asked] = np.isin(kernel(mine, theirs), AT_ONE_PLACE).any(axis=1)
    return found


def needed(curves: Curves, rows: Flags, said: Known, epsilon: float) -> Array:
    """Return how far each prediction must be moved to meet [N_max, next N), [rows]."""
    ratio = said.latency_us / said.latency_us[:, :1]
    return moved_to_meet(ratio, curves.latency_us[rows], curves.part.counts[rows], epsilon)


def within_a_factor(
    curves: Curves, rows: Flags, said: Known, epsilon: float, factor: float
) -> Flags:
    """Return whether predictions are within a factor of [N_max, next N), [rows].

    With the factor 1 that is whether they are the grid point.
    """
    counts, grid = curves.part.counts[rows], curves.part.features["grid"][rows]
    place = np.arange(len(counts))
    predicted, last = (
        last_pass(counts & (each <= (1.0 + epsilon) * each[:, :1]))
        for each in (said.latency_us, curves.latency_us[rows])
    )
    ends = counts.sum(axis=1) - 1
    after = np.where(last < ends, grid[place, np.minimum(last + 1, ends)], np.inf)
    n = grid[place, predicted]
    return np.asarray((factor * n >= grid[place, last]) & (n < factor * after))


def band_of(values: Iterable[float]) -> float:
    """Return the band that covers its share of curves as good as these, and of one more."""
    ordered = np.sort(np.array(list(values)))
    place = int(np.ceil(COVERED * (len(ordered) + 1))) - 1
    return float(f"{ordered[min(place, len(ordered) - 1)]:.4g}")


def bands(
    told: Sequence[tuple[Curves, Flags, Known]], epsilon: float
) -> dict[tuple[tuple[str, str, str], int], float]:
    """Return the band of each row by the half of the models that it is calibrated on.

    Parameters
    ----------
    epsilon
        The tolerance at whose boundary a band is to meet them.
    """
    found: dict[tuple[tuple[str, str, str], int], list[float]] = {}
    for curves, rows, said in told:
        asked = curves.part.rows.filter(pl.Series(rows))
        moved = needed(curves, rows, said, epsilon)
        halves = [each[1] % 2 for each in digests(asked)]
        for row, half, each in zip(rows_of_bands(asked), halves, moved, strict=True):
            found.setdefault((row, half), []).append(float(each))
            found.setdefault((row, 1 - half), [])
    return {key: band_of(values or found[key[0], 1 - key[1]]) for key, values in found.items()}
