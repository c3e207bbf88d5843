"""The fit: known constants are found, runs agree to the byte, and the band covers the misses."""

from typing import Any

import msgspec
import numpy as np
import pytest
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Family, Fitted, ratios_of
from nearfree.derive.work_model.fit import Measured, band, fit, selected_curves

from derive.work_model.forms import of_family

EPSILON = 0.2
SINGLE = [name for name, family in FAMILIES.items() if len(family.hypotheses) == 1]


def known(family: Family) -> dict[str, float]:
    """Return constants away from the start of a calibration."""
    return {
        constant.name: min(1.2 * constant.start, (constant.start + constant.high) / 2)
        for constant in family.constants
    }


def curves(name: str, hypothesis: str, noise: float = 0.0) -> Measured:
    """Return curves of a family with known constants, each shifted up or down by `noise`."""
    family, part = FAMILIES[name], of_family(name)
    times = family.latency_us(part.features, known(family), hypothesis)
    off = np.random.default_rng(5).choice([-noise, noise], size=times.shape)
    return Measured(features=part.features, latency_us=times * np.exp(off), counts=part.counts)


@pytest.mark.parametrize(
    ("name", "hypothesis"), [(f.name, h) for f in FAMILIES.values() for h in f.hypotheses]
)
def test_known_constants_are_found_again(name: str, hypothesis: str) -> None:
    """Curves that follow a form without noise give back their T(N)."""
    family, measured = FAMILIES[name], curves(name, hypothesis)
    fitted = fit(family, measured, EPSILON)
    times = family.latency_us(measured.features, fitted.values[hypothesis], hypothesis)
    ratio, true = times / times[:, :1], measured.latency_us / measured.latency_us[:, :1]
    near = (true <= 1 + EPSILON) & measured.counts
    assert np.abs(np.log(ratio / true))[near].max() < 0.001
    assert np.abs(np.log(times / measured.latency_us)).max() < 0.001


@pytest.mark.parametrize("name", SINGLE)
def test_no_band_where_nothing_is_missed(name: str) -> None:
    """If curves of both platforms follow the form with equal constants, the band is near zero."""
    measured = curves(name, FAMILIES[name].hypotheses[0])
    platforms = of_family(name).rows["platform"].to_list()
    assert band(FAMILIES[name], measured, platforms, EPSILON) < 0.001


def test_a_band_where_the_platforms_differ() -> None:
    """Curves of one platform that rise earlier than the form widen the band."""
    name = "moe_library"
    plain = curves(name, "best_tile")
    platforms = of_family(name).rows["platform"].to_list()
    odd = np.array(platforms)[:, None] == "h100"
    steeper = (plain.latency_us / plain.latency_us[:, :1]) ** np.where(odd, 2.0, 1.0)
    bent = msgspec.structs.replace(plain, latency_us=plain.latency_us[:, :1] * steeper)
    family = FAMILIES[name]
    assert band(family, bent, platforms, EPSILON) > 0.02 > band(family, plain, platforms, EPSILON)


def test_the_band_of_one_group_is_that_of_its_own_fit() -> None:
    """A single group has the band of its own fit, since no other can be left out."""
    family, measured = FAMILIES["moe_library"], curves("moe_library", "best_tile", noise=0.08)
    alone = band(family, measured, ["h100"] * len(measured.counts), EPSILON)
    assert 0 < alone < 0.2


def test_intervals_of_the_band_meet_most_curves() -> None:
    """Intervals of T(N) within the band contain four in five boundaries, as quantiles count."""
    family, measured = FAMILIES["moe_library"], curves("moe_library", "best_tile", noise=0.08)
    wide = band(family, measured, ["h100"] * len(measured.counts), EPSILON)
    predicted = np.log(ratios_of(family, fit(family, measured, EPSILON), measured.features))
    true = np.log(measured.latency_us / measured.latency_us[:, :1])
    limit, places = np.log1p(EPSILON), np.arange(true.shape[1])
    met = 0
    for row in range(len(true)):
        last = places[true[row] <= limit].max()
        low, high = (
            places[(predicted[row] <= limit + off) | (places == 0)].max()
            for off in (-1.001 * wide, 1.001 * wide)
        )
        met += low <= last <= high
    assert met >= 0.8 * (len(true) - 1)


@pytest.mark.parametrize("name", ["gemm", "moe_triton"])
def test_a_fit_is_the_same_to_the_byte(name: str) -> None:
    """Equal curves give equal constants, to the byte."""
    measured = curves(name, FAMILIES[name].hypotheses[0], noise=0.02)
    one, two = (msgspec.json.encode(fit(FAMILIES[name], measured, EPSILON)) for _ in range(2))
    assert one == two


def test_what_follows_far_beyond_the_boundary_does_not_count() -> None:
    """Neither T(N) beyond four times N_max nor padding points change a fit."""
    name = "moe_triton"
    measured = curves(name, "rules")
    ratio = measured.latency_us / measured.latency_us[:, :1]
    n = measured.features["n"]
    n_max = np.where(ratio <= 1 + EPSILON, n, 0.0).max(axis=1, keepdims=True)
    far = n > 4 * n_max
    assert far.any()
    other = msgspec.structs.replace(
        measured, latency_us=np.where(far, 9 * measured.latency_us, measured.latency_us)
    )
    hidden = msgspec.structs.replace(other, counts=other.counts & ~far)
    fits = [fit(FAMILIES[name], curve, EPSILON) for curve in (measured, other, hidden)]
    assert fits[0] == fits[1] == fits[2]


def test_some_of_the_curves() -> None:
    """A selection keeps the same rows of every array, also inside lists of products."""
    measured = curves("gemm", "tile_16")
    mask = np.arange(len(measured.counts)) % 2 == 0
    half = selected_curves(measured, mask)
    matrices: Any = measured.features["matrices"]
    assert half.latency_us.tolist() == measured.latency_us[mask].tolist()
    assert half.features["phi"].tolist() == measured.features["phi"][mask].tolist()
    assert half.features["matrices"][0][1].tolist() == matrices[0][1][mask].tolist()
    assert half.features["matrices"][0][2] == matrices[0][2]


def test_a_fit_names_every_hypothesis() -> None:
    """Each hypothesis has constants of its own, all within their ranges."""
    family = FAMILIES["gemm"]
    fitted: Fitted = fit(family, curves("gemm", "tile_128"), EPSILON)
    assert tuple(fitted.values) == family.hypotheses
    for values in fitted.values.values():
        assert all(
            constant.low <= values[constant.name] <= constant.high for constant in family.constants
        )
