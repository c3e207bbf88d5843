"""Errors of collectives' T, at scored sizes that no constant was fitted to."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from nearfree.core.setting import Setting
from nearfree.derive.score.collectives import LEAST_KIB, MOST_MIB, grouped, left_out_errors
from nearfree.derive.work_model.families import FAMILIES
from nearfree.log.events import LatencyImported
from nearfree.public.curves import ImportedCurves, curves_of

from derive.questions import FACTS
from derive.work_model.forms import arrays, start

FAMILY = FAMILIES["collective_nccl"]
VALUES = start(FAMILY, simple_share=0.5, simple_fixed_us=15.0)
LINKS = {"a100": 300e3, "h100": 450e3}
"""Bytes a microsecond, of datasheets."""
N = tuple(2**step for step in range(9, 26, 2))


def curve(platform: str, gpus: int, factor: float) -> LatencyImported:
    """Return a gather whose T is a factor of NCCL's form."""
    sent = {"sent": 2.0 * np.array([N]) * (gpus - 1) / gpus}
    link = LINKS[platform]
    facts = {"steps": gpus - 1, "nodes": 1, "link": link, "reached": link, "nvlink5": 0,
             "nvls": 0, "exchange": 0}  # fmt: skip
    features: dict[str, Any] = arrays([*N], **facts) | sent | {"switched": sent["sent"]}
    times = factor * FAMILY.latency_us(features, VALUES, "protocols")[0]
    return LatencyImported(
        source="any", member="any", member_sha256="0" * 64, platform=platform,
        setting=Setting(module="collective", backend="nccl", dtype="bfloat16", d_model=1,
                        operation="all_gather", gpus=gpus),
        backend_version="2", kernel="NCCL", distribution=None, n=N,
        latency_us=tuple(times.tolist()), contexts=None,
    )  # fmt: skip


def curves(**factors: float) -> ImportedCurves:
    """Return curves for 2, 4 and 8 GPUs, each platform's T a factor of the form's."""
    every = [curve(name, gpus, factor) for name, factor in factors.items() for gpus in (2, 4, 8)]
    return curves_of((event, str(place)) for place, event in enumerate(every))


def test_a_platform_that_follows_the_form_is_met() -> None:
    """If both platforms follow one form, each is predicted by the other's constants."""
    errors = left_out_errors(curves(a100=1.0, h100=1.0), FACTS)
    assert set(errors["platform"]) == set(LINKS)
    assert errors["error"].max() < 0.01


def test_its_own_curves_are_not_seen() -> None:
    """A platform with half the link rate of the other is off by that factor."""
    errors = left_out_errors(curves(a100=2.0, h100=1.0), FACTS)
    rows = grouped(errors, ["platform"]).sort("platform")["median_error"].to_list()
    assert rows == pytest.approx([0.5, 1.0], abs=0.05)


def test_payloads_are_those_of_decoding() -> None:
    """Smaller and larger payloads than the scored ones are left out."""
    errors = left_out_errors(curves(a100=1.0, h100=1.0), FACTS)
    assert errors["payload_bytes"].min() >= LEAST_KIB * 2**10
    assert errors["payload_bytes"].max() <= MOST_MIB * 2**20
    assert errors.height == 2 * 3 * sum(LEAST_KIB * 512 <= n <= MOST_MIB * 2**19 for n in N)


def test_one_platform_alone_is_not_scored() -> None:
    """A single platform is not scored, since no other gives constants."""
    assert left_out_errors(curves(a100=1.0), FACTS).is_empty()


def test_groups_say_how_many_and_how_far() -> None:
    """A group has its points, platforms, median error and 90th percentile."""
    points = pl.DataFrame({"platform": ["a"] * 5 + ["b"] * 6, "error": [n / 10 for n in range(11)]})
    (row,) = grouped(points.with_columns(kernel=pl.lit("k")), ["kernel"]).to_dicts()
    assert row == {"kernel": "k", "platforms": 2, "points": 11, "median_error": 0.5,
                   "error_90": 0.9}  # fmt: skip
