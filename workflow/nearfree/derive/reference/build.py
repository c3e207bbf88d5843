"""Select imported curves by kernel, and build groups from them."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.backends.decode_kernels import NAMES, WIDEST
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.attention_layer import ATTENTION_LAYER, DECODE
from nearfree.core.modules.mla import MLA
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.groups import Below, Group, Key, fitted_group, keys_of
from nearfree.derive.reference.kinds import DECODES_APART, MODEL_FIELDS, kind_of
from nearfree.derive.reference.regimes import select_rows
from nearfree.derive.truth.datasets import heavy_enough
from nearfree.derive.truth.truth import Truth, narrowed, questions, truth
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import Measured, selected_curves
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.prepare import Prepared, padded, prepare
from nearfree.derive.work_model.samples import LEAST_MB
from nearfree.hardware.platforms import Platform
from nearfree.public.curves import ImportedCurves
from nearfree.public.plausible import with_slowness

MOST_DECODING = 60
"""Most points per decode kernel, one position each, spread likewise."""
LIGHT_MB = 4.0
"""Least weights of products that groups learn from, in MB; a layer's products on one rank are as
light. Scores use products from 64 MB on. Below this limit T is that of a launch."""
MOST_LIGHT = 70
"""Most light curves per kernel, evenly spread over its shapes, at N of powers of two."""
KEPT = tuple(MODEL_FIELDS)
"""The modules whose kernels are kept."""
_KERNEL_COLUMNS = ("platform", "backend", "backend_version", "kernel", "dtype", "weights")
"""The columns that a kernel's curves of products share."""
_POWER_OF_TWO = (pl.col("n") & (pl.col("n") - 1)) == 0


class Curves(Struct, frozen=True):
    """Curves of one form: a part of questions, T(N) [rows, grid], and each curve's file and key.

    `below` are points of expert layers below their baselines.
    """

    part: Prepared
    latency_us: Array
    members: list[str]
    keys: list[Key]
    below: Below | None = None

    @property
    def measured(self) -> Measured:
        """The curves as arrays."""
        return Measured(
            features=self.part.features, latency_us=self.latency_us, counts=self.part.counts
        )


def kernel_truth(
    curves: ImportedCurves, platforms: Mapping[str, Platform], epsilon: float
) -> Truth:
    """Return the truth of kept curves, with light products, and attention from N > 1 on.

    Products whose first latency is shorter than the memory's time for their weights are left out:
    they were timed with weights in a cache, which the weights of a served model are not.
    """
    settings = _light_thinned(curves.settings.filter(pl.col("module").is_in(KEPT)))
    points = curves.points.join(settings.select("curve", "module"), on="curve", how="inner")
    cached = _from_a_cache(settings, points, platforms)
    settings, points = (frame.join(cached, on="curve", how="anti", maintain_order="left")
                        for frame in (settings, points))  # fmt: skip
    heavy = heavy_enough(settings, LEAST_MB).select("curve", pl.lit(value=True).alias("heavy"))
    points = points.join(heavy, on="curve", how="left", maintain_order="left")
    points = points.filter(pl.col("heavy").fill_null(_POWER_OF_TWO)).drop("heavy")
    several = (
        ~pl.col("module").is_in(DECODES_APART) | (pl.col("n") > 1) | pl.col("context").is_not_null()
    )
    return truth(settings, points.filter(several).drop("module"), [epsilon])


def scored_truth(curve_truth: Truth) -> Truth:
    """Return the scored part of `kernel_truth`: all but products with light weights."""
    heavy = heavy_enough(curve_truth.settings, LEAST_MB)["curve"]
    return narrowed(
        curve_truth, (pl.col("module") != GEMM.name) | pl.col("curve").is_in(heavy.implode())
    )


def scored_rows(rows: pl.DataFrame) -> Flags:
    """Return which curves of a part are scored, [rows]."""
    heavy = heavy_enough(rows, LEAST_MB)["asked"]
    return rows["asked"].is_in(heavy.implode()).to_numpy()


