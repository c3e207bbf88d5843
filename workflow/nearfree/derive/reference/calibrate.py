"""Calibrate kernels: from imported curves to a sealed take of groups and bands of regimes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.core.setting import Module
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.build import (
    KEPT,
    Curves,
    curves_by_form,
    decoded_layers,
    kernel_truth,
)
from nearfree.derive.reference.folds import (
    COVERED,
    Fold,
    Prediction,
    band_of,
    calibrated_bands,
    groups_of_all,
    kinds_and_halves,
    needed_shifts,
    predictions_of,
    scored_predictions,
    within_a_factor,
)
from nearfree.derive.reference.groups import Group, Key
from nearfree.derive.reference.record import (
    STREAM,
    group_of,
    newest_kernels,
    referenced,
)
from nearfree.derive.reference.regimes import R0, R1, R2, R3
from nearfree.derive.reference.siblings import Chip, chips
from nearfree.derive.work_model.constants import imported_files
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import BandsCalibrated, Payload, RegimeBand
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.sources.fetching.cache import Cache, default_cache

FORM = 11
"""Version of the forms, of their fit and of the kept curves; any change raises it."""
_LEFT_OUT: dict[str, Fold] = {R0: "R0", R1: "R1", R2: "R2m", R3: "R3"}
"""The cross-validation that calibrates the band of each regime."""


def calibrate_kernels(
    layout: Layout,
    platforms: Mapping[str, Platform],
    *,
    stream: str,
    epsilon: float,
    modules: tuple[Module, ...] = (),
    offline: bool = False,
) -> Seal:
    """Seal the kernels of a stream's curves, unless they are sealed already.

    Groups are built and bands are calibrated at `epsilon`. Only curves of `modules` count, all by
    default; records of other modules stay.

    Raises
    ------
    EvidenceError
        There are no such curves, or none that has a form.
    ConfigError
        Kernels of such a module are not kept.
    """
    unknown = [name for name in modules if name not in KEPT]
    if unknown:
        raise ConfigError(
            f"no kernels are kept of {unknown[0]!r:.40}",
            remedy=f"Choose from {', '.join(KEPT)}",
        )
    files = imported_files(layout, stream)
    curves = read_curves(layout, stream)
    if modules:
        curves = curves.of(curves.settings.filter(pl.col("module").is_in(modules)))
    curves = decoded_layers(curves)
    on_platforms = tuple(sorted(curves.settings["platform"].unique()))
    plan = CalibratePlan(
        source=stream,
        files=files,
        platforms=on_platforms,
        epsilon=epsilon,
        form=FORM,
        modules=modules,
    )
    name = take_name(PUBLIC, STREAM, 1, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=offline)
    curve_truth = kernel_truth(curves, platforms, epsilon)
    all_curves = list(curves_by_form(curve_truth, curves, datasheet_facts(platforms), resolver))
    if not all_curves:
        raise EvidenceError(
            f"no curve of {stream} has a form of T(N)",
            remedy="Give curves of platforms with facts in config/platforms.yaml",
        )
    groups = groups_of_all(all_curves, epsilon)
    events = [
        *_kernels(_unrecorded(layout, groups), curves, epsilon),
        _bands(all_curves, groups, chips(platforms), epsilon),
    ]
    module_option = f" --module {','.join(modules)}" if modules else ""
    command = f"nearfree calibrate --kernels{module_option} --stream {stream} --epsilon {epsilon:g}"
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


def _bands(
    all_curves: Sequence[Curves],
    groups: Mapping[Key, Group],
    known_chips: Mapping[str, Chip],
    epsilon: float,
) -> BandsCalibrated:
    """Return the band and scores of each regime and kind of question."""
    bands = []
    for regime, fold in _LEFT_OUT.items():
        predictions = list(
            scored_predictions(predictions_of(fold, all_curves, known_chips, epsilon, groups))
        )
        for (module, formats, routing), scores in sorted(_scores(predictions, epsilon).items()):
            shifts, hit, within_x2, covered = zip(*scores, strict=True)
            bands.append(RegimeBand(
                regime=regime, module=module, formats=formats, routing=routing,
                band=band_of(shifts), curves=len(scores), hit=_share(hit),
                within_x2=_share(within_x2), covered=_share(covered),
            ))  # fmt: skip
    return BandsCalibrated(epsilon=epsilon, covered=COVERED, bands=tuple(bands))


_Score = tuple[float, bool, bool, bool]
"""The shift of a prediction's log ratios that moves it to the truth; and whether N_max is hit, is
within a factor of 2, and is covered by the band of the other half."""


def _scores(
    predictions: Sequence[Prediction], epsilon: float
) -> dict[tuple[str, str, str], list[_Score]]:
    """Return the scores of a regime's predictions by kind of question."""
    scores: dict[tuple[str, str, str], list[_Score]] = defaultdict(list)
    half_bands = calibrated_bands(predictions, epsilon)
    for curves, rows, times in predictions:
        questions = curves.part.rows.filter(pl.Series(np.asarray(rows)))
        shifts = needed_shifts(curves, rows, times, epsilon)
        hit, within_x2 = (
            within_a_factor(curves, rows, times, epsilon, factor) for factor in (1.0, 2.0)
        )
        for (kind, half), shift, is_hit, is_within in zip(
            kinds_and_halves(questions), shifts.tolist(), hit, within_x2, strict=True
        ):
            covered = shift <= half_bands[kind, 1 - half]
            scores[kind].append((shift, bool(is_hit), bool(is_within), covered))
    return scores


def _share(flags: Sequence[bool]) -> float:
    return round(sum(flags) / len(flags), 4)
