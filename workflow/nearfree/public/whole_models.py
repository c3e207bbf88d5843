"""Published latencies of whole models' decode steps: a checked CSV file with a row per step.

The format is that of config/whole/steps.csv. Other columns are ignored.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from nearfree.errors import ConfigError
from nearfree.log.line import sha256

FILE = "whole/steps.csv"
"""The project's own rows, below the config folder."""
MODELS, HEADS = "whole/models", "whole/heads"
"""The folders of their models and of draft heads, below the config folder."""
SIZE_LIMIT = 64 * 2**20
"""Most bytes of such a file."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}"
_TEXT = r"[^\x00-\x1f\x7f]{0,400}"
_LARGEST = 10_000_000
_MEAN = re.compile(r"(?i)mean TPOT|TPOT \(mean")
"""Values of `how` for which T includes a share of other requests' prefills."""


class WholeRow(Struct, frozen=True, kw_only=True):
    """One published latency T of a decode step, in microseconds.

    `precision`, `kv_dtype`, `engine` and `how` are the source's words. `moe_backend` and
    `attention_backend` are the values of the engine's options for MoE and attention kernels, empty
    if the option was not set or names the engine's default. `batch` is b over all GPUs, `positions`
    N, `context` the cached positions per request. `isl` and `osl` are the lengths of prompts and
    outputs if requests were served. `ratio` is T(N) / T(1) if the source gives it. `head` names the
    file of the draft head; without one the model's own layer drafts.
    """

    line: int
    model: str
    gpu: str
    engine: str
    batch: int
    t_us: float
    positions: int = 1
    context: int = 1
    config: str = ""
    tp: int = 1
    ep: int = 1
    dp: int = 1
    precision: str = ""
    kv_dtype: str = ""
    moe_backend: str = ""
    attention_backend: str = ""
    engine_version: str = ""
    how: str = ""
    isl: int | None = None
    osl: int | None = None
    ratio: float | None = None
    draft: str = ""
    head: str = ""
    source: str = ""

    @property
    def holds_prefill(self) -> bool:
        """Whether T is a mean over output tokens that includes prefills of other requests."""
        return bool(_MEAN.match(self.how) and self.isl and self.osl)

    @property
    def holds_draft(self) -> bool:
        """Whether T includes the time of drafting."""
        return self.draft.startswith("yes")

    @property
    def series(self) -> tuple[object, ...]:
        """The values that rows share which differ only in batch or N."""
        source = re.split(r"[#]|:\d+$| id=| run_id=| t=", self.source)[0]
        return (
            self.model, self.gpu, self.engine, self.engine_version, self.precision, self.tp,
            self.ep, self.dp, self.isl, self.osl, self.how, source,
        )  # fmt: skip


class WholeFile(Struct, frozen=True):
    """The rows of a file, and its SHA-256."""

    rows: list[WholeRow]
    digest: str


def read_rows(path: Path) -> WholeFile:
    """Return the rows of a file.

    Raises
    ------
    ConfigError
        The file is missing, too large or not CSV, or rows have mistakes: the message lists them.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", remedy="Give a CSV file of rows") from error
    if len(data) > SIZE_LIMIT:
        raise ConfigError(
            f"{path} has more than {SIZE_LIMIT} bytes", remedy="Give a smaller CSV file"
        )
    try:
        rows, mistakes = _rows(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path} is not CSV: {error}", remedy="Give rows in UTF-8, with a header line"
        ) from error
    if mistakes or not rows:
        problems = "; ".join(mistakes[:12]) or "it holds no row"
        raise ConfigError(
            f"{path}: {problems}", remedy=f"Columns are those of config/{FILE}; correct the rows"
        )
    return WholeFile(rows, sha256(data))


def _rows(text: str) -> tuple[list[WholeRow], list[str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        return [], [f"it lacks the columns {', '.join(missing)}"]
    rows, mistakes = list[WholeRow](), list[str]()
    for row in reader:
        line = reader.line_num
        problems = list(_row_problems(row))
        mistakes += [f"line {line}: {problem}" for problem in problems]
        if not problems:
            rows.append(_row(line, row))
    return rows, mistakes


_REQUIRED = ("model", "gpu", "engine", "batch", "t_us")
_COUNT_COLUMNS = {"batch": 0, "positions": 1, "context": 1, "tp": 1, "ep": 1, "dp": 1}
"""Columns of numbers from 1 on, with their defaults; 0 marks a required value."""
_LENGTH_COLUMNS = ("isl", "osl")
_RATIO_COLUMN, _DRAFT_COLUMN = "ratio_tN_t1", "draft_in_t"
_NAME_COLUMNS = ("model", "config", "head", "moe_backend", "attention_backend")
_TEXT_COLUMNS = ("precision", "kv_dtype", "engine_version", "how", "source", "gpu", "engine")


def _row_problems(row: Mapping[str, str | None]) -> Iterator[str]:
    if None in row or None in row.values():
        yield "it has another number of fields than there are columns"
        return
    patterns = {
        **dict.fromkeys(_NAME_COLUMNS, rf"({_NAME})?"),
        "model": _NAME,
        **dict.fromkeys((*_TEXT_COLUMNS, _DRAFT_COLUMN), _TEXT),
    }
    for name, pattern in patterns.items():
        if not re.fullmatch(pattern, row.get(name) or ""):
            yield f"{name} {row.get(name)!r:.60} is no name"
    for name, default in (_COUNT_COLUMNS | dict.fromkeys(_LENGTH_COLUMNS, 1)).items():
        if not _is_whole_number(row.get(name), default):
            yield f"{name} {row.get(name)!r:.30} is no whole number from 1 to {_LARGEST}"
    for name in ("t_us", _RATIO_COLUMN):
        if (row.get(name) or name == "t_us") and not _is_positive_number(row.get(name)):
            yield f"{name} {row.get(name)!r:.30} is no positive number"


def _is_whole_number(text: str | None, default: int) -> bool:
    if not text:
        return bool(default)
    return bool(re.fullmatch(r"[0-9]{1,8}", text)) and 1 <= int(text) <= _LARGEST


def _is_positive_number(text: str | None) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text or "")) and float(text or 0) > 0


def _row(line: int, row: Mapping[str, str]) -> WholeRow:
    ratio = row.get(_RATIO_COLUMN)
    fields: dict[str, Any] = {
        **{name: int(row.get(name) or default) for name, default in _COUNT_COLUMNS.items()},
        **{name: int(row[name]) for name in _LENGTH_COLUMNS if row.get(name)},
        **{name: row.get(name) or "" for name in _NAME_COLUMNS + _TEXT_COLUMNS},
    }
    return WholeRow(
        line=line,
        t_us=float(row["t_us"]),
        ratio=float(ratio) if ratio else None,
        draft=row.get(_DRAFT_COLUMN) or "",
        **fields,
    )
