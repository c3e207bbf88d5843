"""Whether latencies are plausible: no forward beats a GPU's bandwidth, its peak or a launch.

The fastest possible time of a point is the largest of four: compulsory bytes beyond the caches over
beta, FLOPs over phi (paper, sec. 2.3), the bytes that a collective must send over a GPU's link
bandwidth, and the shortest kernel. The check finds units that are wrong by a factor of 1000, and
rows that no hardware can have produced.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from nearfree.core.modules.indexer import LOGITS
from nearfree.core.modules.mla import ABSORBED
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyImported
from nearfree.public.curves import curves_of
from nearfree.units import BYTES_PER_GB, GFLOP_PER_TFLOP, US_PER_S

MARGIN = 3.0
"""Allowed factor below the fastest time: boost clocks, warm caches, rounded facts."""
SHORTEST_KERNEL_US = 1.5
"""Latency of an empty kernel on a GPU."""
LARGEST_CACHE_MIB = 256.0
"""Assumed cache size of a GPU whose L2 is unknown."""
TOO_SLOW = 250.0
"""Allowed slowness of a curve's best point, over the fastest time with cold caches.

Curves of the A100 and H100 are at 0.6 to 116, so at 590 or more if their unit is wrong by a factor
of 1000.
"""
_FLOP_PER_TFLOP = GFLOP_PER_TFLOP * 1e9
_BYTES_PER_MIB = 2.0**20


def with_slowness(points: pl.DataFrame, platforms: Mapping[str, Platform]) -> pl.DataFrame:
    """Return points with a column `slowness`, latency over the fastest possible time.

    Parameters
    ----------
    points
        A row per point: `platform`, the fields of a setting, `n` and `latency_us`; `context` is
        the point's own.
    platforms
        Facts by the names in `platform`.

    Returns
    -------
    polars.DataFrame
        Also `slowness_cold`, with empty caches. Both are null for whole models, and for platforms
        that are not GPUs or whose bandwidth is unknown. `slowness_cold` is also null for modules
        whose work is unknown, which gives no limit to their slowness.
    """
    facts = pl.DataFrame(
        [
            (name, dtype, *_speeds(platform, dtype))
            for name, platform in platforms.items()
            if platform.kind == "cuda" and platform.bandwidth_gb_s is not None
            for dtype in ELEMENT_BYTES
        ],
        schema=["platform", "dtype", *_FACTS],
        schema_overrides={"platform": pl.String, "dtype": pl.String}
        | dict.fromkeys(_FACTS, pl.Float64),
        orient="row",
    )
    work = {"_moved": _moved_bytes(), "_flop": _flop(), "_sent": _sent_bytes()}
    moved_bytes = pl.col("_moved")
    uncached_bytes = (moved_bytes - pl.col("_cache_bytes")).clip(lower_bound=0.0)
    has_bound = _least_us(moved_bytes).is_not_null() & ~pl.col("module").is_in(_UNBOUNDED_MODULES)
    return (
        points.join(facts, on=["platform", "dtype"], how="left", maintain_order="left")
        .with_columns(expression.alias(name) for name, expression in work.items())
        .with_columns(
            _slowness(uncached_bytes).alias("slowness"),
            pl.when(has_bound).then(_slowness(moved_bytes)).alias("slowness_cold"),
        )
        .drop(*_FACTS, *work)
    )


def too_fast(slowness: pl.Expr) -> pl.Expr:
    """Return whether a point is faster than its hardware allows; False for unknown slowness."""
    return slowness.fill_null(1.0) < 1.0 / MARGIN


def unit_too_small(slowness_cold: pl.Expr) -> pl.Expr:
    """Return whether all points of a curve look like nanoseconds labelled as microseconds."""
    return (slowness_cold.count() > 0) & (slowness_cold.min() > TOO_SLOW)


_UNBOUNDED_MODULES = ("attention_layer", "indexer")
"""Modules of several separately launched kernels, with other work than products: their slowness has
no limit."""
_FACTS = ("_peak", "_bandwidth", "_cache_bytes", "_link")


def _slowness(moved_bytes: pl.Expr) -> pl.Expr:
    """Return latency over the fastest possible time, for the bytes that must be moved."""
    fastest_us = pl.max_horizontal(_least_us(moved_bytes), pl.lit(SHORTEST_KERNEL_US))
    is_known = pl.col("_bandwidth").is_not_null() & (pl.col("module") != "model")
    return pl.when(is_known).then(pl.col("latency_us") / fastest_us)


def _least_us(moved_bytes: pl.Expr) -> pl.Expr:
    """Return the least time of a point's work in us, null if its work is unknown."""
    return pl.max_horizontal(
        moved_bytes / pl.col("_bandwidth") * US_PER_S,
        pl.col("_flop") / pl.col("_peak") * US_PER_S,
        pl.col("_sent") / pl.col("_link") * US_PER_S,
    )