def _light_thinned(settings: pl.DataFrame) -> pl.DataFrame:
    """Return settings with a selection of light products, and without those that are too light."""
    heavy = heavy_enough(settings, LEAST_MB)
    light = heavy_enough(settings, LIGHT_MB).join(heavy, on="curve", how="anti")
    ordered = light.sort(*_KERNEL_COLUMNS, "d_model", "d_ff", "curve")
    rank, count = pl.int_range(pl.len()).over(_KERNEL_COLUMNS), pl.len().over(_KERNEL_COLUMNS)
    is_selected = (rank + 1) * MOST_LIGHT // count > rank * MOST_LIGHT // count
    kept = pl.concat([heavy, ordered.filter((count <= MOST_LIGHT) | is_selected)])
    return settings.join(kept.select("curve"), on="curve", how="semi", maintain_order="left")


def _from_a_cache(
    settings: pl.DataFrame, points: pl.DataFrame, platforms: Mapping[str, Platform]
) -> pl.DataFrame:
    """Return the products, `curve`, whose weights came faster than the GPU's memory allows."""
    first = points.filter(pl.col("module") == GEMM.name).sort("n").unique("curve", keep="first")
    first_points = first.drop("module", "context").join(settings, on="curve")
    return (
        with_slowness(first_points, platforms).filter(pl.col("slowness_cold") < 1).select("curve")
    )


def curves_by_form(
    curve_truth: Truth, curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver
) -> Iterator[Curves]:
    """Yield the curves of a truth by platform and form, as far as they have a form.

    `curve_truth` is `kernel_truth` of the curves; `facts` has a row per platform and dtype.
    """
    below = _below(curve_truth, curves)
    curve_truth, curves = _with_points(curve_truth, curves)
    members = curves.settings.select("curve", "member")
    rows = with_facts(questions(curve_truth), facts)
    for _, module_rows in rows.group_by("platform", "module", maintain_order=True):
        for part in prepare(
            module_rows.sort("asked"), resolver, at_once=max(module_rows.height, 1)
        ):
            if not isinstance(part, Prepared):
                continue
            names = part.rows.select(pl.col("asked").alias("curve"))
            points = curves.points.join(names, on="curve", how="semi").join(
                curve_truth.ratios.select("curve", "n"), on=["curve", "n"], how="semi"
            )
            latencies = points.sort("curve", "n").group_by("curve").agg("latency_us")
            joined = names.join(latencies, on="curve", how="left", maintain_order="left").join(
                members, on="curve", how="left", maintain_order="left"
            )
            form_curves = Curves(
                part=part,
                latency_us=padded(joined["latency_us"], part.counts.shape[1]),
                members=joined["member"].to_list(),
                keys=keys_of(part.rows),
                below=_lower(part, below, resolver),
            )
            yield _not_from_a_cache(form_curves) if part.family is ATTENTION_CACHED else form_curves


def _below(curve_truth: Truth, curves: ImportedCurves) -> pl.DataFrame:
    """Return N and T(N) of expert layers below their baselines, a row per curve: asked, grid, us.

    Only N of powers of two are kept.
    """
    first = curve_truth.settings.filter(pl.col("module") == MOE_FFN.name).select(
        "curve", "baseline"
    )
    return (
        curves.points.join(first, on="curve")
        .filter((pl.col("n") < pl.col("baseline")) & _POWER_OF_TWO)
        .sort("curve", "n")
        .group_by(pl.col("curve").alias("asked"), maintain_order=True)
        .agg(pl.col("n").alias("grid"), pl.col("latency_us").alias("us"))
    )


