"""Users' curves as a CSV file: checked completely, then imported into the log, or only read.

A file with a mistake is refused; the error names the line, column and remedy of each faulty row.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from nearfree.config.files import Config
from nearfree.core.names import NAME
from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import IMPORTED
from nearfree.errors import ConfigError, Refusal, RefusedError
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyImported
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.public.curve_row import COLUMNS, OPTIONAL, Key, OddFieldError, read_row
from nearfree.public.curves import ImportedCurves, curves_of
from nearfree.public.plausible import check_units

SIZE_LIMIT = 64 * 2**20
"""Bytes of a curve file."""
MAX_NAMED = 20
"""Columns that one message names."""
MAX_ROWS = 10
"""Faulty rows that one message lists."""
Points = list[tuple[int, float, int]]
"""The points of a curve: N, its latency in us, and its line."""


class CurveFile(Struct, frozen=True):
    """A checked file: its plan, its curves in the file's order, and their first lines."""

    plan: ImportPlan
    curves: list[LatencyImported]
    first_lines: list[int]
    unchecked: list[str]
    """Platforms whose latencies could not be compared with their hardware's limits."""


def import_curves(
    layout: Layout, path: Path, config: Config, *, name: str | None = None, take: int = 1
) -> tuple[Seal, CurveFile]:
    """Make sure that a file's curves are in the log, in the stream `curves_<name>`.

    By default the stream has the file's own name.

    Raises
    ------
    ConfigError
        The file, or its name, has a mistake; nothing of it is imported.
    """
    stream = f"curves_{name or re.sub(r'[^a-z0-9]+', '_', path.stem.lower()).strip('_')}"
    if not re.fullmatch(NAME, stream) or stream == "curves_":
        raise ConfigError(
            f"{name or path.stem!r} cannot name curves",
            remedy="Give --name of lower-case letters, digits and underscores, at most 57",
        )
    file = read_file(path, config.platforms)

    name_of_take = take_name(IMPORTED, stream, take, file.plan)
    command = f"nearfree import curves {path.name}"
    seal = ensure_events(layout, name_of_take, file.plan, command, lambda: file.curves)
    return seal, file


def curves_from_csv(path: Path, config: Config) -> ImportedCurves:
    """Return a file's curves, checked as an import would, without writing to a log.

    The id of a curve's event is the file's name and the curve's first line.
    """
    file = read_file(path, config.platforms)
    ids = [f"{path.name}:{line}" for line in file.first_lines]
    return curves_of(zip(file.curves, ids, strict=True))


def read_file(path: Path, platforms: Mapping[str, Platform]) -> CurveFile:
    """Return the contents of a curve file.

    Raises
    ------
    ConfigError
        The file cannot be read, its name is not printable, a field is invalid, the N of a curve do
        not increase, a curve has a single point, or its unit cannot be right. Of faulty rows the
        error lists the first MAX_ROWS and counts the others.
    """
    if not path.name.isprintable():
        raise ConfigError(
            f"the name of {path} is not printable", remedy="Rename the file: its name is kept"
        )
    raw = _bytes(path)
    points = _points(path, raw, platforms)
    if not points:
        raise ConfigError(f"{path} holds no curve", remedy="Give a row a point below the header")
    _refuse_rows(
        path,
        [
            _odd(curve_points[0][2], "n", "is the only N of its curve", "Give two or more")
            for curve_points in points.values()
            if len(curve_points) == 1
        ],
    )
    digest = sha256(raw)
    curves = [
        LatencyImported(
            source=path.name,
            member=path.name,
            member_sha256=digest,
            platform=key.platform,
            setting=key.setting,
            backend_version=key.backend_version,
            kernel=key.kernel,
            n=tuple(n for n, _, _ in curve_points),
            latency_us=tuple(latency_us for _, latency_us, _ in curve_points),
        )
        for key, curve_points in points.items()
    ]
    lines = [[line for _, _, line in curve_points] for curve_points in points.values()]
    unchecked = check_units(path, curves, lines, platforms)
    plan = ImportPlan(files={path.name: digest})
    return CurveFile(plan, curves, [numbers[0] for numbers in lines], unchecked)


