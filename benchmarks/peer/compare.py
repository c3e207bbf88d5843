"""Scores of both on the same curves: nearfree by regime R2m, the SDK from tables without them."""

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
from benchmarks.peer.tables import copy_without, fold_of, gpus_per_layer, sizes, table_place

EPSILON = 0.2
OWN, PEER, CONTROL = "nearfree", "aiconfigurator", "aiconfigurator, nothing deleted"
_RATIOS = {"asked": pl.Int64, "n": pl.Int64, "ratio": pl.Float64}


def queries(truth: Truth, systems: Path, quant: str, *, whole: bool) -> list[Query]:
    """Return the query to the SDK for each setting of a truth, in order.

    Parameters
    ----------
    systems
        The SDK's folder of systems; its tables must be those that the curves were imported from.
    quant
        The SDK's name of the format.
    whole
        Whether to query one GPU's part of a layer as a whole layer, not as the part of a larger
        layer that it is in the tables.
    """
    pairs = truth.settings.select("member", "member_sha256").unique(maintain_order=True).rows()
    places = {member: table_place(systems, member, digest) for member, digest in pairs}
    gpus_by_member = {
        member: {} if whole or "/moe/" not in member else gpus_per_layer(systems, member, quant)
        for member in places
    }
    result = []
    for row in truth.settings.iter_rows(named=True):
        system, backend, version = places[row["member"]]
        layer = (row["d_model"], row["d_ff"], row["experts"], row["top_k"])
        layer_sizes = sizes(row, gpus_by_member[row["member"]].get(layer, 1))
        grid = tuple(row["grid"])
        result.append(Query(row["module"], system, backend, version, quant, layer_sizes, grid))
    return result


def held_out_answers(
    truth: Truth, queries: Sequence[Query], sdk: Sdk, systems: Path, mode: str
) -> list[Answer]:
    """Return the SDK's answers, each from tables without the models of the setting's fold."""
    folds = fold_of(truth.settings)
    result: dict[int, Answer] = {}
    with tempfile.TemporaryDirectory() as folder:
        for fold in range(FOLDS):
            indices = [index for index, query_fold in enumerate(folds) if query_fold == fold]
            if not indices:
                continue
            deleted = copy_without(systems, Path(folder), queries[indices[0]].module, fold)
            print(f"fold {fold}: {deleted:,} rows deleted, {len(indices)} settings", flush=True)
            fold_answers = sdk.latency(Path(folder), mode, [queries[index] for index in indices])
            result |= dict(zip(indices, fold_answers, strict=True))
    return [result[index] for index in range(len(queries))]


def refusal_counts(answers: Sequence[Answer]) -> Counter[str]:
    """Return the number of the SDK's refusals by type of error."""
    refusals = (answer.refusal for answer in answers)
    return Counter(reason.partition(":")[0] for reason in refusals if reason is not None)


def score_answers(truth: Truth, answers: Sequence[Answer], predictor: str) -> pl.DataFrame:
    """Return the scores of the SDK's answers to each setting; a refusal is a miss."""
    rows = [
        (curve, n, latency_ms / answer.latency_ms[0])
        for curve, grid, answer in zip(
            truth.settings["curve"], truth.settings["grid"].to_list(), answers, strict=True
        )
        if answer.latency_ms is not None
        for n, latency_ms in zip(grid, answer.latency_ms, strict=True)
    ]
    ratios = pl.DataFrame(rows, _RATIOS, orient="row").sort("asked", "n")
    empty = pl.lit(None, pl.Float64)
    n_max = boundaries(ratios.rename({"asked": "curve"}), [EPSILON]).select(
        pl.col("curve").alias("asked"),
        pl.lit(predictor).alias("predictor"),
        "epsilon",
        pl.col("n_max").cast(pl.Float64),
        empty.alias("low"),
        empty.alias("high"),
        pl.lit(value=False).alias("in_sample"),
    )
    labelled = ratios.with_columns(pl.lit(predictor).alias("predictor"))
    return score(truth, n_max, [predictor], labelled)


def own_scores(
    truth: Truth, known: Truth, curves: ImportedCurves, config: Config, layout: Layout
) -> pl.DataFrame:
    """Return nearfree's scores on the curves of `truth`, each predicted without its fold's models.

    The other curves of `known` are used, including products with weights of few bytes.
    """
    resolver = Resolver(layout, cache=Cache(default_cache()), offline=True)
    parts = list(curves_by_form(known, curves, datasheet_facts(config.platforms), resolver))
    own_answers, ratios = answers("R2m", parts, chips(config.platforms), [EPSILON], EPSILON)
    predictor = pl.lit(OWN).alias("predictor")
    own_answers = own_answers.drop("regime").with_columns(predictor)
    return score(truth, own_answers, [OWN], ratios.with_columns(predictor))


def table(scores: pl.DataFrame, by: Sequence[str]) -> str:
    """Return scores as a text table, one line per group and predictor."""
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