def _lower(part: Prepared, below: pl.DataFrame, resolver: Resolver) -> Below | None:
    """Return the points of a part below the curves' baselines, None if there are none.

    Points whose experts' weights came faster than the memory allows do not count: they were timed
    with weights in a cache, which the weights of a served model are not.
    """
    rows = part.rows.drop("grid").join(below, on="asked", maintain_order="left")
    for lower in prepare(rows, resolver, at_once=max(rows.height, 1)) if rows.height else ():
        if isinstance(lower, Prepared):
            features = lower.features
            us = padded(lower.rows["us"], lower.counts.shape[1])
            sizes = ("active", "matrices", "d_model", "d_ff", "weight_bytes")
            read_bytes = prod(features[name] for name in sizes)
            counts = lower.counts & (us >= read_bytes / features["beta"])
            measured = Measured(features=features, latency_us=us, counts=counts)
            return Below(lower.rows["asked"].to_list(), measured)
    return None


def _not_from_a_cache(curves: Curves) -> Curves:
    """Return the curves whose keys and values came no faster than the memory allows.

    A step reads the caches of all layers, which do not fit into L2.
    """
    features = curves.part.features
    sizes = ("batch", "context", "kv_heads", "head_dim", "cache_bytes")
    read_bytes = 2.0 * prod(features[name] for name in sizes)
    slower = (curves.latency_us[:, :1] >= read_bytes / features["beta"]).all(axis=1)
    return Curves(
        part=select_rows(curves.part, slower),
        latency_us=curves.latency_us[slower],
        members=[member for member, kept in zip(curves.members, slower, strict=True) if kept],
        keys=[key for key, kept in zip(curves.keys, slower, strict=True) if kept],
    )


def _with_points(curve_truth: Truth, curves: ImportedCurves) -> tuple[Truth, ImportedCurves]:
    """Return a truth and its curves, with attention of one position over contexts added.

    Each such point becomes a curve of one point: T(1) at its context.
    """
    context_points = curves.points.filter(pl.col("context").is_not_null(), pl.col("n") == 1)
    decoders = pl.col("kernel").is_in(NAMES) & (pl.col("head_dim") <= WIDEST)
    attention = curves.settings.filter(
        (pl.col("module") == MLA.name) | ((pl.col("module") == ATTENTION.name) & decoders)
    )
    points = context_points.join(
        attention.select("curve"), on="curve", how="semi", maintain_order="left"
    ).with_columns(_new_numbers(curves).alias("point"))
    if points.is_empty():
        return curve_truth, curves
    point_contexts = points.select("curve", "point", pl.col("context").alias("at"))
    settings = (
        attention.join(point_contexts, on="curve", maintain_order="right")
        .drop("curve", "context")
        .rename({"point": "curve", "at": "context"})
    )
    one = pl.lit(1, pl.Int64)
    questions = settings.with_columns(
        one.alias("baseline"), pl.lit([1], pl.List(pl.Int64)).alias("grid")
    )
    ratios = points.select(
        pl.col("point").alias("curve"), one.alias("n"), pl.lit(1.0).alias("ratio")
    )
    points = points.select(
        pl.col("point").alias("curve"), "n", "latency_us", pl.lit(None, pl.Int64).alias("context")
    )
    return (
        structs.replace(
            curve_truth,
            settings=pl.concat(
                [curve_truth.settings, questions.select(curve_truth.settings.columns)]
            ),
            ratios=pl.concat([curve_truth.ratios, ratios.select(curve_truth.ratios.columns)]),
        ),
        ImportedCurves(
            pl.concat([curves.settings, settings.select(curves.settings.columns)]),
            pl.concat([curves.points, points.select(curves.points.columns)]),
        ),
    )


def _new_numbers(curves: ImportedCurves) -> pl.Expr:
    """Return numbers of further curves, from the first that no curve has."""
    last = int(str(curves.settings["curve"].max() or 0))
    return pl.int_range(last + 1, last + 1 + pl.len())


_OF_ONE_CURVE = ("curve", "setting_key", "member", "member_sha256", "batch", "event_id")
"""Columns in which curves of one layer over one cache differ."""