def _speeds(platform: Platform, dtype: str) -> tuple[float | None, float, float, float | None]:
    """Return phi in FLOP/s, beta in bytes/s, the largest cache in bytes, and a link's bytes/s."""
    peak = platform.peak(dtype)
    return (
        None if peak is None else peak * _FLOP_PER_TFLOP,
        (platform.bandwidth_gb_s or 0.0) * BYTES_PER_GB,
        (platform.l2_mib or LARGEST_CACHE_MIB) * _BYTES_PER_MIB,
        None if platform.link_gb_s is None else platform.link_gb_s * BYTES_PER_GB,
    )


def _number(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64)


def _by_module(**expressions: pl.Expr) -> pl.Expr:
    """Return the expression of a point's module, null for a module without one."""
    return pl.coalesce(
        pl.when(pl.col("module") == name).then(value) for name, value in expressions.items()
    )


def _matrices() -> pl.Expr:
    """Return the number of matrices of an expert, an FFN or a product."""
    gated = pl.col("gated")
    return _by_module(
        gemm=pl.lit(1.0),
        dense_ffn=pl.when(gated.fill_null(value=False)).then(3.0).otherwise(2.0),
        moe_ffn=pl.when(gated.fill_null(value=True)).then(3.0).otherwise(2.0),
    )


def _flop() -> pl.Expr:
    """Return the FLOPs of a point (paper, sec. 3); of experts, a rank's even share."""
    tokens, n = _number("batch") * _number("n"), _number("n")
    product = 2.0 * tokens * _matrices() * _number("d_model") * _number("d_ff")
    pairs = n * _number("context") + n * (n + 1.0) / 2.0
    attention = 4.0 * _number("batch") * _number("heads") * _number("head_dim") * pairs
    queries, read_entries = _number("batch") * n, pl.min_horizontal(_entries(), _number("selected"))
    attended_pairs = queries * pl.min_horizontal(read_entries, n / 2.0 + _number("context"))
    absorbed = pl.col("api") == ABSORBED
    latent, rope = _number("latent"), _number("rope_dim").fill_null(0.0)
    naive = _number("nope_dim") + rope + _number("value_dim")
    width = pl.when(absorbed).then(2.0 * latent + rope).otherwise(naive)
    return _by_module(
        gemm=product,
        dense_ffn=product,
        moe_ffn=product * _number("top_k") / _number("ep"),
        attention=attention,
        mla=2.0 * _number("heads") * width * attended_pairs,
        indexer=pl.when(pl.col("api") == LOGITS).then(attention / (2.0 * _number("span"))),
        attention_layer=2.0 * tokens * _number("projected"),
    )


def _entries() -> pl.Expr:
    """Return the cache entries of a request, for cached and new positions."""
    return (_number("context") + _number("n")) / _number("span").fill_null(1.0)


def _bytes(stored: str | None = None) -> pl.Expr:
    """Return the bytes per element, in the format of the column `stored` if that is set."""
    dtype = pl.col("dtype")
    name = dtype if stored is None else pl.col(stored).fill_null(dtype)
    return name.replace_strict(ELEMENT_BYTES, return_dtype=pl.Float64)


