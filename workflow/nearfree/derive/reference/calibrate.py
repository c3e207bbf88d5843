"""Kernels from imported curves to a sealed take: groups, and the bands of regimes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.core.setting import Module
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.build import (
    KEPT,
    Curves,
    curves_by_form,
    decoded,
    known_truth,
)
from nearfree.derive.reference.folds import (
    COVERED,
    Fold,
    band_of,
    bands,
    digests,
    groups_of_all,
    needed,
    only_scored,
    predicted,
    within_a_factor,
)
from nearfree.derive.reference.groups import Group, Key
from nearfree.derive.reference.record import (
    STREAM,
    group_of,
    newest_kernels,
    referenced,
    rows_of_bands,
)
from nearfree.derive.reference.regimes import R0, R1, R2, R3, Known
from nearfree.derive.reference.siblings import Chip, chips
from nearfree.derive.work_model.family import Flags
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import BandsCalibrated, Payload, RegimeBand
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.sources.fetching.cache import Cache, default_cache

FORM = 11
"""Number of the forms, of their fit and of what is kept; a change of any raises it. 2 has latent
attention, indexers and attention layers; 3 says how good each regime is; 4 has the depth of a tile
of products in four bits; 5 has attention layers as rows that are decoded; 6 packs codes as
steps; 7 learns from light products, too, and from none that a cache held; 8 has attention that
decodes one position, 9 that of each engine by its own kernel; 10 has the warps and stages of
fallback rules; 11 has points of experts below the N from which all are awake."""
_LEFT_OUT: dict[str, Fold] = {R0: "R0", R1: "R1", R2: "R2m", R3: "R3"}
"""What is left out to calibrate the band of a regime."""


def calibrate_kernels(
    layout: Layout,
    platforms: Mapping[str, Platform],
    *,
    stream: str,
    epsilon: float,
    modules: tuple[Module, ...] = (),
    offline: bool = False,
) -> Seal:
    """Make sure that what a stream's curves say of each kernel is sealed.

    Parameters
    ----------
    epsilon
        The tolerance that groups are made and bands are calibrated at.
    modules
        The modules whose curves count, all if none is named; of others what is on record stays.

    Raises
    ------
    EvidenceError
        There are no such curves, or none that a form speaks of.
    ConfigError
        No kernels are kept of such a module.
    """
    unknown = [name for name in modules if name not in KEPT]
    if unknown:
        raise ConfigError(
            f"no kernels are kept of {unknown[0]!r:.40}",
            remedy=f"Choose from {', '.join(KEPT)}",
        )
    takes = read_scope(layout, IMPORTED, stream=stream)
    if not takes:
        raise EvidenceError(
            f"the log holds no imported curves of {stream}",
            remedy="Run `nearfree import aiconfigurator`, or name another --stream",
        )
    files = dict(max(takes, key=lambda take: take.order).started.data.plan.files)
    curves = read_curves(layout, stream)
    if modules:
        asked = curves.settings.filter(pl.col("module").is_in(modules))
        points = curves.points.join(asked.select("curve"), on="curve", how="semi")
        curves = ImportedCurves(settings=asked, points=points)
    curves = decoded(curves)
    on = tuple(sorted(curves.settings["platform"].unique()))
    plan = CalibratePlan(
        source=stream, files=files, platforms=on, epsilon=epsilon, form=FORM, modules=modules
    )
    name = take_name(PUBLIC, STREAM, 1, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=offline)
    known = known_truth(curves, platforms, epsilon)
    every = list(curves_by_form(known, curves, datasheet_facts(platforms), resolver))
    if not every:
        raise EvidenceError(
            f"no curve of {stream} is one that a form speaks of",
            remedy="Give curves of platforms with facts in config/platforms.yaml",
        )
    groups = groups_of_all(every, epsilon)
    events = [
        *_kernels(_unrecorded(layout, groups), curves, epsilon),
        _bands(every, groups, chips(platforms), epsilon),
    ]
    some = f" --module {','.join(modules)}" if modules else ""
    command = f"nearfree calibrate --kernels{some} --stream {stream} --epsilon {epsilon:g}"
    return ensure_events(layout, name, plan, command, lambda: events)


def _unrecorded(layout: Layout, groups: Mapping[Key, Group]) -> dict[Key, Group]:
    """Return the groups that the log does not hold already."""
    recorded, _ = newest_kernels(layout)
    return {
        key: group
        for key, group in groups.items()
        if key not in recorded or not group.says_the_same(group_of(recorded[key]))
    }


def _kernels(
    groups: Mapping[Key, Group], curves: ImportedCurves, epsilon: float
) -> Iterator[Payload]:
    members = dict(curves.settings.select("member", "member_sha256").unique().iter_rows())
    source = str(curves.settings["source"][0])
    for group in groups.values():
        yield referenced(group, source=source, epsilon=epsilon, members=members)


class _Kind(NamedTuple):
    """What is found of one kind of question in a regime, of each curve."""

    moved: list[float]
    """How far its prediction must be moved to meet the truth."""
    hit: list[bool]
    near: list[bool]
    covered: list[bool]


def _bands(
    every: Sequence[Curves],
    groups: Mapping[Key, Group],
    known_chips: Mapping[str, Chip],
    epsilon: float,
) -> BandsCalibrated:
    """Return the band of each regime and kind of question, by what its curves needed."""
    rows = []
    for regime, fold in _LEFT_OUT.items():
        told = list(only_scored(predicted(fold, every, known_chips, epsilon, groups)))
        rows += [
            RegimeBand(
                regime=regime, module=module, formats=formats, routing=routing,
                band=band_of(found.moved), curves=len(found.moved), hit=_share(found.hit),
                within_x2=_share(found.near), covered=_share(found.covered),
            )
            for (module, formats, routing), found in sorted(_kinds(told, epsilon).items())
        ]  # fmt: skip
    return BandsCalibrated(epsilon=epsilon, covered=COVERED, bands=tuple(rows))


def _kinds(
    told: Sequence[tuple[Curves, Flags, Known]], epsilon: float
) -> dict[tuple[str, str, str], _Kind]:
    """Return how good what a regime said of curves is, by the kind of question."""
    kinds: dict[tuple[str, str, str], _Kind] = {}
    halves = bands(told, epsilon)
    for curves, rows, said in told:
        asked = curves.part.rows.filter(pl.Series(np.asarray(rows)))
        moved = needed(curves, rows, said, epsilon)
        hit, near = (within_a_factor(curves, rows, said, epsilon, each) for each in (1.0, 2.0))
        for row, digest, move, right, close in zip(
            rows_of_bands(asked), digests(asked), moved.tolist(), hit, near, strict=True
        ):
            found = kinds.setdefault(row, _Kind([], [], [], []))
            found.moved.append(move)
            found.hit.append(bool(right))
            found.near.append(bool(close))
            found.covered.append(move <= halves[row, 1 - digest[1] % 2])
    return kinds


def _share(of: Sequence[bool]) -> float:
    return round(sum(of) / len(of), 4)
