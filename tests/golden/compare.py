"""Compare two results roots: tables cell by cell, figures' data, the report's numbers.

    python tests/golden/compare.py [--tables] OLD NEW

It prints a line for each difference and ends with code 2 if there is one. OLD and NEW are results
roots with `tables`, `figures` and `report`, or roots of a golden log, in which `derived.json.gz`
stands for the last two. What may be reworded is left out: the texts of `refusal`, `says` and
`why`, titles, formulas and meanings, and the code that made something. Real numbers are equal if
they agree to six digits, or are both nothing: the last bits of a logarithm or of a solved system
are those of the processor's own instructions, which numpy chooses, and a fit that is searched for
ends where these bits let it.

It reads files and imports nothing of the package.
"""

import argparse
import base64
import gzip
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

REWORDED = frozenset(
    {"refusal", "says", "why", "title", "subtitle", "labelExpr", "config", "$schema"}
)
DERIVED = "derived.json.gz"
ABSENT = "(absent)"
Content = dict[str, Any]
"""Plain values by their path below a results root."""
_SPEC = re.compile(r'<script type="application/json" id="spec">(.*?)</script>', re.DOTALL)
_BLOCK = re.compile(r'<script type="application/gzip" data-name="([^"]*)">([^<]*)</script>')
_PICTURE = "svg:"
_SHOWN = 200
_DIGITS, _NOTHING = 1e-6, 1e-12
"""How far two real numbers may lie apart: as a share of either, and where they are about zero."""
_REAL = re.compile(r"-?\d+\.\d{6,}(?:e[+-]?\d+)?")
"""An unrounded real number in a line of CSV."""


class Difference(NamedTuple):
    """Where two roots differ: the place, the row and column or the path there, and both values."""

    place: str
    path: tuple[str, ...]
    about: str
    old: object
    new: object

    def __str__(self) -> str:
        about = f" ({self.about})" if self.about else ""
        old, new = (f"{value!r:.{_SHOWN}}" for value in (self.old, self.new))
        return f"{self.place}: {' '.join(self.path)}{about}: {old} -> {new}"


def content(root: Path) -> Content:
    """Return all that was derived in a root: tables, figures' data, the report's numbers."""
    return tables(root) | derived(root)


def tables(root: Path) -> Content:
    """Return every table of a root by its path."""
    tables_by_path = {}
    for path in sorted(root.glob("tables/*/*.parquet")):
        frame = pl.read_parquet(path)
        tables_by_path[path.relative_to(root).with_suffix("").as_posix()] = {
            "columns": [f"{name}: {dtype}" for name, dtype in frame.schema.items()],
            "order": frame["row_id"].to_list(),
            "rows": {row.pop("row_id"): row for row in frame.to_dicts()},
        }
    return tables_by_path


def derived(root: Path) -> Content:
    """Return the figures' data and the report's numbers of a root, drawn or golden."""
    golden = root / DERIVED
    if golden.is_file():
        contents: Content = json.loads(gzip.decompress(golden.read_bytes()))
        return contents
    report = root / "report" / "index.html"
    return dict(_figures(root)) | (dict(_report(report)) if report.is_file() else {})


def write_derived(root: Path, contents: Content) -> None:
    """Write what `derived` returned into a golden root: the same bytes for the same content."""
    raw = json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()
    (root / DERIVED).write_bytes(gzip.compress(raw, 9, mtime=0))


def _figures(root: Path) -> Iterator[tuple[str, Any]]:
    """Yield each figure of a root: what it is of, and what it draws, its data in their places."""
    for listing in sorted(root.glob("figures/*/figures.json")):
        scope = f"figures/{listing.parent.name}"
        figures = json.loads(listing.read_bytes())["figures"]
        yield f"{scope}/figures", [figure["name"] for figure in figures]
        for figure in figures:
            page = (listing.parent / f"{figure['name']}.html").read_text(encoding="utf-8")
            match = _SPEC.search(page)
            spec = json.loads(match[1]) if match else {}
            yield (
                f"{scope}/{figure['name']}",
                {
                    "family": figure["family"],
                    "about": figure.get("about"),
                    "rows": figure["rows"],
                    "spec": _inlined(spec, spec.pop("datasets", {})),
                },
            )


def _inlined(spec: Any, datasets: Mapping[str, Any]) -> Any:
    """Return a specification with each data set, named by its digest, where it is drawn."""
    if isinstance(spec, list):
        return [_inlined(item, datasets) for item in spec]
    if not isinstance(spec, dict):
        return spec
    return {
        key: datasets.get(value["name"], value)
        if key == "data" and isinstance(value, dict) and "name" in value
        else _inlined(value, datasets)
        for key, value in spec.items()
        if key not in REWORDED
    }