def _moved_bytes() -> pl.Expr:
    """Return the least bytes that a point must move: weights, or keys and values.

    Of experts only those that are certainly active count: all that balanced tokens reach, otherwise
    one token's. The busiest of `ep` ranks has at least an even share of them and of the tokens.
    """
    tokens, n = _number("batch") * _number("n"), _number("n")
    reached_experts = pl.min_horizontal(_number("experts"), tokens * _number("top_k"))
    active_experts = (
        pl.when(pl.col("routing") == "balanced").then(reached_experts).otherwise(_number("top_k"))
    )
    element_bytes = _bytes()
    weight_bytes = _matrices() * _number("d_model") * _number("d_ff") * _bytes("weights")
    cached_bytes = _number("kv_heads") * (_number("context") + n) * _bytes("kv_dtype")
    kv_elements = 2.0 * _number("batch") * _number("head_dim")
    latent = _number("latent") + _number("rope_dim").fill_null(0.0)
    read_entries = pl.min_horizontal(_entries(), _number("selected"))
    entry_width = pl.when(pl.col("api") == ABSORBED).then(latent).otherwise(0.0)
    return _by_module(
        gemm=weight_bytes + tokens * (_number("d_model") + _number("d_ff")) * element_bytes,
        dense_ffn=weight_bytes + 2.0 * tokens * _number("d_model") * element_bytes,
        moe_ffn=(weight_bytes * active_experts + 2.0 * tokens * _number("d_model") * element_bytes)
        / _number("ep"),
        attention=kv_elements * (cached_bytes + _number("heads") * n * element_bytes),
        mla=_number("batch") * read_entries * entry_width * _bytes("kv_dtype"),
        indexer=_number("batch")
        * _entries()
        * _number("head_dim")
        * _bytes("kv_dtype")
        * pl.when(pl.col("api") == LOGITS).then(1.0).otherwise(0.0),
        attention_layer=_number("projected") * element_bytes,
    )


def _sent_bytes() -> pl.Expr:
    """Return the least bytes that a rank must send: all its rows except those that it keeps."""
    row_bytes = _number("batch") * _number("n") * _number("d_model") * _bytes()
    sends_all = pl.col("operation").is_in(["all_reduce", "send"])
    kept_share = pl.when(sends_all).then(0.0).otherwise(1.0 / _number("gpus"))
    return row_bytes * (1.0 - kept_share)


def check_units(
    path: Path,
    curves: Sequence[LatencyImported],
    lines: Sequence[Sequence[int]],
    platforms: Mapping[str, Platform],
) -> list[str]:
    """Refuse curves that are too fast for their hardware, or 1000 times too slow.

    `lines` are the file's line of each point, per curve.

    Returns
    -------
    list of str
        Platforms with unchecked points: too few facts are known, or the curves are of models.

    Raises
    ------
    ConfigError
        The message names the file's line, the ratio and the unit that it looks like.
    """
    frames = curves_of((curve, str(number)) for number, curve in enumerate(curves))
    line_column = pl.Series(
        "line", [line for curve_lines in lines for line in curve_lines], dtype=pl.Int64
    )
    points = with_slowness(
        frames.points.drop("context")
        .with_columns(line_column)
        .join(frames.settings, on="curve", maintain_order="left"),
        platforms,
    )
    typical = pl.col("slowness").median().over("curve").alias("typical")
    too_fast_points = points.with_columns(typical).filter(too_fast(pl.col("slowness"))).sort("line")
    if not too_fast_points.is_empty():
        worst = too_fast_points.row(0, named=True)
        ratio = 1.0 / worst["slowness"]
        # A wrong unit makes most of a curve too fast; a wrong row or fact rarely does.
        is_wrong_unit = worst["typical"] < 1.0 / MARGIN
        unit_hint = "; latency_us looks like milliseconds" if is_wrong_unit else ""
        raise ConfigError(
            f"{path} line {worst['line']}, column latency_us: {worst['latency_us']:g} us is "
            f"{ratio:.3g} times faster than {worst['platform']} can be{unit_hint}",
            remedy="Give microseconds a forward, and check platform, dtype and shape; "
            f"up to {MARGIN:g} times faster is allowed",
        )
    too_slow_curves = (
        points.group_by("curve", maintain_order=True)
        .agg(
            pl.col("line").first(),
            pl.col("slowness_cold").min().alias("least"),
            pl.col("platform").first(),
            unit_too_small(pl.col("slowness_cold")).alias("slow"),
        )
        .filter("slow")
    )
    if not too_slow_curves.is_empty():
        worst = too_slow_curves.row(0, named=True)
        raise ConfigError(
            f"{path} line {worst['line']}, column latency_us: every point of this curve is at "
            f"least {worst['least']:.3g} times slower than {worst['platform']} can be; latency_us "
            "looks like nanoseconds",
            remedy="Give microseconds a forward, and check platform, dtype and shape",
        )
    return points.filter(pl.col("slowness").is_null())["platform"].unique().sort().to_list()
