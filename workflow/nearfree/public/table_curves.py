"""From rows of a table to curves: repeats merged, bad curves left out by reason, events made."""

from collections.abc import Iterator, Mapping

import polars as pl
from msgspec import Struct

from nearfree.core.setting import Setting
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyImported
from nearfree.public.curve_row import CURVE_FIELDS
from nearfree.public.plausible import too_fast, unit_too_small, with_slowness
from nearfree.units import US_PER_MS

REPEAT_SPREAD = 2.0
"""Up to this factor two latencies of one point are repeats of one measurement.

Those of the A100 and H100 tables differ by 0.5 % in the median, 12 % in one of 100 cases and 58 %
at most. Beyond it something differs that the table does not name.
"""
_DECIMALS = 6
"""Decimals of a microsecond that are kept: what is left out is below a picosecond."""
FIELDS = ("module", "dtype", *(name for name in CURVE_FIELDS if name != "context"))
"""The fields of a setting that a table can have, besides backend and context."""
_SAME = ("platform", "backend", *FIELDS, "backend_version", "kernel", "distribution")


class Member(Struct, frozen=True):
    """Where rows are from: the release, the file inside its artefact, and that file's SHA-256."""

    source: str
    path: str
    sha256: str


class TableCurves(Struct, frozen=True):
    """The curves of one table, and how many were left out, by reason, with one of each named."""

    events: list[LatencyImported]
    skipped: dict[str, int]
    examples: dict[str, str]
    repeats: int
    """Points that were measured several times and stand for their median."""


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
        `distribution`, `n`, `context` and `latency_ms`, a row a measurement.
    facts
        What is known of each platform, for the check that a latency can be true.
    over_context
        Whether a curve is over the context at one N, not over N.

    Returns
    -------
    TableCurves
        Repeats of a point stand for their median. A curve with a bad latency is left out whole.
    """
    axis, fixed = ("context", "n") if over_context else ("n", "context")
    key = [*_SAME, fixed]
    bad = ~((pl.col("latency_ms") > 0) & pl.col("latency_ms").is_finite()).fill_null(value=False)
    merged = points.group_by([*key, axis]).agg(
        pl.len().alias("repeats"),
        (pl.col("latency_ms").median() * US_PER_MS).round(_DECIMALS).alias("latency_us"),
        (pl.col("latency_ms").max() / pl.col("latency_ms").min()).alias("spread"),
        bad.any().alias("bad"),
    )
    # A table varies few of dozens of columns, and sorting by all of them takes half of an import.
    varied = [name for name in (*key, axis) if merged[name].n_unique() > 1]
    slow = with_slowness(merged, facts)
    grouped = (
        (slow.sort(varied, nulls_last=False) if varied else slow)
        .group_by(key, maintain_order=True)
        .agg(pl.col(axis), "latency_us", _reason(), (pl.col("repeats") > 1).sum().alias("again"))
    )
    wrong = grouped.filter(pl.col("reason").is_not_null())
    right = grouped.filter(pl.col("reason").is_null())
    counted = wrong.group_by("reason").len().sort("reason")
    first = wrong.unique("reason", keep="first", maintain_order=True)
    return TableCurves(
        events=list(_events(right, member, over_context=over_context)),
        skipped=dict(counted.iter_rows()),
        examples={
            row["reason"]: f"{member.path}: {_setting_text(row)}"
            for row in first.iter_rows(named=True)
        },
        repeats=int(right["again"].sum()),
    )


def _reason() -> pl.Expr:
    """Return why a curve is left out, null where it is not."""
    wrong = {
        "a latency that is no positive number": pl.col("bad").any(),
        "repeats that differ by over a factor of 2": (pl.col("spread") > REPEAT_SPREAD).any(),
        "faster than the hardware allows": too_fast(pl.col("slowness")).any(),
        "as slow as if nanoseconds were microseconds": unit_too_small(pl.col("slowness_cold")),
        "one point alone": pl.len() < 2,
    }
    return pl.coalesce(
        pl.when(condition).then(pl.lit(text)) for text, condition in wrong.items()
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
