"""The smallest of a law's terms: its value, its name, and how far away the next one is."""

from collections.abc import Mapping

import polars as pl


def smallest(rows: pl.DataFrame, terms: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Return rows with the columns n_max, limiting_term and margin.

    For a module its own terms compete; for a model those of all its modules (paper, sec. 4).

    Parameters
    ----------
    rows
        What the terms are computed from.
    terms
        The terms by name, +inf for no limit, null where one does not apply; of equal ones the
        first counts.

    Returns
    -------
    polars.DataFrame
        `n_max` is the smallest term, null where none applies; `margin` the next smallest over it,
        null without a next one or where nothing limits.
    """
    values = rows.select(value.cast(pl.Float64).alias(name) for name, value in terms.items())
    least = pl.min_horizontal(pl.all())
    names = [pl.when(pl.col(name) == least).then(pl.lit(name)) for name in terms]
    following = pl.concat_list(pl.all()).list.drop_nulls().list.sort().list.get(1, null_on_oob=True)
    found = values.select(
        least.alias("n_max"),
        pl.coalesce(names).alias("limiting_term"),
        pl.when(least.is_finite()).then(following / least).alias("margin"),
    )
    return rows.hstack(found)
