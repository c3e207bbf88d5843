"""Groups from imported curves: which curves, by kernel, and what is made of each."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.backends.decode_kernels import NAMES, WIDEST
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.attention_layer import ATTENTION_LAYER, DECODE
from nearfree.core.modules.mla import MLA
from nearfree.core.modules.moe_ffn import MOE_FFN
from nearfree.core.setting import Module
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.groups import Below, Group, Key, keys_of, made
from nearfree.derive.reference.regimes import rows_of
from nearfree.derive.truth.datasets import heavy_enough
from nearfree.derive.truth.truth import Truth, narrowed, questions, truth
from nearfree.derive.work_model.attention import ATTENTION_CACHED
from nearfree.derive.work_model.family import Array, Flags
from nearfree.derive.work_model.fit import Measured, taken
from nearfree.derive.work_model.gemm import GEMM
from nearfree.derive.work_model.layer import DECODE_LAYER
from nearfree.derive.work_model.prepare import Prepared, padded, prepare
from nearfree.derive.work_model.samples import LEAST_MB
from nearfree.hardware.platforms import Platform
from nearfree.public.curves import ImportedCurves
from nearfree.public.plausible import with_slowness

_MANY = ("attention", "mla", "layer", "decode", "indexer")
"""Families of which so many curves are kept."""
MOST_ATTENTION = 70
"""Curves of an attention kernel that are kept, evenly spread over its settings."""
MOST_DECODING = 60
"""Points of a kernel that decodes, one position each, that are kept so."""
MOST_DECODED = 55
"""Curves of a decoded layer that are kept so."""
LIGHT_MB = 4.0
"""Products with weights below those of 64 MB that scores are of, and above this, are learnt from:
on each rank a layer's are as light. Below it T is that of a launch."""
MOST_LIGHT = 70
"""Such curves of a kernel that are kept, evenly spread over its shapes, at N of powers of two."""
_MOST = {DECODE_LAYER.name: MOST_DECODED, ATTENTION_CACHED.name: MOST_DECODING}
KEPT: tuple[Module, ...] = (
    "gemm", "moe_ffn", "attention", "mla", "indexer", "attention_layer",
)  # fmt: skip
"""The modules of which kernels are kept."""
_KERNEL = ("platform", "backend", "backend_version", "kernel", "dtype", "weights")
"""What a kernel's curves of products have alike."""
_TWO_KERNELS = ("attention",)
"""Modules that run another kernel for one position than for several."""


class Curves(Struct, frozen=True):
    """Curves of one form: a part of questions, T(N) [rows, grid], and the file of each.

    `below` are points of layers of experts below their baselines.
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


def known_truth(curves: ImportedCurves, platforms: Mapping[str, Platform], epsilon: float) -> Truth:
    """Return what curves of a kernel say: of attention from N > 1 on, of products all that is kept.

    Products whose first latency is shorter than the memory takes to bring their weights were timed
    from a cache, which weights of a served model do not come from.
    """
    settings = _light_thinned(curves.settings.filter(pl.col("module").is_in(KEPT)))
    points = curves.points.join(settings.select("curve", "module"), on="curve", how="inner")
    cached = _from_a_cache(settings, points, platforms)
    settings, points = (each.join(cached, on="curve", how="anti", maintain_order="left")
                        for each in (settings, points))  # fmt: skip
    heavy = heavy_enough(settings, LEAST_MB).select("curve", pl.lit(value=True).alias("heavy"))
    points = points.join(heavy, on="curve", how="left", maintain_order="left")
    power_of_two = (pl.col("n") & (pl.col("n") - 1)) == 0
    points = points.filter(pl.col("heavy").fill_null(power_of_two)).drop("heavy")
    several = (
        ~pl.col("module").is_in(_TWO_KERNELS) | (pl.col("n") > 1) | pl.col("context").is_not_null()
    )
    return truth(settings, points.filter(several).drop("module"), [epsilon])


def scored_of(known: Truth) -> Truth:
    """Return what is scored of `known_truth`: all but products of light weights."""
    heavy = heavy_enough(known.settings, LEAST_MB)["curve"]
    return narrowed(known, (pl.col("module") != GEMM.name) | pl.col("curve").is_in(heavy.implode()))


def scored_rows(rows: pl.DataFrame) -> Flags:
    """Return which curves of a part are scored, [rows]."""
    heavy = heavy_enough(rows, LEAST_MB)["asked"]
    return rows["asked"].is_in(heavy.implode()).to_numpy()


def _light_thinned(settings: pl.DataFrame) -> pl.DataFrame:
    """Return settings without products that are too light, and some of those that are light."""
    heavy = heavy_enough(settings, LEAST_MB)
    light = heavy_enough(settings, LIGHT_MB).join(heavy, on="curve", how="anti")
    ordered = light.sort(*_KERNEL, "d_model", "d_ff", "curve")
    place, many = pl.int_range(pl.len()).over(_KERNEL), pl.len().over(_KERNEL)
    some = (place + 1) * MOST_LIGHT // many > place * MOST_LIGHT // many
    kept = pl.concat([heavy, ordered.filter((many <= MOST_LIGHT) | some)])
    return settings.join(kept.select("curve"), on="curve", how="semi", maintain_order="left")


def _from_a_cache(
    settings: pl.DataFrame, points: pl.DataFrame, platforms: Mapping[str, Platform]
) -> pl.DataFrame:
    """Return the products whose weights came faster than a GPU's memory can bring them, `curve`."""
    first = points.filter(pl.col("module") == GEMM.name).sort("n").unique("curve", keep="first")
    asked = first.drop("module", "context").join(settings, on="curve")
    return with_slowness(asked, platforms).filter(pl.col("slowness_cold") < 1).select("curve")


