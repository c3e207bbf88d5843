"""Table `kernels`: the kept curves of kernels, at one shape of each module.

The shape of a module is the one on most platforms; among equals the one of most backends there,
then the one with most weights, then the first in the order of a setting's fields.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import mul

import numpy as np
import polars as pl

from nearfree.core.modules.routing import routing_baseline
from nearfree.core.setting import FIELDS
from nearfree.derive.reference.groups import Group, version_ranks
from nearfree.derive.reference.kriging import COORDINATES
from nearfree.derive.reference.record import group_of, newest_kernels
from nearfree.derive.tables.columns import ORIGINS, SETTING_COLUMNS, amount, count, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import epsilon_digest, seals_digest, write_table
from nearfree.derive.truth.truth import boundaries
from nearfree.derive.work_model.attention import ATTENTION_PREFILL
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.moe import MOE_LIBRARY, MOE_TRITON
from nearfree.log.events import Event, KernelReferenced
from nearfree.log.names import Layout

DTYPE = "bfloat16"
BALANCED = "balanced"
"""The routing of the shown curves of experts."""
_MODULES = {
    family.name: family.modules[0] for family in (GEMM, MOE_TRITON, MOE_LIBRARY, ATTENTION_PREFILL)
}
"""The module of each shown form: attention only without a cache, and no collectives."""
_SHAPE = {name: SETTING_COLUMNS[name] for name in FIELDS if name in COORDINATES}
_WEIGHTS = ("d_model", "d_ff", "experts")
_KERNEL = ("platform", "module", "backend", "backend_version", "family", "kernel", "dtype")
KERNELS = Table(
    name="kernels",
    row="a point T(N) of a public curve that is kept with its kernel, at its module's shown shape",
    key=(*_KERNEL, *_SHAPE, "routing", "n"),
    formula="T(N) = T(first N) exp(r), with r = log(T(N) / T(first N)) as kept, in 8 bits; "
    "N_max = max { N : T(N) <= (1 + epsilon) T(baseline) } over the points that are kept",
    paper="sec. 2.2, definition of N_max(epsilon)",
    code="nearfree.derive.reference.kernels",
    body={
        "platform": text("the kind of machine"),
        "module": SETTING_COLUMNS["module"],
        "backend": SETTING_COLUMNS["backend"],
        "backend_version": text("the backend's newest release with this shape there",
                                nullable=True),
        "family": text("which form of T(N) speaks of the kernel", one_of=tuple(_MODULES)),
        "kernel": text("the source's own name for what ran", nullable=True),
        "dtype": SETTING_COLUMNS["dtype"],
        **_SHAPE,
        "routing": SETTING_COLUMNS["routing"],
        "n": count("N, positions a request"),
        "baseline": count("the N that ratios refer to: the curve's first, of experts the first at "
                          "which all are awake"),
        "latency_us": amount("T(N) = T(first N) exp(low + code (high - low) / 255), with the ends "
                             "low and high of its event; at the curve's first N as the source has "
                             "it"),
        "ratio": amount("T(N) / T(baseline); 1 at the baseline"),
        "epsilon": amount("tolerance of n_max"),
        "n_max": count("last pass: the largest kept N within the tolerance"),
        "next_n": count("the kept point after n_max, none at the end of what is kept",
                        nullable=True),
        "source": text("the release that the curve is from, its licence and copyright"),
        "member": text("the file inside the release"),
        "origin": text("where the number comes from", one_of=ORIGINS),
    },
)  # fmt: skip


def write_kernels(layout: Layout, scope: str, *, epsilon: float) -> None:
    """Write the shown curves of the kernels on record."""
    events = [*newest_kernels(layout)[0].values()]
    rows = kernel_rows(events, epsilon)
    table = KERNELS.build(rows, [event.event_id for event in events])
    made_from = seals_digest(layout, scope) | epsilon_digest(epsilon)
    write_table(layout, scope, KERNELS, table, made_from)


def kernel_rows(events: Sequence[Event], epsilon: float) -> pl.DataFrame:
    """Return the rows of the table for kernels, at a tolerance."""
    shown = [event for event in events if _is_shown(event.data)]
    groups = [group_of(event) for event in shown]
    curves = pl.concat([_NO_CURVE, *_curves(shown, groups)])
    if curves.is_empty():
        return KERNELS.frame([])
    # Other fields of a setting are not kept: curves that differed only in these become one.
    chosen = newest_releases(at_shapes(curves)).unique(
        [*_KERNEL, *_SHAPE, "routing"], keep="first", maintain_order=True
    )
    points = _points(chosen, groups)
    n_max = boundaries(points.select("curve", "n", "ratio"), [epsilon])
    return points.join(n_max, on="curve", maintain_order="left").select(
        *KERNELS.body, pl.concat_list("event_id").alias("from_ids")
    )


def _is_shown(kernel: KernelReferenced) -> bool:
    formats = (kernel.dtype, kernel.weights or DTYPE, kernel.kv_dtype or DTYPE)
    return kernel.family in _MODULES and {*formats} == {DTYPE}


_KERNEL_FIELDS = ("platform", "family", "backend", "kernel", "dtype", "source")
_NO_CURVE = pl.DataFrame(
    schema={
        **{name: KERNELS.body[name].dtype for name in (*_KERNEL, *_SHAPE, "routing")},
        **dict.fromkeys(("source", "member", "origin", "event_id"), pl.String),
        **dict.fromkeys(("group", "place"), pl.Int64),
    }
)


def _curves(events: Sequence[Event], groups: Sequence[Group]) -> Iterator[pl.DataFrame]:
    """Yield each group's curves of one request with balanced loads, with group and row numbers."""
    for number, (event, group) in enumerate(zip(events, groups, strict=True)):
        values = {name: getattr(event.data, name) for name in _KERNEL_FIELDS}
        values |= {"module": _MODULES[group.key.family], "origin": "imported"}
        values |= {"event_id": event.event_id, "group": number}
        frame = group.curves.with_columns(
            *(pl.lit(value, dtype=_NO_CURVE.schema[name]).alias(name)
              for name, value in values.items()),
            pl.int_range(pl.len(), dtype=pl.Int64).alias("place"),
        )  # fmt: skip
        yield frame.filter(
            pl.col("batch") == 1, pl.col("routing").fill_null(BALANCED) == BALANCED
        ).select(_NO_CURVE.columns)


