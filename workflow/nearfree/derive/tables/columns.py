"""Columns of tables: their meanings, types and allowed values."""

from math import isinf
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.core.setting import FIELDS
from nearfree.core.setting_field import Field

IDS = pl.List(pl.String())
COUNTS = pl.List(pl.Int64())
ORIGINS = ("measured", "imported", "published", "simulated")


class Column(Struct, frozen=True, kw_only=True):
    """One column: its type, its meaning and its allowed values."""

    dtype: Any
    meaning: str
    nullable: bool = False
    above: float | None = None
    at_least: float | None = None
    one_of: tuple[str, ...] | None = None

    def rules(self, name: str) -> dict[str, pl.Expr]:
        """Return the conditions on every value of the column, by their names in messages."""
        value = pl.col(name)
        rules = {}
        if not self.nullable:
            rules["not null"] = value.is_not_null()
        if self.dtype == pl.Float64:
            rules["finite"] = value.is_finite()
        if self.above is not None:
            rules[f"above {self.above:g}"] = value > self.above
        if self.at_least is not None:
            rules[f"at least {self.at_least:g}"] = value >= self.at_least
        if self.one_of is not None:
            rules[f"one of {', '.join(self.one_of)}"] = value.is_in(self.one_of)
        return rules


def text(meaning: str, *, nullable: bool = False, one_of: tuple[str, ...] | None = None) -> Column:
    """Return a column of text."""
    return Column(dtype=pl.String(), meaning=meaning, nullable=nullable, one_of=one_of)


def count(meaning: str, *, nullable: bool = False, at_least: int = 1) -> Column:
    """Return a column of whole numbers."""
    return Column(dtype=pl.Int64(), meaning=meaning, nullable=nullable, at_least=at_least)


def counts(meaning: str) -> Column:
    """Return a column of lists of whole numbers."""
    return Column(dtype=COUNTS, meaning=meaning)


def amount(meaning: str, *, nullable: bool = False) -> Column:
    """Return a column of positive numbers; the unit is in the column's name."""
    return Column(dtype=pl.Float64(), meaning=meaning, nullable=nullable, above=0.0)


def number(meaning: str, *, nullable: bool = False) -> Column:
    """Return a column of any numbers."""
    return Column(dtype=pl.Float64(), meaning=meaning, nullable=nullable)


def flag(meaning: str, *, nullable: bool = False) -> Column:
    """Return a column of yes or no."""
    return Column(dtype=pl.Boolean(), meaning=meaning, nullable=nullable)


def finite_numbers(*numbers: str) -> list[pl.Expr]:
    """Return `unbounded`, whether the first column is infinite, and all columns made finite.

    Numbers of a table are finite: null replaces the others.
    """
    finite = [pl.when(pl.col(name).is_finite()).then(name).alias(name) for name in numbers]
    return [pl.col(numbers[0]).is_infinite().fill_null(value=False).alias("unbounded"), *finite]


def finite(number: float | None) -> float | None:
    """Return a number of a table; None for an infinite one."""
    return None if number is None or isinf(number) else number


def of_field(field: Field) -> Column:
    """Return the column of a setting's field."""
    symbol = field.letter if field.letter != field.name else ""
    meaning = ", ".join(filter(None, (symbol, field.meaning, field.unit)))
    nullable = field.default is None
    if field.kind is int:
        return count(meaning, nullable=nullable, at_least=field.least)
    return (flag if field.kind is bool else text)(meaning, nullable=nullable)


SETTING_COLUMNS: dict[str, Column] = {
    "setting_key": text("short name of the setting, the same on every machine"),
    **{name: of_field(field) for name, field in FIELDS.items()},
}
"""The columns of a row's setting."""
CURVE = {
    "platform": text("the kind of machine"),
    "stream": text("the study"),
    "take": count("which take"),
    "plan8": text("first digits of the plan's digest"),
    "newest": flag("whether no newer sealed take of the study holds this setting"),
    **SETTING_COLUMNS,
}
"""The columns of a row's setting and take."""
