"""What both say of the same curves: nearfree by regime R2m, the SDK from tables without them."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from nearfree.config.files import Config
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.reference.build import curves_by_form
from nearfree.derive.reference.folds import FOLDS
from nearfree.derive.reference.siblings import chips
from nearfree.derive.score.regimes import answers
from nearfree.derive.score.scores import score
from nearfree.derive.truth.truth import Truth, boundaries
from nearfree.log.names import Layout
from nearfree.public.curves import ImportedCurves
from nearfree.sources.fetching.cache import Cache, default_cache

from benchmarks.peer.protocol import Answer, Query, Sdk
from benchmarks.peer.tables import copy_without, cuts_of, fold_of, place_of, sizes

EPSILON = 0.2
OURS, THEIRS, CONTROL = "nearfree", "aiconfigurator", "aiconfigurator, nothing deleted"
_RATIOS = {"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}


def queries(known: Truth, systems: Path, quant: str, *, whole: bool) -> list[Query]:
    """Return what the SDK is asked for each setting of a truth, in their order.

    Parameters
    ----------
    systems
        The SDK's folder of systems, whose tables must be those that the curves were imported from.
    quant
        The SDK's name of the format.
    whole
        Whether what one GPU computes is asked for as a whole layer, not as the part of a larger one
        that it is in the tables.
    """
    pairs = known.settings.select("member", "member_sha256").unique(maintain_order=True).rows()
    places = {member: place_of(systems, member, digest) for member, digest in pairs}
    cuts = {
        member: {} if whole or "/moe/" not in member else cuts_of(systems, member, quant)
        for member in places
    }
    found = []
    for row in known.settings.iter_rows(named=True):
        system, backend, version = places[row["member"]]
        layer = (row["d_model"], row["d_ff"], row["experts"], row["top_k"])
        cut = sizes(row, cuts[row["member"]].get(layer, 1))
        found.append(Query(row["module"], system, backend, version, quant, cut, tuple(row["grid"])))
    return found


def without_the_asked(
    known: Truth, asked: Sequence[Query], sdk: Sdk, systems: Path, mode: str
) -> list[Answer]:
    """Return what the SDK answers, each from tables without the fold that the setting is in."""
    folds = fold_of(known.settings)
    found: dict[int, Answer] = {}
    with tempfile.TemporaryDirectory() as folder:
        for fold in range(FOLDS):
            mine = [at for at, each in enumerate(folds) if each == fold]
            if not mine:
                continue
            gone = copy_without(systems, Path(folder), asked[mine[0]].module, fold)
            print(f"fold {fold}: {gone:,} rows deleted, {len(mine)} settings", flush=True)
            said = sdk.latency(Path(folder), mode, [asked[at] for at in mine])
            found |= dict(zip(mine, said, strict=True))
    return [found[at] for at in range(len(asked))]


def reasons(said: Sequence[Answer]) -> Counter[str]:
    """Return how often the SDK refused, by the kind of its error."""
    return Counter(each.refusal.partition(":")[0] for each in said if each.refusal is not None)


def scored(known: Truth, said: Sequence[Answer], predictor: str) -> pl.DataFrame:
    """Return the scores of what the SDK said of each setting; a refusal is a miss."""
    rows = [
        (curve, n, each / answer.latency_ms[0])
        for curve, grid, answer in zip(
            known.settings["curve"], known.settings["grid"].to_list(), said, strict=True
        )
        if answer.latency_ms is not None
        for n, each in zip(grid, answer.latency_ms, strict=True)
    ]
    ratios = pl.DataFrame(rows, _RATIOS, orient="row").sort("asked", "n")
    empty = pl.lit(None, pl.Float64)
    found = boundaries(ratios.rename({"asked": "curve"}), [EPSILON]).select(
        pl.col("curve").alias("asked"),
        pl.lit(predictor).alias("predictor"),
        "epsilon",
        pl.col("n_max").cast(pl.Float64),
        empty.alias("low"),
        empty.alias("high"),
        pl.lit(value=False).alias("in_sample"),
    )
    named = ratios.with_columns(pl.lit(predictor).alias("predictor"))
    return score(known, found, [predictor], named)


def ours(
    asked: Truth, known: Truth, curves: ImportedCurves, config: Config, layout: Layout
) -> pl.DataFrame:
    """Return the scores of nearfree on what is asked, to which models of a fold are unknown.

    What is `known` of others answers, products of light weights among them.
    """
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=True)
    parts = list(curves_by_form(known, curves, datasheet_facts(config.platforms), resolver))
    said, ratios = answers("R2m", parts, chips(config.platforms), [EPSILON], EPSILON)
    name = pl.lit(OURS).alias("predictor")
    return score(asked, said.drop("regime").with_columns(name), [OURS], ratios.with_columns(name))


def table(scores: pl.DataFrame, by: Sequence[str]) -> str:
    """Return scores as lines, a group and predictor each."""
    grouped = (
        scores.group_by(*by, "predictor")
        .agg(
            pl.len().alias("settings"),
            (~pl.col("answered")).sum().alias("refused"),
            pl.col("hit", "within_1_31", "within_2").mean().round(3),
            pl.col("t_ratio_error").median().round(4),
        )
        .sort(*by, "predictor")
    )
    with pl.Config(
        tbl_rows=-1, tbl_cols=-1, tbl_width_chars=140, fmt_str_lengths=40,
        tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True,
    ):  # fmt: skip
        return str(grouped)
