"""A platform's own constants: fitted on it, on top of the constants of other platforms.

They are one number from printed boundaries, the host's launch floor; or two factors from a few
curves, for the chip and for the memory. Answers by them are in sample.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl
from msgspec import Struct, structs

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
from nearfree.derive.work_model.fit import selected_features
from nearfree.derive.work_model.prepare import Prepared
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated, Event
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout

OWN_STREAM = "constants_own"
"""The log's stream of own constants."""
HOST = Constant("host_us", "us", 0.0, 1.0, 400.0,
                "what the host takes to launch the kernels of a layer one by one")  # fmt: skip
CHIP = Constant("chip", "1", 1.0, 0.25, 4.0,
                "factor on what this platform's SMs do, tiles and L2 included")  # fmt: skip
MEMORY = Constant("memory", "1", 1.0, 0.25, 4.0,
                  "factor on the share of beta that this platform reaches")  # fmt: skip
_SCALED = {"compute_share": "chip", "tflop_s_per_sm": "chip", "l2_over_memory": "chip",
           "bandwidth_share": "memory"}  # fmt: skip
_DIVIDED = {"tile_us": "chip"}


class Own(Struct, frozen=True):
    """The own constants of one platform and family, by name, and their event."""

    values: Values
    event: Event


def scaled(values: Values, own: Values) -> dict[str, float]:
    """Return a form's constants, scaled by a platform's factors; missing factors are 1."""
    return {
        name: value * own.get(_SCALED.get(name, ""), 1.0) / own.get(_DIVIDED.get(name, ""), 1.0)
        for name, value in values.items()
    }


def own_ratios(family: Family, fitted: Fitted, own: Values, features: Features) -> Array:
    """Return T(N) / T(first N of the grid) with a platform's own constants, [rows, grid].

    With a launch floor T(N) = max(host_us, T(N) - fixed_us): the launches of single kernels by the
    host hide the fixed time.
    """
    values = {name: scaled(constants, own) for name, constants in fitted.values.items()}
    times_us = latencies_us(family, structs.replace(fitted, values=values), features)
    if HOST.name in own:
        fixed_by_hypothesis = np.array([values[name]["fixed_us"] for name in family.hypotheses])
        fixed_us = fixed_by_hypothesis[:, None, None] * (1.0 - features.get("eager", 0.0))
        times_us = np.maximum(own[HOST.name], times_us - fixed_us)
    logs = np.log(times_us).mean(axis=0)
    return np.asarray(np.exp(logs - logs[:, :1]))


def with_own(
    part: Prepared, fitted: Fitted, ratio: Array, own: Mapping[str, Mapping[str, Own]]
) -> Array:
    """Return `ratio` [rows, grid] of shared constants, by own ones where a platform has them."""
    result = ratio.copy()
    for platform, platform_own in own.get(part.family.name, {}).items():
        rows = (part.rows["platform"] == platform).to_numpy()
        if rows.any():
            features = selected_features(part.features, rows)
            result[rows] = own_ratios(part.family, fitted, platform_own.values, features)
    return result


def hosts(own: Mapping[str, Own]) -> list[str]:
    """Return the platforms with a launch floor among a family's own constants."""
    return [platform for platform, platform_own in own.items() if HOST.name in platform_own.values]


def own_text(own: Mapping[str, Own]) -> pl.Expr:
    """Return a text on the own constants of each row's platform; null without them."""
    texts = {}
    for platform, platform_own in own.items():
        constants = platform_own.event.data.constants
        values = ", ".join(
            f"{constant.name} {constant.value:g} {constant.unit}" for constant in constants
        )
        texts[platform] = f"; own of {platform}: {values} ({platform_own.event.event_id})"
    return pl.col("platform").replace_strict(texts, default=None, return_dtype=pl.String)


def recorded_own(layout: Layout, constants: Mapping[str, Event]) -> dict[str, dict[str, Own]]:
    """Return the newest own constants by family and platform.

    Parameters
    ----------
    constants
        The newest calibration of each family, on which own constants must be based.

    Raises
    ------
    EvidenceError
        Own constants are based on a calibration that is not the newest.
    """
    newest: dict[tuple[str, str], tuple[Event, Take]] = {}
    for take in sorted(read_scope(layout, PUBLIC, stream=OWN_STREAM), key=lambda take: take.order):
        for event in calibrations(take):
            newest[event.data.family, event.data.platforms[0]] = event, take
    own_constants: dict[str, dict[str, Own]] = {}
    for (family, platform), (event, take) in newest.items():
        own_constants.setdefault(family, {})[platform] = _checked(event, take, constants)
    return own_constants


def _checked(event: Event, take: Take, constants: Mapping[str, Event]) -> Own:
    own: ConstantsCalibrated = event.data
    base = constants.get(own.family)
    if base is None or take.started.data.plan.files.get(base.event_id) != base.hash:
        raise EvidenceError(
            f"{event.event_id}: the own constants of {own.platforms[0]} rest on constants of "
            f"{own.family} that are not the newest",
            remedy="Run `nearfree calibrate --own` for the platform again",
        )
    return Own({constant.name: constant.value for constant in own.constants}, event)


def curves_used(own: Mapping[str, Mapping[str, Own]]) -> list[str]:
    """Return the event ids of the curves behind own constants, from their `selection`."""
    texts = [
        platform_own.event.data.selection
        for by_platform in own.values()
        for platform_own in by_platform.values()
    ]
    return [word for text in texts for word in text.replace(",", " ").split() if "#" in word]
