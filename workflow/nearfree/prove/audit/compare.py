"""A table as it lies on disk against the same table made again, cell by cell."""

from collections.abc import Iterator
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.derive.tables.schema import Table
from nearfree.prove.audit.render import plain

MOST = 20
"""Differences of one table that are told one by one."""


class Difference(Struct, frozen=True):
    """One cell, or with no column one row, that is not what the log gives."""

    row_id: str
    column: str
    said: Any
    made: Any

    def __str__(self) -> str:
        if not self.column:
            return f"{self.row_id} {self.said}"
        return (
            f"{self.row_id} says {self.column} = {plain(self.said)}, and the log gives "
            f"{plain(self.made)}"
        )


def differences(table: Table, said: pl.DataFrame, made: pl.DataFrame) -> Iterator[Difference]:
    """Yield what differs between two frames of one table; nothing where they are the same.

    Parameters
    ----------
    said, made
        What lies on disk, and what was made from the log.
    """
    if said.equals(made, null_equal=True):
        return
    for row_id in said.join(made, on="row_id", how="anti")["row_id"]:
        yield Difference(row_id, "", "is a row that the log does not give", None)
    for row_id in made.join(said, on="row_id", how="anti")["row_id"]:
        yield Difference(row_id, "", "is missing, and the log gives it", None)
    twice = said.filter(said["row_id"].is_duplicated())["row_id"].unique(maintain_order=True)
    for row_id in twice:
        yield Difference(row_id, "", "is there twice", None)
    pairs = said.unique("row_id", keep="first", maintain_order=True).join(
        made, on="row_id", how="inner", suffix=" made", maintain_order="left"
    )
    for column in table.dtypes:
        if column == "row_id":
            continue
        other = f"{column} made"
        for row in pairs.filter(pl.col(column).ne_missing(pl.col(other))).iter_rows(named=True):
            yield Difference(row["row_id"], column, row[column], row[other])
    if said["row_id"].to_list() != made["row_id"].to_list() and not pairs.is_empty():
        yield Difference(table.name, "", "has its rows in another order than the log gives", None)
