"""Which part of a data set is scored: what was asked for, and what constants did not see."""

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

SEEN = "constants were calibrated on its platform"
FITTED = "own constants were fitted to it"


def chosen(source: str, known: Truth, column: str, names: Sequence[str]) -> Truth:
    """Return the part of a truth with some values of a column, the whole where none is named.

    Parameters
    ----------
    column
        One that `excluded` has, too: platform, module, backend, dtype, routing; or weights or
        kv_dtype, where what is stored in the element type has that one's name. A routing without
        an exponent stands for all exponents.

    Raises
    ------
    ConfigError
        One that the data do not have, or data without any boundary.
    """
    value = pl.col(column).fill_null(pl.col("dtype")) if column in STORED else pl.col(column)
    values = sorted(known.settings.select(value).to_series().drop_nulls().unique())
    wanted = {name: [each for each in values if name in (each, each.split(":")[0])]
              for name in names}  # fmt: skip
    for name, found in wanted.items():
        if not found:
            raise ConfigError(
                f"{source} has no boundary of the {column} {name!r}",
                remedy=f"Choose from {', '.join(values) or 'none'}",
            )
    if known.settings.is_empty():
        raise ConfigError(
            f"{source} holds no curve with a boundary",
            remedy="Give curves that reach their baseline: any N, of balanced experts an N of "
            "ceil(E / (b k)) or more, of a power law one with nine in ten experts awake",
        )
    return narrowed(known, value.is_in([*chain(*wanted.values())])) if names else known


def learnt(curves: ImportedCurves, chosen: Mapping[str, Sequence[str] | None]) -> ImportedCurves:
    """Return the curves with some values of columns, as `chosen` reads them; all where none is."""
    kept = curves.settings
    for column, names in chosen.items():
        value = pl.col(column).fill_null(pl.col("dtype")) if column in STORED else pl.col(column)
        kept = kept.filter(value.is_in(list(names))) if names else kept
    return ImportedCurves(kept, curves.points.join(kept.select("curve"), on="curve", how="semi"))


def without(known: Truth, column: str, values: Sequence[str], reason: str) -> Truth:
    """Return a truth without the curves that have some values in a column, excluded by name.

    Parameters
    ----------
    column
        One that `excluded` has, too: platform, or event_id.
    reason
        Why they are excluded.
    """
    gone = pl.col(column).is_in(values)
    kept = narrowed(known, ~gone)
    excluded = known.settings.filter(gone).select(
        *(name for name in EXCLUDED_COLUMNS if name != "reason"), pl.lit(reason).alias("reason")
    )
    return structs.replace(kept, excluded=pl.concat([known.excluded, excluded]))


def unseen(source: str, known: Truth, constants: Mapping[str, Event]) -> Truth:
    """Return the part of a truth of platforms that no constant was calibrated on.

    Raises
    ------
    ConfigError
        There is no such calibration, or no such platform in the data.
    """
    if not constants:
        raise ConfigError("no constants are in the log", remedy="Run `nearfree calibrate` first")
    left = without(known, "platform", calibrated_on(constants), SEEN)
    if left.settings.is_empty():
        raise ConfigError(
            f"{source} has no platform that no constant was calibrated on",
            remedy="Leave out --unseen, or give other data",
        )
    return left


def calibrated_on(constants: Mapping[str, Event]) -> list[str]:
    """Return the platforms that any of the constants were calibrated on."""
    return sorted({name for event in constants.values() for name in event.data.platforms})


def not_fitted(known: Truth, own: Mapping[str, Mapping[str, Own]]) -> Truth:
    """Return the part of a truth that platforms' own constants were not fitted to.

    Raises
    ------
    EvidenceError
        There are none.
    """
    if not own:
        raise EvidenceError(
            "the log holds no platform's own constants",
            remedy="Run `nearfree calibrate --own PLATFORM --from published`, or from a stream",
        )
    return without(known, "event_id", curves_used(own), FITTED)
