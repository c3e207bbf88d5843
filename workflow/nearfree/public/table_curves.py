"""Convert a table's rows to curves: merge repeats, exclude bad curves by reason, make events."""

from collections.abc import Iterator, Mapping

import polars as pl
from msgspec import Struct

from nearfree.core.setting import Setting
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyImported
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.perf_tables import constant_columns
from nearfree.public.plausible import too_fast, unit_too_small, with_slowness
from nearfree.units import US_PER_MS

REPEAT_SPREAD = 2.0
"""Largest ratio of two latencies of one point that counts as repeats of one measurement.

In the A100 and H100 tables repeats differ by 0.5 % in the median, 12 % in one of 100 cases and 58 %
at most. A larger ratio means that something differs which the table does not name.
"""
_DECIMALS = 6
"""Decimals of a microsecond that are kept; the rounding is below a picosecond."""
FIELDS = ("module", "dtype", *(name for name in CURVE_FIELDS if name != "context"))
"""The fields of a setting that a table can have, besides backend and context."""
_CURVE_KEY = ("platform", "backend", *FIELDS, "backend_version", "kernel", "distribution")


class Member(Struct, frozen=True):
    """The source of rows: the release, the file in its artefact, and that file's SHA-256."""

    source: str
    path: str
    sha256: str


class TableCurves(Struct, frozen=True):
    """The curves of one table, and the number of excluded ones by reason, with an example each."""

    events: list[LatencyImported]
    skipped: dict[str, int]
    examples: dict[str, str]
    repeats: int
    """Points that were measured several times and have the median latency."""


def make_curves(
    points: pl.DataFrame,
    member: Member,
    facts: Mapping[str, Platform],
    *,
    over_context: bool,
) -> TableCurves:
    """Return the curves of a table's rows.

    Parameters
    ----------
    points
        `platform`, `backend`, the fields of settings, `backend_version`, `kernel`,
        `distribution`, `n`, `context` and `latency_ms`, a row per measurement.
    facts
        Facts of each platform, for the check that a latency is plausible.
    over_context
        Whether a curve is over the context at one N, not over N.

    Returns
    -------
    TableCurves
        Repeats of a point are replaced by their median. A curve with a bad latency is excluded.
    """
    axis, fixed = ("context", "n") if over_context else ("n", "context")
    constants = constant_columns(points, _CURVE_KEY)
    key = [*(name for name in _CURVE_KEY if name not in constants), fixed]
    bad = ~((pl.col("latency_ms") > 0) & pl.col("latency_ms").is_finite()).fill_null(value=False)
    merged = points.group_by([*key, axis]).agg(
        pl.len().alias("repeats"),
        (pl.col("latency_ms").median() * US_PER_MS).round(_DECIMALS).alias("latency_us"),
        (pl.col("latency_ms").max() / pl.col("latency_ms").min()).alias("spread"),
        bad.any().alias("bad"),
    )
    grouped = (
        with_slowness(merged.with_columns(constants.values()), facts)
        .sort([*key, axis], nulls_last=False)
        .group_by(key, maintain_order=True)
        .agg(pl.col(axis), "latency_us", _reason(), (pl.col("repeats") > 1).sum().alias("again"))
        .with_columns(constants.values())
    )
    excluded = grouped.filter(pl.col("reason").is_not_null())
    included = grouped.filter(pl.col("reason").is_null())
    counts = excluded.group_by("reason").len().sort("reason")
    examples = excluded.unique("reason", keep="first", maintain_order=True)
    return TableCurves(
        events=list(_events(included, member, over_context=over_context)),
        skipped=dict(counts.iter_rows()),
        examples={
            row["reason"]: f"{member.path}: {_setting_text(row)}"
            for row in examples.iter_rows(named=True)
        },
        repeats=int(included["again"].sum()),
    )


def _reason() -> pl.Expr:
    """Return the reason for which a curve is excluded, null for none."""
    conditions = {
        "a latency that is no positive number": pl.col("bad").any(),
        "repeats that differ by over a factor of 2": (pl.col("spread") > REPEAT_SPREAD).any(),
        "faster than the hardware allows": too_fast(pl.col("slowness")).any(),
        "as slow as if nanoseconds were microseconds": unit_too_small(pl.col("slowness_cold")),
        "one point alone": pl.len() < 2,
    }
    return pl.coalesce(
        pl.when(condition).then(pl.lit(text)) for text, condition in conditions.items()
    ).alias("reason")


def _events(
    grouped: pl.DataFrame, member: Member, *, over_context: bool
) -> Iterator[LatencyImported]:
    for row in grouped.iter_rows(named=True):
        latency_us = tuple(row["latency_us"])
        varied = row["context"] if over_context else None
        setting = Setting(
            backend=row["backend"],
            context=varied[0] if varied else row["context"],
            **{name: row[name] for name in FIELDS},
        )
        yield LatencyImported(
            source=member.source,
            member=member.path,
            member_sha256=member.sha256,
            platform=row["platform"],
            setting=setting,
            backend_version=row["backend_version"],
            kernel=row["kernel"],
            distribution=row["distribution"],
            n=(row["n"],) * len(latency_us) if over_context else tuple(row["n"]),
            latency_us=latency_us,
            contexts=tuple(varied) if varied else None,
        )


def _setting_text(row: dict[str, object]) -> str:
    """Return a curve's setting in words."""
    return ", ".join(
        f"{name} {row[name]}"
        for name in ("kernel", *FIELDS)
        if row[name] is not None and name != "module"
    )
