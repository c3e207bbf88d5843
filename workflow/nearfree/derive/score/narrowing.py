"""Selection of the scored part of a data set: by the user's filters, and by calibration."""

from collections.abc import Mapping, Sequence
from itertools import chain

import polars as pl
from msgspec import structs

from nearfree.core.setting import STORED
from nearfree.derive.truth.truth import EXCLUDED_COLUMNS, Truth, narrowed
from nearfree.derive.work_model.own import Own, curves_used
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.events import Event
from nearfree.public.curves import ImportedCurves

SEEN_PLATFORM = "constants were calibrated on its platform"
FITTED_CURVE = "own constants were fitted to it"


def select(source: str, truth: Truth, column: str, names: Sequence[str]) -> Truth:
    """Return the part of a truth with given values of a column; all of it if no value is given.

    Parameters
    ----------
    source
        Name of the data set, for messages.
    column
        A column that `excluded` has, too: platform, module, backend, dtype, routing; or weights or
        kv_dtype, whose null means the element type. A routing without an exponent selects all
        exponents.

    Raises
    ------
    ConfigError
        The data do not have a value, or have no boundary at all.
    """
    column_value = _value(column)
    values = sorted(truth.settings.select(column_value).to_series().drop_nulls().unique())
    matches = {
        name: [value for value in values if name in (value, value.split(":")[0])] for name in names
    }
    for name, matching in matches.items():
        if not matching:
            raise ConfigError(
                f"{source} has no boundary of the {column} {name!r}",
                remedy=f"Choose from {', '.join(values) or 'none'}",
            )
    if truth.settings.is_empty():
        raise ConfigError(
            f"{source} holds no curve with a boundary",
            remedy="Give curves that reach their baseline: any N, of balanced experts an N of "
            "ceil(E / (b k)) or more, of a power law one with nine in ten experts active",
        )
    return narrowed(truth, column_value.is_in([*chain(*matches.values())])) if names else truth


def training_curves(
    curves: ImportedCurves, filters: Mapping[str, Sequence[str] | None]
) -> ImportedCurves:
    """Return the curves with given values of columns, as in `filters`; all if none are given."""
    settings = curves.settings
    for column, names in filters.items():
        settings = settings.filter(_value(column).is_in(list(names))) if names else settings
    return curves.of(settings)


def _value(column: str) -> pl.Expr:
    """Return a column's value; a format that is null is the element type."""
    return pl.col(column).fill_null(pl.col("dtype")) if column in STORED else pl.col(column)


def exclude(truth: Truth, column: str, values: Sequence[str], reason: str) -> Truth:
    """Return a truth whose curves with given values of a column are moved to `excluded`.

    `column` is one that `excluded` has, too: platform, or event_id; `reason` is what `excluded`
    states.
    """
    excluded_rows = pl.col(column).is_in(values)
    remaining = narrowed(truth, ~excluded_rows)
    excluded = truth.settings.filter(excluded_rows).select(
        *(name for name in EXCLUDED_COLUMNS if name != "reason"), pl.lit(reason).alias("reason")
    )
    return structs.replace(remaining, excluded=pl.concat([truth.excluded, excluded]))


def unseen_platforms(source: str, truth: Truth, constants: Mapping[str, Event]) -> Truth:
    """Return the part of a truth on platforms that no constant was calibrated on.

    Raises ConfigError if the log has no constants, or the data have no such platform.
    """
    if not constants:
        raise ConfigError("no constants are in the log", remedy="Run `nearfree calibrate` first")
    remaining = exclude(truth, "platform", calibrated_on(constants), SEEN_PLATFORM)
    if remaining.settings.is_empty():
        raise ConfigError(
            f"{source} has no platform that no constant was calibrated on",
            remedy="Leave out --unseen, or give other data",
        )
    return remaining


def calibrated_on(constants: Mapping[str, Event]) -> list[str]:
    """Return the platforms that any of the constants were calibrated on."""
    return sorted({name for event in constants.values() for name in event.data.platforms})


def without_fitted(truth: Truth, own: Mapping[str, Mapping[str, Own]]) -> Truth:
    """Return the part of a truth that platforms' own constants were not fitted to.

    Raises EvidenceError if the log has no platform's own constants.
    """
    if not own:
        raise EvidenceError(
            "the log holds no platform's own constants",
            remedy="Run `nearfree calibrate --own PLATFORM --from published`, or from a stream",
        )
    return exclude(truth, "event_id", curves_used(own), FITTED_CURVE)