_IN_BLOCKS = (
    pl.col("kv_heads").is_not_null()
    & (pl.col("backend") == "vllm")
    & (pl.col("dtype") != "nvfp4")
    & pl.col("heads").is_between(4, 64)
)
"""The layers over selected blocks that questions are about: MiniMax M3's by vLLM, on a rank of 1 to
16, whose files have attention in 16 or 8 bits."""


def decoded_layers(curves: ImportedCurves) -> ImportedCurves:
    """Return curves with attention layers as curves over decoded rows, as questions ask for them.

    One position of each of b requests is b rows, so that a layer's points of one position, over all
    b, are a curve over N rows of one request. Layers of a latent without entries are left out: they
    are predicted by their calls one after the other (`decoders/ranks/attention_uses.py`).
    """
    layers = pl.col("module") == ATTENTION_LAYER.name
    answerable = (pl.col("span") > 1) | _IN_BLOCKS
    layer_settings = curves.settings.filter(layers & answerable)
    layer_columns = [name for name in layer_settings.columns if name not in _OF_ONE_CURVE]
    single = curves.points.filter(pl.col("n") == 1).rename({"context": "at"}).drop("n")
    points = layer_settings.join(single, on="curve", maintain_order="left").with_columns(
        pl.coalesce("at", "context").alias("context")
    )
    # A point of a decoding table precedes that of a prefill of one position.
    ordered = points.sort("batch", pl.col("at").is_null(), maintain_order=True)
    row_curves = (
        ordered.unique([*layer_columns, "batch"], keep="first", maintain_order=True)
        .group_by(layer_columns, maintain_order=True)
        .agg(pl.col(_OF_ONE_CURVE).first(), pl.col("batch").alias("n"), pl.col("latency_us"))
        .filter(pl.col("batch") == 1)
        .with_columns(pl.lit(DECODE).alias("api"), _new_numbers(curves).alias("curve"))
    )
    row_points = row_curves.select("curve", "n", "latency_us").explode("n", "latency_us")
    other_settings = curves.settings.filter(~layers)
    other_points = curves.points.join(other_settings.select("curve"), on="curve", how="semi")
    row_points = row_points.with_columns(pl.lit(None, pl.Int64).alias("context"))
    return ImportedCurves(
        settings=pl.concat([other_settings, row_curves.select(other_settings.columns)]),
        points=pl.concat([other_points, row_points.select(other_points.columns)]),
    )


def groups_of(curves: Curves, epsilon: float, kept: Flags | None = None) -> Mapping[Key, Group]:
    """Return the groups of curves by their keys, if they have enough curves.

    `kept` says which curves count, [rows]; all by default.
    """
    groups: dict[Key, Group] = {}
    rows_by_key: dict[Key, list[int]] = {}
    for row, key in enumerate(curves.keys):
        if kept is None or kept[row]:
            rows_by_key.setdefault(key, []).append(row)
    for key, rows in rows_by_key.items():
        decodes = key.family == ATTENTION_CACHED.name
        limit = MOST_DECODING if decodes else kind_of(key.family).most
        selected = _spread(curves, rows, limit) if limit else rows
        flags = np.zeros(len(curves.keys), dtype=bool)
        flags[selected] = True
        group = fitted_group(
            key,
            curves.part.rows.filter(pl.Series(flags)),
            selected_curves(curves.measured, flags),
            [curves.members[row] for row in selected],
            epsilon,
            below=curves.below,
        )
        if group is not None:
            groups[key] = group
    return groups


def _spread(curves: Curves, rows: list[int], most: int) -> list[int]:
    """Return at most `most` rows, evenly spread over settings and releases, in ascending order."""
    names = curves.part.rows[rows].select("setting_key", "backend_version").rows()
    order = sorted(range(len(rows)), key=lambda index: (str(names[index]), index))
    selected = np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)
    return sorted(rows[order[index]] for index in selected)
