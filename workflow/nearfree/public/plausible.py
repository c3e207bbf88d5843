"""Whether latencies can be true: no forward beats a GPU's bandwidth, its peak or its own launch.

The fastest possible time of a point is the largest of four: compulsory bytes that no cache can
hold over beta, FLOPs over phi (paper, sec. 2.3), what a collective must send over a GPU's links,
and the shortest kernel. It finds mistakes of a factor of 1000 in a unit, and rows that no hardware
can have produced.
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
"""How far below the fastest time a latency may lie: boost clocks, warm caches, rounded facts."""
SHORTEST_KERNEL_US = 1.5
"""Microseconds that an empty kernel takes on a GPU."""
LARGEST_CACHE_MIB = 256.0
"""What a GPU whose L2 is not known may hold in its caches."""
TOO_SLOW = 250.0
"""Times the fastest time with cold caches that a curve may need at its best point.

Curves of the A100 and H100 need 0.6 to 116 times it, and so 590 times or more if their unit is
mistaken by a factor of 1000.
"""
_FLOP_PER_TFLOP = GFLOP_PER_TFLOP * 1e9
_BYTES_PER_MIB = 2.0**20


def with_slowness(points: pl.DataFrame, platforms: Mapping[str, Platform]) -> pl.DataFrame:
    """Return points with a column `slowness`, latency over the fastest possible time.

    Parameters
    ----------
    points
        One row a point: `platform`, the fields of a setting, `n` and `latency_us`; `context` is
        the point's own.
    platforms
        Facts by the names in `platform`.

    Returns
    -------
    polars.DataFrame
        Also `slowness_cold`, where no cache holds anything. Both are null where nothing can be
        said: a whole model, a platform that is no GPU or whose bandwidth is not known. The second
        is null, too, where nothing is known of a module's work: how slow may that be?
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
    moved = _moved()
    uncached = (moved - pl.col("_cache_bytes")).clip(lower_bound=0.0)
    bounded = _least_us(moved).is_not_null() & ~pl.col("module").is_in(_MANY)
    return (
        points.join(facts, on=["platform", "dtype"], how="left", maintain_order="left")
        .with_columns(
            _slowness(uncached).alias("slowness"),
            pl.when(bounded).then(_slowness(moved)).alias("slowness_cold"),
        )
        .drop(_FACTS)
    )


def too_fast(slowness: pl.Expr) -> pl.Expr:
    """Return whether a point is faster than its hardware; a point of unknown slowness is not."""
    return slowness.fill_null(1.0) < 1.0 / MARGIN


def unit_too_small(slowness_cold: pl.Expr) -> pl.Expr:
    """Return whether all points of a curve look like nanoseconds given as microseconds."""
    return (slowness_cold.count() > 0) & (slowness_cold.min() > TOO_SLOW)


_MANY = ("attention_layer", "indexer")
"""Modules of several kernels, launched one by one, and of work that is no product: nothing says how
slow they may be."""
_FACTS = ("_peak", "_bandwidth", "_cache_bytes", "_link")


def _slowness(moved: pl.Expr) -> pl.Expr:
    """Return latency over the fastest possible time, given the bytes that must be moved."""
    fastest_us = pl.max_horizontal(_least_us(moved), pl.lit(SHORTEST_KERNEL_US))
    known = pl.col("_bandwidth").is_not_null() & (pl.col("module") != "model")
    return pl.when(known).then(pl.col("latency_us") / fastest_us)


def _least_us(moved: pl.Expr) -> pl.Expr:
    """Return the time in us that a point's work takes at least, null where none is known."""
    return pl.max_horizontal(
        moved / pl.col("_bandwidth") * US_PER_S,
        _flop() / pl.col("_peak") * US_PER_S,
        _sent() / pl.col("_link") * US_PER_S,
    )


def _speeds(platform: Platform, dtype: str) -> tuple[float | None, float, float, float | None]:
    """Return phi in FLOP/s, beta in byte/s, bytes of the largest cache, and a link's byte/s."""
    peak = platform.peak(dtype)
    return (
        None if peak is None else peak * _FLOP_PER_TFLOP,
        (platform.bandwidth_gb_s or 0.0) * BYTES_PER_GB,
        (platform.l2_mib or LARGEST_CACHE_MIB) * _BYTES_PER_MIB,
        None if platform.link_gb_s is None else platform.link_gb_s * BYTES_PER_GB,
    )


def _number(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64)


