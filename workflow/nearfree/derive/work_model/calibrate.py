"""One calibration, from imported curves to sealed constants."""

from collections.abc import Mapping, Sequence

import polars as pl

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import IMPORTED, PUBLIC
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.constants import STREAM, calibrated
from nearfree.derive.work_model.samples import samples
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.platforms import Platform
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.public.curves import ImportedCurves, read_curves
from nearfree.sources.fetching.cache import Cache, default_cache

FORM = 1
"""Number of the forms of T(N) and of the fit; a change of either raises it."""


def calibrate(
    layout: Layout,
    platforms: Mapping[str, Platform],
    on: Sequence[str],
    *,
    stream: str,
    epsilon: float,
    offline: bool = False,
) -> Seal:
    """Make sure that the constants fitted to a stream's curves of some platforms are sealed.

    Parameters
    ----------
    on
        The platforms that are calibrated on; every other one is out of sample.
    stream
        The imported curves.
    epsilon
        The tolerance up to four times whose N_max curves are fitted.

    Raises
    ------
    EvidenceError
        There are no such curves, or none of a platform.
    ConfigError
        A platform has no facts.
    """
    takes = read_scope(layout, IMPORTED, stream=stream)
    if not takes:
        raise EvidenceError(
            f"the log holds no imported curves of {stream}",
            remedy="Run `nearfree import aiconfigurator`, or name another --stream",
        )
    newest = max(takes, key=lambda take: take.order)
    files = dict(newest.started.data.plan.files)
    plan = CalibratePlan(
        source=stream, files=files, platforms=tuple(on), epsilon=epsilon, form=FORM
    )

    name = take_name(PUBLIC, STREAM, 1, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    # What can be refused is refused before the take is opened.
    curves = _of_platforms(read_curves(layout, stream), on)
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=offline)
    found = samples(curves, datasheet_facts(platforms), resolver)
    if not found:
        raise ConfigError(
            f"no curve of {stream} on {', '.join(on)} can be calibrated on",
            remedy="Give platforms with facts in config/platforms.yaml and 16-bit curves",
        )
    events = calibrated(found, platforms=on, epsilon=epsilon, files=files)

    command = f"nearfree calibrate --on {','.join(on)} --stream {stream} --epsilon {epsilon:g}"
    return ensure_events(layout, name, plan, command, lambda: events)


def _of_platforms(curves: ImportedCurves, on: Sequence[str]) -> ImportedCurves:
    there = set(curves.settings["platform"].unique())
    missing = [name for name in on if name not in there]
    if missing:
        raise EvidenceError(
            f"there is no curve of {missing[0]}",
            remedy=f"Choose from {', '.join(sorted(there))}",
        )
    kept = curves.settings.filter(pl.col("platform").is_in(list(on)))
    points = curves.points.join(kept.select("curve"), on="curve", how="semi", maintain_order="left")
    return ImportedCurves(kept, points)
