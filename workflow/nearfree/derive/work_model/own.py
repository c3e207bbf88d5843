"""A platform's own constants: what was fitted on it, on top of those of other platforms.

One number from printed boundaries, the host's launch floor; or two factors from a few curves, for
what happens on the chip and for the memory. Answers that rest on them are in sample.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.scopes import PUBLIC
from nearfree.derive.work_model.constants import calibrations
from nearfree.derive.work_model.family import (
    Array,
    Constant,
    Family,
    Features,
    Fitted,
    Values,
    latencies_us,
)
from nearfree.derive.work_model.fit import Measured, taken
from nearfree.derive.work_model.prepare import Prepared
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated, Event
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout

OWN_STREAM = "constants_own"
"""Where own constants stand in the log."""
HOST = Constant(
    name="host_us", unit="us", start=0.0, low=1.0, high=400.0,
    meaning="what the host takes to launch the kernels of a layer one by one",
)  # fmt: skip
CHIP, MEMORY = (
    Constant(name=name, unit="1", start=1.0, low=0.25, high=4.0, meaning=meaning)
    for name, meaning in (
        ("chip", "factor on what this platform's SMs do, tiles and L2 included"),
        ("memory", "factor on the share of beta that this platform reaches"),
    )
)
_SCALED = {"compute_share": "chip", "tflop_s_per_sm": "chip", "l2_over_memory": "chip",
           "bandwidth_share": "memory"}  # fmt: skip
_DIVIDED = {"tile_us": "chip"}


class Own(Struct, frozen=True):
    """The own constants of one platform and family, by name, and the event that holds them."""

    values: Values
    event: Event


def scaled(values: Values, own: Values) -> dict[str, float]:
    """Return constants of a form with a platform's factors on them; missing factors are 1."""
    return {
        name: value * own.get(_SCALED.get(name, ""), 1.0) / own.get(_DIVIDED.get(name, ""), 1.0)
        for name, value in values.items()
    }


def own_ratios(family: Family, fitted: Fitted, own: Values, features: Features) -> Array:
    """Return T(N) / T(first N of the grid) with a platform's own constants, [rows, grid].

    With a launch floor T(N) = max(host_us, T(N) - fixed_us): a host that launches kernel by kernel
    hides what is fixed behind its launches.
    """
    values = {name: scaled(each, own) for name, each in fitted.values.items()}
    changed = Fitted(family=fitted.family, values=values, band=fitted.band)
    times = latencies_us(family, changed, features)
    if HOST.name in own:
        fixed = np.array([values[name]["fixed_us"] for name in family.hypotheses])
        shown = fixed[:, None, None] * (1.0 - features.get("eager", 0.0))
        times = np.maximum(own[HOST.name], times - shown)
    logs = np.log(times).mean(axis=0)
    return np.asarray(np.exp(logs - logs[:, :1]))


def with_own(
    part: Prepared, fitted: Fitted, ratio: Array, own: Mapping[str, Mapping[str, Own]]
) -> Array:
    """Return T(N) / T(baseline), with their own constants where a row's platform has some.

    Parameters
    ----------
    ratio
        What it is without, [rows, grid].
    """
    changed = ratio.copy()
    for platform, mine in own.get(part.family.name, {}).items():
        rows = (part.rows["platform"] == platform).to_numpy()
        if rows.any():
            every = Measured(features=part.features, latency_us=ratio, counts=part.counts)
            given = taken(every, rows).features
            changed[rows] = own_ratios(part.family, fitted, mine.values, given)
    return changed


def hosts(own: Mapping[str, Own]) -> list[str]:
    """Return the platforms on which a launch floor was fitted, of the own constants of a family."""
    return [platform for platform, mine in own.items() if HOST.name in mine.values]


def own_text(own: Mapping[str, Own]) -> pl.Expr:
    """Return what own constants each row of a family rests on, by its platform; null without."""
    texts = pl.lit(None, pl.String)
    for platform, mine in own.items():
        constants = mine.event.data.constants
        used = ", ".join(f"{each.name} {each.value:g} {each.unit}" for each in constants)
        text = f"; own of {platform}: {used} ({mine.event.event_id})"
        texts = pl.when(pl.col("platform") == platform).then(pl.lit(text)).otherwise(texts)
    return texts


def recorded_own(layout: Layout, constants: Mapping[str, Event]) -> dict[str, dict[str, Own]]:
    """Return the newest own constants by family and platform.

    Parameters
    ----------
    constants
        The newest calibration of each family, on which the own ones must rest.

    Raises
    ------
    EvidenceError
        Own constants rest on a calibration that is not the newest.
    """
    newest: dict[tuple[str, str], tuple[Event, Take]] = {}
    for take in sorted(read_scope(layout, PUBLIC, stream=OWN_STREAM), key=lambda take: take.order):
        for event in calibrations(take):
            newest[event.data.family, event.data.platforms[0]] = event, take
    found: dict[str, dict[str, Own]] = {}
    for (family, platform), (event, take) in newest.items():
        found.setdefault(family, {})[platform] = _checked(event, take, constants)
    return found


def _checked(event: Event, take: Take, constants: Mapping[str, Event]) -> Own:
    own: ConstantsCalibrated = event.data
    base = constants.get(own.family)
    if base is None or take.started.data.plan.files.get(base.event_id) != base.hash:
        raise EvidenceError(
            f"{event.event_id}: the own constants of {own.platforms[0]} rest on constants of "
            f"{own.family} that are not the newest",
            remedy="Run `nearfree calibrate --own` for the platform again",
        )
    return Own({each.name: each.value for each in own.constants}, event)


def curves_used(own: Mapping[str, Mapping[str, Own]]) -> list[str]:
    """Return the event ids of the curves that own constants were fitted to, as they name them."""
    texts = [each.event.data.selection for of in own.values() for each in of.values()]
    return [word for text in texts for word in text.replace(",", " ").split() if "#" in word]