def _by_module(**of: pl.Expr) -> pl.Expr:
    """Return one expression a module, null for a module that has none."""
    return pl.coalesce(pl.when(pl.col("module") == name).then(value) for name, value in of.items())


def _matrices() -> pl.Expr:
    """Return how many matrices an expert, an FFN or a product has."""
    gated = pl.col("gated")
    return _by_module(
        gemm=pl.lit(1.0),
        dense_ffn=pl.when(gated.fill_null(value=False)).then(3.0).otherwise(2.0),
        moe_ffn=pl.when(gated.fill_null(value=True)).then(3.0).otherwise(2.0),
    )


def _flop() -> pl.Expr:
    """Return the FLOPs of a point's definition (paper, sec. 3), of experts a rank's even share."""
    tokens, n = _number("batch") * _number("n"), _number("n")
    product = 2.0 * tokens * _matrices() * _number("d_model") * _number("d_ff")
    pairs = n * _number("context") + n * (n + 1.0) / 2.0
    attention = 4.0 * _number("batch") * _number("heads") * _number("head_dim") * pairs
    keys, read = _number("batch") * n, pl.min_horizontal(_entries(), _number("selected"))
    least = keys * pl.min_horizontal(read, n / 2.0 + _number("context"))
    absorbed = pl.col("api") == ABSORBED
    latent, rope = _number("latent"), _number("rope_dim").fill_null(0.0)
    naive = _number("nope_dim") + rope + _number("value_dim")
    width = pl.when(absorbed).then(2.0 * latent + rope).otherwise(naive)
    return _by_module(
        gemm=product,
        dense_ffn=product,
        moe_ffn=product * _number("top_k") / _number("ep"),
        attention=attention,
        mla=2.0 * _number("heads") * width * least,
        indexer=pl.when(pl.col("api") == LOGITS).then(
            2.0
            * _number("batch")
            * _number("heads")
            * _number("head_dim")
            * pairs
            / _number("span")
        ),
        attention_layer=2.0 * tokens * _number("projected"),
    )


def _entries() -> pl.Expr:
    """Return the entries that are stored of a request's positions, cached and new ones."""
    return (_number("context") + _number("n")) / _number("span").fill_null(1.0)


def _bytes(stored: str | None = None) -> pl.Expr:
    """Return the bytes of an element, where it is stored in a format of its own in that one."""
    dtype = pl.col("dtype")
    name = dtype if stored is None else pl.col(stored).fill_null(dtype)
    return name.replace_strict(ELEMENT_BYTES, return_dtype=pl.Float64)


def _moved() -> pl.Expr:
    """Return the bytes that a point must move at least: weights, or keys and values.

    Of experts those that are surely active: all that balanced tokens reach, else one token's; the
    busiest of `ep` ranks has its even share of them and of the tokens, or more.
    """
    tokens, n = _number("batch") * _number("n"), _number("n")
    reached = pl.min_horizontal(_number("experts"), tokens * _number("top_k"))
    active = pl.when(pl.col("routing") == "balanced").then(reached).otherwise(_number("top_k"))
    size = _bytes()
    weights = _matrices() * _number("d_model") * _number("d_ff") * _bytes("weights")
    cached = _number("kv_heads") * (_number("context") + n) * _bytes("kv_dtype")
    twice = 2.0 * _number("batch") * _number("head_dim")
    latent = _number("latent") + _number("rope_dim").fill_null(0.0)
    read = pl.min_horizontal(_entries(), _number("selected"))
    each = pl.when(pl.col("api") == ABSORBED).then(latent)
    return _by_module(
        gemm=weights + tokens * (_number("d_model") + _number("d_ff")) * size,
        dense_ffn=weights + 2.0 * tokens * _number("d_model") * size,
        moe_ffn=(weights * active + 2.0 * tokens * _number("d_model") * size) / _number("ep"),
        attention=twice * (cached + _number("heads") * n * size),
        mla=_number("batch") * read * each.otherwise(0.0) * _bytes("kv_dtype"),
        indexer=_number("batch")
        * _entries()
        * _number("head_dim")
        * _bytes("kv_dtype")
        * pl.when(pl.col("api") == LOGITS).then(1.0).otherwise(0.0),
        attention_layer=_number("projected") * size,
    )


def _sent() -> pl.Expr:
    """Return the bytes that a rank must send at least: all of its rows but those it keeps."""
    rows = _number("batch") * _number("n") * _number("d_model") * _bytes()
    kept = pl.when(pl.col("operation").is_in(["all_reduce", "send"])).then(0.0)
    return rows * (1.0 - kept.otherwise(1.0 / _number("gpus")))


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