def _report(page: Path) -> Iterator[tuple[str, Any]]:
    """Yield the data blocks of a report's page, tables by row, and the numbers that it prints."""
    text = page.read_text(encoding="utf-8")
    for name, packed in _BLOCK.findall(text):
        if name.startswith(_PICTURE):
            continue
        block = json.loads(gzip.decompress(base64.b64decode(packed)))
        yield f"report/{name}", _unpacked(block) if name.startswith("table:") else block
    numbers = _Numbers()
    numbers.feed(text)
    yield from ((f"report/page/{section}", cells) for section, cells in numbers.by_section.items())


def _unpacked(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a table that the page holds by columns."""
    columns = {name: _column(packed, block["ids"]) for name, packed in block["columns"].items()}
    values = block["from"]["values"]
    return {
        "columns": list(columns),
        "rows": {
            row: {name: values[at] for name, values in columns.items()}
            | {"from_ids": [values[code] for code in block["from"]["codes"][at]]}
            for at, row in enumerate(block["ids"])
        },
    }


def _column(packed: Mapping[str, Any], ids: list[str]) -> list[Any]:
    if "same" in packed:
        return [packed["same"]] * len(ids)
    if "plain" in packed:
        return list(packed["plain"])
    return [packed["values"][code] for code in packed["codes"]]


class _Numbers(HTMLParser):
    """The numbers of a page by section: texts of links to rows, and of cells without prose."""

    def __init__(self) -> None:
        super().__init__()
        self.by_section: dict[str, list[str]] = {}
        self._section, self._inside, self._row, self._text = "", "", "", ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._section = given.get("id") or ""
        if tag == "td" and given.get("class") != "long":
            self._inside, self._text = tag, ""
        if tag == "a" and given.get("data-row"):
            self._inside, self._row = self._inside or tag, given["data-row"] or ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag != self._inside:
            return
        if any(word.isdigit() for word in self._text):
            self.by_section.setdefault(self._section, []).append(
                f"{self._row} {' '.join(self._text.split())}".strip()
            )
        self._inside, self._row, self._text = "", "", ""


def differences(old: Content, new: Content) -> Iterator[Difference]:
    """Yield where two contents differ."""
    for place in sorted(old.keys() | new.keys()):
        held = _without_new_nulls(old.get(place, ABSENT), new.get(place, ABSENT))
        for path, was, now in _differ(old.get(place, ABSENT), held, ()):
            yield Difference(place, path, _about(old.get(place), path), was, now)


def _without_new_nulls(old: Any, new: Any) -> Any:
    """Return a table without the columns that it did not have and that are null in every row.

    A setting's new field is such a column in a log whose version did not know it.
    """
    if not (isinstance(old, dict) and isinstance(new, dict) and "rows" in old and "columns" in new):
        return new
    known = {column.partition(":")[0] for column in old["columns"]}
    added = {column.partition(":")[0] for column in new["columns"]} - known
    rows = new["rows"].values()
    null = {name for name in added if all(row[name] is None for row in rows)}
    return new | {
        "columns": [column for column in new["columns"] if column.partition(":")[0] not in null],
        "rows": {
            key: {name: value for name, value in row.items() if name not in null}
            for key, row in new["rows"].items()
        },
    }


def _differ(
    old: Any, new: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            if key not in REWORDED:
                yield from _differ(old.get(key, ABSENT), new.get(key, ABSENT), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _differ(was, now, (*path, str(at)))
    elif not _same(old, new):
        yield path, old, new


def _same(old: object, new: object) -> bool:
    if isinstance(old, str) and isinstance(new, str):
        cells, others = old.split(","), new.split(",")
        return len(cells) == len(others) and all(map(_alike, cells, others))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=_DIGITS, abs_tol=_NOTHING)
    return old == new and type(old) is type(new)


def _alike(old: str, new: str) -> bool:
    """Return whether two cells of a line of CSV are equal up to the tolerance."""
    if _REAL.fullmatch(old) and _REAL.fullmatch(new):
        return _same(float(old), float(new))
    return old == new


def _about(old: Any, path: tuple[str, ...]) -> str:
    """Return a label of a table's row: its first columns of text or integers."""
    if path[:1] != ("rows",) or not isinstance(old, dict):
        return ""
    row = old["rows"].get(path[1], {})
    named_values = [
        f"{name}={value}" for name, value in row.items() if isinstance(value, str | int)
    ]
    return ", ".join(named_values[:6])


def main() -> int:
    """Print the differences of two roots, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path, metavar="OLD", help="a results root")
    parser.add_argument("new", type=Path, metavar="NEW", help="another one")
    parser.add_argument("--tables", action="store_true", help="compare nothing but the tables")
    args = parser.parse_args()
    old, new = map(tables if args.tables else content, (args.old, args.new))
    differing = list(differences(old, new))
    for difference in differing:
        print(difference)
    rows = sum(len(old[place]["rows"]) for place in old if place.startswith("tables/"))
    print(f"{len(old)} places compared, {rows} rows of tables: {len(differing)} differences")
    return 2 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
