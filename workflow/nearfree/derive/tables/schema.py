"""Schemas of tables: their columns, key and evidence, checked by pandera."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec import Struct

from nearfree.core.modules.kind import Equation
from nearfree.derive.tables.columns import IDS, Column, text
from nearfree.errors import TableError

if TYPE_CHECKING:
    import pandera.polars as pa


_IDS_AT_ONCE = 100_000
_ROWS_AT_ONCE = 1_000


class EventIds:
    """The ids `segment#place` of many events, stored as places by segment.

    `segments` have the places of some of their events; a segment may be repeated.
    """

    def __init__(self, segments: Iterable[tuple[str, Sequence[int]]]) -> None:
        parts_of: dict[str, list[Sequence[int]]] = {}
        for segment, places in segments:
            parts_of.setdefault(segment, []).append(places)
        self._places = {
            segment: np.sort(np.concatenate(parts)) for segment, parts in parts_of.items()
        }

    def absent(self, ids: pl.Series) -> pl.Series:
        """Return the given ids that are none of these events."""
        parts = [self._absent(part) for part in ids.to_frame("id").iter_slices(_IDS_AT_ONCE)]
        return pl.concat(parts) if parts else ids.clear()

    def _absent(self, ids: pl.DataFrame) -> pl.Series:
        parts = pl.col("id").str.splitn("#", 2)
        place = parts.struct[1].cast(pl.Int64, strict=False)
        exact = place.cast(pl.String) == parts.struct[1]
        split = ids.with_columns(
            parts.struct[0].alias("segment"), pl.when(exact).then(place).alias("place")
        )
        frames = [
            part.filter(~self._holds(segment, part["place"]))
            for (segment,), part in split.group_by("segment", maintain_order=True)
        ]
        return pl.concat(frames)["id"]

    def _holds(self, segment: object, places: pl.Series) -> pl.Series:
        segment_places = self._places.get(str(segment), np.array([], dtype=np.int64))
        return pl.Series(np.isin(places.fill_null(0).to_numpy(), segment_places))


class Formula(Struct, frozen=True, kw_only=True):
    """The formula of a row: that of its table or of its own equation."""

    text: str
    paper: str
    code: str


class Table(Struct, frozen=True, kw_only=True):
    """One kind of table: what a row is, its key, and its columns besides row_id and from_ids.

    `formula` is how a row is computed, as a text; `paper` is the equation's section in the paper,
    empty if it has none; `code` is the function or module of this project that computes it.
    """

    name: str
    row: str
    key: tuple[str, ...]
    formula: str
    paper: str = ""
    code: str
    equation: Callable[[Mapping[str, object]], Equation | None] | None = None
    """The equation of a row that has its own, by the row's columns."""
    beside: Formula | None = None
    """The formula of columns beside the number, if it is another."""
    body: dict[str, Column]

    @property
    def columns(self) -> dict[str, Column]:
        """Every column, in order."""
        return {
            "row_id": text("the table and a digest of the row's key"),
            **self.body,
            "from_ids": Column(dtype=IDS, meaning="events or rows that the row was made from"),
        }

    def formula_of(self, row: Mapping[str, object]) -> Formula:
        """Return the formula of a row.

        Columns that the row lacks count as empty.
        """
        own = self.equation(row) if self.equation else None
        formula, paper = (own.text, own.section) if own else (self.formula, self.paper)
        return Formula(text=formula, paper=paper, code=self.code)

    @property
    def dtypes(self) -> dict[str, Any]:
        """The polars type of every column, in order."""
        return {name: column.dtype for name, column in self.columns.items()}

    def frame(self, rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
        """Return rows as a frame of this table's types, without ids and unchecked."""
        remaining, frames = iter(rows), []
        while batch := list(islice(remaining, _ROWS_AT_ONCE)):
            frames.append(self._frame(batch))
        return pl.concat(frames or [self._frame([])])

    def _frame(self, rows: list[Mapping[str, object]]) -> pl.DataFrame:
        dtypes = {name: dtype for name, dtype in self.dtypes.items() if name != "row_id"}
        return pl.DataFrame([self._series(name, dtype, rows) for name, dtype in dtypes.items()])

    def _series(self, name: str, dtype: Any, rows: list[Mapping[str, object]]) -> pl.Series:
        try:
            values = [row[name] for row in rows]
            if dtype == pl.Float64:
                values = [float(v) if type(v) is int else v for v in values]
            if dtype == IDS and any(isinstance(value, str) for value in values):
                raise self._broken(f"column {name} holds text, not lists of text")
            return pl.Series(name, values, dtype=dtype, strict=True)
        except KeyError:
            raise self._broken(f"lacks the column {name}") from None
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            text = " ".join(str(error).split())
            raise self._broken(f"column {name} is not {dtype}: {text:.120}") from error

    def schema(self) -> "pa.DataFrameSchema":
        """Return the pandera schema of the columns: names, order, types, and unique ids."""
        import pandera.polars as pa

        columns = {name: pa.Column(dtype, nullable=True) for name, dtype in self.dtypes.items()}
        return pa.DataFrameSchema(
            columns, name=self.name, strict=True, ordered=True, unique=["row_id"]
        )

    def build(self, rows: pl.DataFrame, known: Collection[str] | EventIds) -> pl.DataFrame:
        """Return rows as this table: with ids, sorted and checked.

        `rows` have the body's columns and `from_ids`, in any order; `known` are the ids that
        `from_ids` may contain. Raises TableError if a column is missing or of another type, a value
        is out of range, two rows share a key, or `from_ids` contains an unknown id.
        """
        missing = [name for name in (*self.body, "from_ids") if name not in rows.columns]
        if missing:
            raise self._broken(f"lacks the column {missing[0]}")
        schema = rows.schema
        for name, dtype in self.dtypes.items():
            if schema.get(name, dtype) not in (dtype, pl.Null()):
                raise self._broken(f"column {name} is {schema[name]}, not {dtype}")
        keys = rows.select(pl.col(self.key).cast(pl.String).fill_null(""))
        digests = (sha256(repr(key).encode()).hexdigest() for key in keys.iter_rows())
        ids = [f"{self.name}:{digest[:12]}" for digest in digests]
        frame = rows.with_columns(pl.Series("row_id", ids, dtype=pl.String)).select(
            pl.col(name).cast(dtype) for name, dtype in self.dtypes.items()
        )
        order = frame.select(pl.arg_sort_by(*self.key, nulls_last=False)).to_series()
        if (order.diff().drop_nulls() != 1).any():  # a sorted frame needs no copy
            frame = frame[order]
        duplicates = keys.filter(keys.is_duplicated())
        if not duplicates.is_empty():
            raise self._broken(f"has two rows of the key {duplicates.row(0, named=True)}")
        self._check_references(frame, known)
        return self.check(frame)

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame that fits the schema; else raise TableError with column and value.

        Pandera checks the columns. One query checks the rules of all values: pandera runs several
        queries per column, which took half of the time of making a table.
        """
        with without("pandas", "hypothesis"):
            from pandera.errors import SchemaErrors

            try:
                self.schema().validate(frame, lazy=True)
            except SchemaErrors as error:
                case = error.failure_cases.row(0, named=True)
                raise self._broken(
                    f"column {case['column'] or case['schema_context']}: {case['check']} fails for "
                    f"{case['failure_case']!r}"
                ) from error
        rules = [
            (name, rule, holds)
            for name, column in self.columns.items()
            for rule, holds in column.rules(name).items()
        ]
        passed = frame.select(holds.all().alias(str(i)) for i, (_, _, holds) in enumerate(rules))
        for (name, rule, holds), all_pass in zip(rules, passed.row(0), strict=True):
            if not all_pass:
                value = frame.filter(~holds)[name][0]
                raise self._broken(f"column {name}: {rule} fails for {value!r}")
        return frame

    def fits(self, frame: pl.DataFrame, where: str) -> pl.DataFrame:
        """Return a frame read from a file; TableError unless its columns are this version's."""
        schema = frame.schema
        for name, dtype in self.dtypes.items():
            if schema.get(name) != dtype:
                raise TableError(
                    f"{where}: column {name} is {schema.get(name, 'missing')}, not {dtype}",
                    remedy="Run the workflow again: another version made this table",
                )
        return frame

    def _check_references(self, frame: pl.DataFrame, known: Collection[str] | EventIds) -> None:
        references = frame.select(pl.col("from_ids").explode().alias("id")).drop_nulls()
        if isinstance(known, EventIds):
            unknown = known.absent(references["id"])
        else:
            known_ids = pl.DataFrame({"id": list(known)}, schema={"id": pl.String})
            unknown = references.join(known_ids, on="id", how="anti")["id"]
        if not unknown.is_empty():
            raise self._broken(f"is made from {unknown.min()!r}, which is not there")

    def _broken(self, what: str) -> TableError:
        return TableError(
            f"the table {self.name} {what}",
            remedy="Nothing was written. If you changed the code or the schema, mend that; "
            "else run `nearfree verify`",
        )


class _Absent:
    """A finder that hides some packages from the thread that made it.

    pandera imports pandas and hypothesis if they are installed, for kinds of frames and data that
    no table here uses. That takes a second per process, twice the time of making most tables.
    """

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages
        self._thread = get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in self._packages and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Hide packages from this thread's imports, except those already loaded."""
    finder = _Absent(tuple(package for package in packages if package not in sys.modules))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
