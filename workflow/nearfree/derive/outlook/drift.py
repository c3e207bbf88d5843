"""Table `version_drift`: what each recorded release says of a layer or call, beside the one before.

A change is one of the granularity at the baseline: kernel path, block or tile, how far it holds,
and whether a tuned file or the fallback said so. A rule that only moved to other lines is none.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from nearfree.derive.granularity.facts import sheet_facts, with_facts
from nearfree.derive.granularity.query_frame import asked_frame
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.outlook.drift_rules import (
    ON,
    RULES_SCHEMA,
    Studied,
    change,
    ordered,
    questions,
    said,
)
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.columns import SETTING_COLUMNS, amount, count, flag, text
from nearfree.derive.tables.schema import Table
from nearfree.hardware.platforms import Platform

VERSION_DRIFT = Table(
    name="version_drift",
    row="what one release says of one layer or call on one platform",
    key=("model", "platform", "setting_key", "version"),
    formula="the rules of each release at the same layer or call",
    code="nearfree.derive.outlook.drift",
    body={
        "platform": text("the kind of machine"),
        **SETTING_COLUMNS,
        "model": text("whose layer or call it is"),
        "package": text("the backend's package"),
        "version": text("its version"),
        "place": count("of the package's versions, which one, from the oldest"),
        "baseline": count("the N that ratios refer to"),
        "path": text("kernel path at the baseline", nullable=True),
        "source": text("what chose the block: a tuned file, or the fallback", nullable=True),
        "m_moe": count("M_moe at the baseline, tokens", nullable=True),
        "block_n": count("BLOCK_SIZE_N there, where a rule says it", nullable=True),
        "block_k": count("BLOCK_SIZE_K there, where a rule says it", nullable=True),
        "tau": count("the last number of tokens with that block and path; none: no limit",
                     nullable=True),
        "tile_rows": count("rows of a query tile at N = 1", nullable=True),
        "m_attn": count("the last N with the tiles of N = 1; none: no limit", nullable=True),
        "rule": text("file, lines and digest of that rule", nullable=True),
        "epsilon": amount("tolerance of the work model"),
        "n_max_resolved": amount("N_max by principle_resolved", nullable=True),
        "unbounded": flag("whether that law says that no N is too large"),
        "n_max_work": amount("N_max by work_model, on a grid", nullable=True),
        "grid_end": count("the largest N that the work model is asked of; it is asked of each N up "
                          "to 32, from there on of eight to an octave"),
        "refusal_resolved": text("which rule or fact is missing", nullable=True),
        "refusal_work": text("which rule, fact or constant is missing", nullable=True),
        "previous": text("the version before, of those recorded", nullable=True),
        "differs": flag("whether the granularity differs from that version's", nullable=True),
        "change": text("how it differs", nullable=True),
    },
)  # fmt: skip
GRID_END = 1024
_LAWS = {"principle_resolved": "resolved", "work_model": "work"}


def version_drift(
    studied: Sequence[Studied],
    releases: Sequence[str],
    sheets: Mapping[str, Platform],
    platforms: pl.DataFrame,
    *,
    answerer: Answerer,
    resolver: Resolver,
    epsilon: float,
    on: Sequence[str] = ON,
) -> pl.DataFrame:
    """Return the rows of `version_drift`, with `from_ids`.

    Parameters
    ----------
    studied
        MoE layers and attention calls.
    releases
        Recorded releases, as package==version.
    sheets
        The datasheets.
    platforms
        Rows of the table `platforms`.
    answerer
        The predictors; it is put on the facts of the datasheets.
    resolver
        The same rules.
    epsilon
        Tolerance of the work model.
    on
        Platforms that are asked of.
    """
    facts = sheet_facts(sheets, platforms)
    asked = [
        (each.model, *release, question)
        for each in studied
        for platform in on
        for release, question in questions(each, platform, ordered(releases))
    ]
    frame = asked_frame((each[-1] for each in asked), GRID_END)
    known = with_facts(frame, facts)
    meta = pl.DataFrame(
        [each[:-1] for each in asked],
        schema={"model": pl.String, "package": pl.String, "version": pl.String, "place": pl.Int64},
        orient="row",
    )
    rules = [said(row, resolver) for row in known.to_dicts()]
    rows = pl.concat(
        [known.drop("model"), meta, pl.DataFrame(rules, schema=RULES_SCHEMA)], how="horizontal"
    )
    answers = answerer.on(facts).answers(frame, [epsilon], list(_LAWS))
    for law, name in _LAWS.items():
        rows = rows.join(_answers(answers, law, name), on="asked", how="left")
    changed = pl.DataFrame(list(_changes(rows)), schema=_CHANGE)
    return (
        rows.join(changed, on="asked", how="left")
        .with_columns(
            pl.lit(epsilon).alias("epsilon"),
            pl.col("grid").list.last().alias("grid_end"),
            pl.col("n_max_resolved").is_infinite().fill_null(value=False).alias("unbounded"),
            pl.when(pl.col("n_max_resolved").is_finite()).then("n_max_resolved")
            .alias("n_max_resolved"),
            pl.concat_list("fact_id", "calibration_work").list.drop_nulls().alias("from_ids"),
        )
        .select(*VERSION_DRIFT.body, "from_ids")
    )  # fmt: skip


_CHANGE = {"asked": pl.Int64, "previous": pl.String, "differs": pl.Boolean, "change": pl.String}


def _answers(answers: pl.DataFrame, law: str, name: str) -> pl.DataFrame:
    return answers.filter(predictor=law).select(
        "asked", pl.col("n_max", "refusal", "calibration").name.suffix(f"_{name}")
    )


def _changes(rows: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield what changed from each version to the next."""
    key = ("model", "platform", "setting_key")
    for _, group in rows.sort("asked").group_by(key, maintain_order=True):
        before: dict[str, Any] | None = None
        for row in group.to_dicts():
            if before is not None:
                how = change(before, row)
                yield {
                    "asked": row["asked"],
                    "previous": before["version"],
                    "differs": how is not None,
                    "change": how,
                }
            before = row