def _points(path: Path, raw: bytes, platforms: Mapping[str, Platform]) -> dict[Key, Points]:
    """Return the points of each curve; ConfigError if rows are faulty."""
    points: dict[Key, Points] = {}
    faults: list[Refusal] = []
    for line, values in _lines(path, raw, faults):
        try:
            row = read_row(values, platforms)
        except OddFieldError as error:
            faults.append(_odd(line, error.column, error.what, error.remedy))
            continue
        curve_points = points.setdefault(row.key, [])
        if curve_points and row.n <= curve_points[-1][0]:
            faults.append(_out_of_order(line, row.n, curve_points))
        else:
            curve_points.append((row.n, row.latency_us, line))
    _refuse_rows(path, faults)
    return points


def _refuse_rows(path: Path, faults: Sequence[Refusal]) -> None:
    """Raise ConfigError with the faults of rows, if there are any."""
    if len(faults) == 1:
        raise ConfigError(f"{path} {faults[0]}", remedy=faults[0].remedy)
    if faults:
        heading = f"{path}: {len(faults)} rows are faulty"
        raise RefusedError(faults, heading=heading, listed=MAX_ROWS)


def _out_of_order(line: int, n: int, points: Points) -> Refusal:
    """Return the fault of an N that is not larger than the previous one of its curve."""
    repeated_lines = [point_line for point_n, _, point_line in points if point_n == n]
    if repeated_lines:
        remedy = "Keep one of the two, or name their kernels apart"
        return _odd(line, "n", f"N={n} is in line {repeated_lines[0]} already", remedy)
    problem = f"N={n} comes after N={points[-1][0]} of line {points[-1][2]}"
    return _odd(line, "n", problem, "Sort the rows of each curve by N")


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", remedy="Name a CSV file of curves"
        ) from error
    if len(raw) > SIZE_LIMIT:
        raise ConfigError(f"{path} is over {SIZE_LIMIT} bytes", remedy="Split it by platform")
    return raw


def _lines(path: Path, raw: bytes, faults: list[Refusal]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row's line and its values by column, after checking the header.

    Rows that have no value for each column are appended to the faults instead.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} line {line} is not UTF-8", remedy="Save it as UTF-8") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        for fields in reader:
            if len(fields) not in (0, len(header)):
                what = f"line {reader.line_num} has {len(fields)} fields, not {len(header)}"
                remedy = "Give one for each column, empty where it does not apply"
                faults.append(Refusal("", "", what, remedy))
            elif fields:
                values = {name: field.strip() for name, field in zip(header, fields, strict=True)}
                yield reader.line_num, values
    except csv.Error as error:
        what = f"line {reader.line_num} is not CSV: {error}"
        faults.append(Refusal("", "", what, "Correct that line"))


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in header and name not in OPTIONAL]
    unknown = [name for name in dict.fromkeys(header) if name not in COLUMNS]
    repeated = [name for name, count in Counter(header).items() if count > 1]
    problems = [
        _about_columns(names, one if len(names) == 1 else several)
        for names, one, several in (
            (missing, "is missing", "are missing"),
            (unknown, "is not known", "are not known"),
            (repeated, "occurs twice", "occur twice"),
        )
        if names
    ]
    if problems:
        raise ConfigError(
            f"{path} line 1: {'; '.join(problems)}",
            remedy=f"The columns are {', '.join(COLUMNS)}",
        )


def _about_columns(names: list[str], problem: str) -> str:
    shown = ", ".join(f"{name[:60]!r}" for name in names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"the column{'s' if len(names) > 1 else ''} {shown}{more} {problem}"


def _odd(line: int, column: str, problem: str, remedy: str) -> Refusal:
    return Refusal("", "", f"line {line}, column {column}: {problem}", remedy)
