"""Published latencies of whole models' decode steps: a CSV file, checked as a whole, a row a step.

The form is that of config/whole/steps.csv. Columns that it does not name are left aside.
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
"""The rows that come with the project, below the config folder."""
MODELS, HEADS = "whole/models", "whole/heads"
"""Their models' files and those of heads, below the config folder."""
SIZE_LIMIT = 64 * 2**20
"""Bytes of such a file."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}"
_TEXT = r"[^\x00-\x1f\x7f]{0,400}"
_LARGEST = 10_000_000
_MEAN = re.compile(r"(?i)mean TPOT|TPOT \(mean")
"""How T was obtained where it holds a share of others' prefills."""


class WholeRow(Struct, frozen=True, kw_only=True):
    """One latency T of a decode step as it was published, in microseconds.

    `precision`, `kv_dtype`, `engine` and `how` are the source's words, `moe_backend` and
    `attention_backend` what the engine's options for kernels of experts and of attention were
    given, empty where they were left to it or name its own choice. `batch` is b over
    all GPUs, `positions` N, `context` the cached positions of a request. `isl` and `osl` are the
    lengths of prompts and outputs where requests were served; `ratio` is T(N) / T(1) where the
    source says it. `head` names the file of the head that drafts; without one the model's own layer
    does.
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
        """Whether T is a mean over an output's tokens, between which others' prompts were read."""
        return bool(_MEAN.match(self.how) and self.isl and self.osl)

    @property
    def holds_draft(self) -> bool:
        """Whether T holds what a draft took."""
        return self.draft.startswith("yes")

    @property
    def series(self) -> tuple[object, ...]:
        """What rows have in common that differ in batch or N alone."""
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
        The file is not there, is too large or no CSV, or a row has a mistake: every one is named.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= SIZE_LIMIT else None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", remedy="Give a CSV file of rows") from error
    if data is None:
        raise ConfigError(
            f"{path} has more than {SIZE_LIMIT} bytes", remedy="Give a smaller CSV file"
        )
    try:
        rows, mistakes = _rows(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path} is no CSV text: {error}", remedy="Give rows in UTF-8, with a line of columns"
        ) from error
    if mistakes or not rows:
        said = "; ".join(mistakes[:12]) or "it holds no row"
        raise ConfigError(
            f"{path}: {said}", remedy=f"Columns are those of config/{FILE}; mend the rows"
        )
    return WholeFile(rows, sha256(data))


def _rows(text: str) -> tuple[list[WholeRow], list[str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    lacking = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
    if lacking:
        return [], [f"it lacks the columns {', '.join(lacking)}"]
    rows, mistakes = list[WholeRow](), list[str]()
    for row in reader:
        line = reader.line_num
        odd = list(_odd(row))
        mistakes += [f"line {line}: {each}" for each in odd]
        if not odd:
            rows.append(_row(line, row))
    return rows, mistakes


_REQUIRED = ("model", "gpu", "engine", "batch", "t_us")
_COUNTS = {"batch": 0, "positions": 1, "context": 1, "tp": 1, "ep": 1, "dp": 1}
"""Numbers from 1 on, and what an empty one is; 0 where there must be one."""
_LENGTHS = ("isl", "osl")
_RATIO, _DRAFT = "ratio_tN_t1", "draft_in_t"
_NAMES = ("model", "config", "head", "moe_backend", "attention_backend")
_WORDS = ("precision", "kv_dtype", "engine_version", "how", "source", "gpu", "engine")


def _odd(row: Mapping[str, str | None]) -> Iterator[str]:
    if None in row or None in row.values():
        yield "it has another number of fields than there are columns"
        return
    for name, pattern in (("model", _NAME), *((each, rf"({_NAME})?") for each in _NAMES[1:]),
                          *((each, _TEXT) for each in (*_WORDS, _DRAFT))):  # fmt: skip
        if not re.fullmatch(pattern, row.get(name) or ""):
            yield f"{name} {row.get(name)!r:.60} is no name"
    for name, empty in _COUNTS.items():
        if not _whole(row.get(name), empty):
            yield f"{name} {row.get(name)!r:.30} is no whole number from 1 to {_LARGEST}"
    for name in _LENGTHS:
        if row.get(name) and not _whole(row.get(name), 1):
            yield f"{name} {row.get(name)!r:.30} is no whole number from 1 to {_LARGEST}"
    for name in ("t_us", _RATIO):
        if (row.get(name) or name == "t_us") and not _positive(row.get(name)):
            yield f"{name} {row.get(name)!r:.30} is no positive number"


def _whole(text: str | None, empty: int) -> bool:
    if not text:
        return bool(empty)
    return bool(re.fullmatch(r"[0-9]{1,8}", text)) and 1 <= int(text) <= _LARGEST


def _positive(text: str | None) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text or "")) and float(text or 0) > 0


def _row(line: int, row: Mapping[str, str]) -> WholeRow:
    ratio = row.get(_RATIO)
    fields: dict[str, Any] = {
        **{name: int(row.get(name) or empty) for name, empty in _COUNTS.items()},
        **{name: int(row[name]) for name in _LENGTHS if row.get(name)},
        **{name: row.get(name) or "" for name in _NAMES + _WORDS},
    }
    return WholeRow(
        line=line,
        t_us=float(row["t_us"]),
        ratio=float(ratio) if ratio else None,
        draft=row.get(_DRAFT) or "",
        **fields,
    )