def curves_by_form(
    known: Truth, curves: ImportedCurves, facts: pl.DataFrame, resolver: Resolver
) -> Iterator[Curves]:
    """Yield the curves of a truth by platform and form, those that a form speaks of.

    Parameters
    ----------
    known
        What `known_truth` makes of the curves.
    facts
        phi, beta and the number of SMs, a row a platform and dtype.
    """
    below = _below(known, curves)
    known, curves = _with_points(known, curves)
    of = curves.settings.select("curve", "member")
    rows = with_facts(questions(known), facts)
    for _, mine in rows.group_by("platform", "module", maintain_order=True):
        for part in prepare(mine.sort("asked"), resolver, at_once=max(mine.height, 1)):
            if not isinstance(part, Prepared):
                continue
            named = part.rows.select(pl.col("asked").alias("curve"))
            points = curves.points.join(named, on="curve", how="semi").join(
                known.ratios.select("curve", "n"), on=["curve", "n"], how="semi"
            )
            lists = points.sort("curve", "n").group_by("curve").agg("latency_us")
            joined = named.join(lists, on="curve", how="left", maintain_order="left").join(
                of, on="curve", how="left", maintain_order="left"
            )
            every = Curves(
                part=part,
                latency_us=padded(joined["latency_us"], part.counts.shape[1]),
                members=joined["member"].to_list(),
                keys=keys_of(part.rows),
                below=_lower(part, below, resolver),
            )
            yield _not_from_a_cache(every) if part.family is ATTENTION_CACHED else every


def _below(known: Truth, curves: ImportedCurves) -> pl.DataFrame:
    """Return N and T(N) below baselines of layers of experts, a row a curve: asked, grid, us.

    Of N powers of two are enough.
    """
    first = known.settings.filter(pl.col("module") == MOE_FFN.name).select("curve", "baseline")
    power_of_two = (pl.col("n") & (pl.col("n") - 1)) == 0
    return (
        curves.points.join(first, on="curve")
        .filter((pl.col("n") < pl.col("baseline")) & power_of_two)
        .sort("curve", "n")
        .group_by(pl.col("curve").alias("asked"), maintain_order=True)
        .agg(pl.col("n").alias("grid"), pl.col("latency_us").alias("us"))
    )


def _lower(part: Prepared, below: pl.DataFrame, resolver: Resolver) -> Below | None:
    """Return what curves of a part have below their baselines, None where none has.

    Points whose experts' weights came faster than memory brings them were timed from a cache,
    which weights of a served model do not come from.
    """
    rows = part.rows.drop("grid").join(below, on="asked", maintain_order="left")
    for lower in prepare(rows, resolver, at_once=max(rows.height, 1)) if rows.height else ():
        if isinstance(lower, Prepared):
            of = lower.features
            us = padded(lower.rows["us"], lower.counts.shape[1])
            read = of["active"] * of["matrices"] * of["d_model"] * of["d_ff"] * of["weight_bytes"]
            counts = lower.counts & (us >= read / of["beta"])
            measured = Measured(features=of, latency_us=us, counts=counts)
            return Below(lower.rows["asked"].to_list(), measured)
    return None


def _not_from_a_cache(curves: Curves) -> Curves:
    """Return curves without those whose keys and values came faster than memory brings them.

    A step goes through all layers' caches, which no L2 holds.
    """
    of = curves.part.features
    read = 2.0 * of["batch"] * of["context"] * of["kv_heads"] * of["head_dim"] * of["cache_bytes"]
    slower = (curves.latency_us[:, :1] >= read / of["beta"]).all(axis=1)
    return Curves(
        part=rows_of(curves.part, slower),
        latency_us=curves.latency_us[slower],
        members=[each for each, kept in zip(curves.members, slower, strict=True) if kept],
        keys=[each for each, kept in zip(curves.keys, slower, strict=True) if kept],
    )


