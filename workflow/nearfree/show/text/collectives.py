"""Errors of collectives' T as text."""

from collections.abc import Iterator, Sequence

import polars as pl

from nearfree.derive.score.collectives import LEAST_KIB, MOST_MIB
from nearfree.show.text.forecast import columns

_NUMBERS = ("median_error", "error_90")


def lines(source: str, rows: pl.DataFrame, by: Sequence[str]) -> Iterator[str]:
    """Yield the definitions of the error, and one line per group of `by`."""
    yield f"data        {source}"
    yield "predicted   T(N) by constants fitted on every platform but the point's own"
    yield "error       |predicted / measured - 1| of T: its median, and its 90th percentile (90 %)"
    yield (
        f"points      payloads of {LEAST_KIB} KiB to {MOST_MIB} MiB; dispatch and combine: every "
        "number of tokens"
    )
    yield "siblings    GPUs of the same generation stay in the fit; only the A100 has none"
    yield ""
    head = [*(name.replace("_", " ") for name in by), "platforms", "points", "median", "90 %"]
    cells = [
        [
            *(row[name] for name in (*by, "platforms", "points")),
            *(f"{row[name]:.3f}" for name in _NUMBERS),
        ]
        for row in rows.iter_rows(named=True)
    ]
    yield from columns([head, *cells])
