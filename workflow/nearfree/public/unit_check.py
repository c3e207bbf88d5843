"""Whether a file's latencies are microseconds: held against what the hardware can do."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyImported
from nearfree.public.curves import curves_of
from nearfree.public.plausible import MARGIN, too_fast, unit_too_small, with_slowness


def check_units(
    path: Path,
    curves: Sequence[LatencyImported],
    lines: Sequence[Sequence[int]],
    platforms: Mapping[str, Platform],
) -> list[str]:
    """Refuse curves that are too fast for their hardware, or 1000 times too slow.

    Parameters
    ----------
    lines
        For each curve the file's line of each point.

    Returns
    -------
    list of str
        The platforms of which too little is known for this check, or `model` curves' platforms.

    Raises
    ------
    ConfigError
        The message names the file's line, the ratio and the unit that it looks like.
    """
    frames = curves_of((curve, str(number)) for number, curve in enumerate(curves))
    place = pl.Series("line", [line for mine in lines for line in mine], dtype=pl.Int64)
    points = with_slowness(
        frames.points.drop("context")
        .with_columns(place)
        .join(frames.settings, on="curve", maintain_order="left"),
        platforms,
    )
    typical = pl.col("slowness").median().over("curve").alias("typical")
    fast = points.with_columns(typical).filter(too_fast(pl.col("slowness"))).sort("line")
    if not fast.is_empty():
        worst = fast.row(0, named=True)
        ratio = 1.0 / worst["slowness"]
        # A wrong unit makes most of a curve too fast, a wrong row or fact hardly ever.
        unit = worst["typical"] < 1.0 / MARGIN
        looks = "; latency_us looks like milliseconds" if unit else ""
        raise ConfigError(
            f"{path} line {worst['line']}, column latency_us: {worst['latency_us']:g} us is "
            f"{ratio:.3g} times faster than {worst['platform']} can be{looks}",
            remedy="Give microseconds a forward, and check platform, dtype and shape; "
            f"up to {MARGIN:g} times faster is allowed",
        )
    slow = (
        points.group_by("curve", maintain_order=True)
        .agg(
            pl.col("line").first(),
            pl.col("slowness_cold").min().alias("least"),
            pl.col("platform").first(),
            unit_too_small(pl.col("slowness_cold")).alias("slow"),
        )
        .filter("slow")
    )
    if not slow.is_empty():
        worst = slow.row(0, named=True)
        raise ConfigError(
            f"{path} line {worst['line']}, column latency_us: every point of this curve is at "
            f"least {worst['least']:.3g} times slower than {worst['platform']} can be; latency_us "
            "looks like nanoseconds",
            remedy="Give microseconds a forward, and check platform, dtype and shape",
        )
    return points.filter(pl.col("slowness").is_null())["platform"].unique().sort().to_list()