def _with_points(known: Truth, curves: ImportedCurves) -> tuple[Truth, ImportedCurves]:
    """Return a truth and its curves with those of attention of one position over contexts.

    Each of their points is a curve of one point: what it says is T(1) at its context.
    """
    over = curves.points.filter(pl.col("context").is_not_null(), pl.col("n") == 1)
    decoders = pl.col("kernel").is_in(NAMES) & (pl.col("head_dim") <= WIDEST)
    of = curves.settings.filter(
        (pl.col("module") == MLA.name) | ((pl.col("module") == ATTENTION.name) & decoders)
    )
    first = curves.settings["curve"].max()
    points = (
        over.join(of.select("curve"), on="curve", how="semi", maintain_order="left")
        .with_row_index("number")
        .with_columns((pl.col("number") + int(str(first or 0)) + 1).cast(pl.Int64).alias("point"))
    )
    if points.is_empty():
        return known, curves
    places = points.select("curve", "point", pl.col("context").alias("at"))
    settings = (
        of.join(places, on="curve", maintain_order="right")
        .drop("curve", "context")
        .rename({"point": "curve", "at": "context"})
    )
    one = pl.lit(1, pl.Int64)
    asked = settings.with_columns(
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
            known,
            settings=pl.concat([known.settings, asked.select(known.settings.columns)]),
            ratios=pl.concat([known.ratios, ratios.select(known.ratios.columns)]),
        ),
        ImportedCurves(
            pl.concat([curves.settings, settings.select(curves.settings.columns)]),
            pl.concat([curves.points, points.select(curves.points.columns)]),
        ),
    )


_OF_ONE_CURVE = ("curve", "setting_key", "member", "member_sha256", "batch", "event_id")
"""Columns in which curves of one layer over one cache differ."""


_IN_BLOCKS = (
    pl.col("kv_heads").is_not_null()
    & (pl.col("backend") == "vllm")
    & (pl.col("dtype") != "nvfp4")
    & pl.col("heads").is_between(4, 64)
)
"""The layers over selected blocks that answers ask about: MiniMax M3's by vLLM, on a rank of 1 to
16, whose files have attention in 16 or 8 bits."""


def decoded(curves: ImportedCurves) -> ImportedCurves:
    """Return curves whose attention layers are those of rows that are decoded, which answers ask.

    One position of each of b requests is b rows: a layer's points of one position, over all b, are
    a curve over N rows of one request. Of layers of a latent without entries no answer asks, which
    stand as their calls one after the other (`decoders/attention_uses.py`).
    """
    layers = pl.col("module") == ATTENTION_LAYER.name
    asked = (pl.col("span") > 1) | _IN_BLOCKS
    of = curves.settings.filter(layers & asked)
    alike = [name for name in of.columns if name not in _OF_ONE_CURVE]
    one = curves.points.filter(pl.col("n") == 1).rename({"context": "at"}).drop("n")
    points = of.join(one, on="curve", maintain_order="left").with_columns(
        pl.coalesce("at", "context").alias("context")
    )
    # A point of a table of decoding comes before one of a prefill of one position.
    ordered = points.sort("batch", pl.col("at").is_null(), maintain_order=True)
    made = (
        ordered.unique([*alike, "batch"], keep="first", maintain_order=True)
        .group_by(alike, maintain_order=True)
        .agg(pl.col(_OF_ONE_CURVE).first(), pl.col("batch").alias("n"), pl.col("latency_us"))
        .filter(pl.col("batch") == 1)
        .with_columns(pl.lit(DECODE).alias("api"))
        .with_row_index("number")
    )
    first = int(str(curves.settings["curve"].max() or 0)) + 1
    made = made.with_columns((pl.col("number") + first).cast(pl.Int64).alias("curve"))
    rows = made.select("curve", "n", "latency_us").explode("n", "latency_us")
    others = curves.settings.filter(~layers)
    kept = curves.points.join(others.select("curve"), on="curve", how="semi")
    rows = rows.with_columns(pl.lit(None, pl.Int64).alias("context"))
    return ImportedCurves(
        settings=pl.concat([others, made.select(others.columns)]),
        points=pl.concat([kept, rows.select(kept.columns)]),
    )


def groups_of(
    curves: Curves, epsilon: float, kept: Flags | None = None, of: Callable[[Key], bool] = bool
) -> Mapping[Key, Group]:
    """Return the groups of curves by their keys, as far as there are enough of them.

    Parameters
    ----------
    kept
        Which curves count, [rows]; every one if None.
    """
    found: dict[Key, Group] = {}
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(curves.keys):
        if (kept is None or kept[place]) and of(key):
            places.setdefault(key, []).append(place)
    for key, every in places.items():
        most = _MOST.get(key.family, MOST_ATTENTION)
        mine = _spread(curves, every, most) if key.family.startswith(_MANY) else every
        flags = np.zeros(len(curves.keys), dtype=bool)
        flags[mine] = True
        group = made(
            key,
            curves.part.rows.filter(pl.Series(flags)),
            taken(curves.measured, flags),
            [curves.members[place] for place in mine],
            epsilon,
            below=curves.below,
        )
        if group is not None:
            found[key] = group
    return found


def _spread(curves: Curves, places: list[int], most: int) -> list[int]:
    """Return some of the places, evenly spread over settings and releases, in rising order."""
    names = curves.part.rows[places].select("setting_key", "backend_version").rows()
    order = sorted(range(len(places)), key=lambda at: (str(names[at]), at))
    some = np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)
    return sorted(places[order[at]] for at in some)