def at_shapes(curves: pl.DataFrame) -> pl.DataFrame:
    """Return the curves of each module at its shown shape.

    `curves` has a row per curve, with module, platform, backend and the fields of a shape.
    """
    weights = reduce(mul, (pl.col(name).fill_null(1).cast(pl.Float64) for name in _WEIGHTS))
    ranked = curves.group_by("module", *_SHAPE).agg(
        pl.col("platform").n_unique().alias("platforms"),
        pl.struct("platform", "backend").n_unique().alias("backends"),
    ).with_columns(weights.alias("weights")).sort(
        *("platforms", "backends", "weights"), *_SHAPE,
        descending=[True, True, True, *(False for _ in _SHAPE)],
    )  # fmt: skip
    shapes = ranked.unique("module", keep="first", maintain_order=True).select("module", *_SHAPE)
    return curves.join(
        shapes, on=["module", *_SHAPE], how="semi", nulls_equal=True, maintain_order="left"
    )


def newest_releases(curves: pl.DataFrame) -> pl.DataFrame:
    """Return the curves of each backend's newest release, per module and platform."""
    ranks = version_ranks(curves["backend_version"].fill_null(""))
    rank = pl.col("backend_version").fill_null("").replace_strict(ranks, return_dtype=pl.Int64)
    return curves.filter(rank == rank.max().over("module", "platform", "backend"))


def _points(chosen: pl.DataFrame, groups: Sequence[Group]) -> pl.DataFrame:
    """Return a row per point of these curves from their baselines on, numbered in `curve`.

    The baseline of experts is the first N at which all are active; points below it are left out.
    """
    ratios = {number: np.exp(groups[number].ratio.values(groups[number].counts))
              for number in chosen["group"].unique()}  # fmt: skip
    grids, curve_ratios, latencies = [], [], []
    columns = ("group", "place", "experts", "top_k")
    for number, row, experts, top_k in chosen.select(columns).iter_rows():
        group, counts = groups[number], groups[number].counts[row]
        n = group.n[row][counts].astype(int)
        shown = n >= routing_baseline(BALANCED, experts, top_k, 1)
        first_us = float(group.first_us[row])
        latency_us = first_us * np.array([1.0, *ratios[number][row][counts][1:]])
        grids.append(n[shown].tolist())
        latencies.append(latency_us[shown].tolist())
        curve_ratios.append((latency_us[shown] / latency_us[shown][0]).tolist())
    return (
        chosen.with_row_index("curve")
        .with_columns(
            pl.Series("n", grids, dtype=pl.List(pl.Int64)),
            pl.Series("ratio", curve_ratios, dtype=pl.List(pl.Float64)),
            pl.Series("latency_us", latencies, dtype=pl.List(pl.Float64)),
        )
        .explode("n", "ratio", "latency_us")
    )
