"""The paper's printed values, as events with their table, row and column.

The paper prints no grid of N. The grids here are inferred from its tables, and marked so: powers of
two for the FFNs; 1 to 32 in powers of two, then steps of 16 up to 256, for attention.
"""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.routing import named_routing
from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import PUBLIC
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.errors import ConfigError, EvidenceError, NearfreeError
from nearfree.log.events import BoundaryPublished, Payload, RulePublished
from nearfree.log.evidence import Take, newest_takes, read_scope
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name

STREAM = "near_free_parallelism"
SOURCE = "near-free-parallelism"
FFN_GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ATTENTION_GRID = (1, 2, 4, 8, 16, *range(32, 257, 16))
_MOE_EXPERTS = 256
_BACKENDS = {
    "tab:sensitivity-attn-fa": "flash_attn_2",
    "tab:sensitivity-attn-fi": "flashinfer",
    "tab:sensitivity-moe-upper-vllm": "vllm_0_9_1",
    "tab:sensitivity-moe-lower-vllm": "vllm_0_9_1",
    "tab:sensitivity-moe-upper-sglang": "sglang_0_5_9",
    "tab:sensitivity-moe-lower-sglang": "sglang_0_5_9",
}


def import_plan(folder: Path) -> ImportPlan:
    """Return the plan with the reference files and their digests.

    Raises
    ------
    ConfigError
        A file cannot be read.
    """
    try:
        return ImportPlan(files={name: sha256((folder / name).read_bytes()) for name in _FILES})
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be read: {error.strerror}",
            remedy="Restore it from the repository",
        ) from error


def import_published(layout: Layout, folder: Path, *, take: int = 1) -> Seal:
    """Import the reference files in `folder` into the log, all of them or none.

    Raises
    ------
    ConfigError
        A file lacks a column or has an invalid value; the message names its line.
    """
    plan = import_plan(folder)
    events = [event for name, convert in _FILES.items() for event in _read(folder / name, convert)]
    return ensure_events(
        layout,
        take_name(PUBLIC, STREAM, take, plan),
        plan,
        "nearfree import published",
        lambda: events,
    )


def newest_take(layout: Layout) -> Take:
    """Return the newest take of the paper's values.

    Raises
    ------
    EvidenceError
        The log has none.
    """
    takes = newest_takes(read_scope(layout, PUBLIC, stream=STREAM), BoundaryPublished)
    if not takes:
        raise EvidenceError(
            "the paper's values are not in the log", remedy="Run `nearfree import published`"
        )
    return takes[0]


Row = dict[str, str]
_ROW_ERRORS = (KeyError, ValueError, TypeError, ArithmeticError, msgspec.MsgspecError)


def _read(path: Path, convert: Callable[[int, Row], list[Payload]]) -> list[Payload]:
    events: list[Payload] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file, strict=True), start=2):
                try:
                    events += _valid_events(convert(line, row), row)
                except (*_ROW_ERRORS, NearfreeError) as error:
                    raise ConfigError(
                        f"{path} line {line}: {_reason(error)}",
                        remedy="Correct that line; nothing was imported",
                    ) from error
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", remedy="Restore the file") from error
    return events


def _valid_events(events: list[Payload], row: Row) -> list[Payload]:
    """Return a row's events after checking them, and the row's number of fields."""
    if None in row:
        raise ValueError(f"too many fields: {row[None]}")  # type: ignore[index]
    for event in events:
        msgspec.json.decode(msgspec.json.encode(event), type=type(event))
        if isinstance(event, BoundaryPublished):
            check_setting(event.setting)
            if not 0 < event.n_max < math.inf:
                raise ValueError(f"n_max is {event.n_max}")
    return events


def _reason(error: Exception) -> str:
    return f"column {error} is missing" if isinstance(error, KeyError) else str(error)


def _sensitivity(line: int, row: Row) -> list[Payload]:
    del line
    table, value = row["table"], int(row["value"])
    setting, baseline = _sensitivity_setting(table, value)
    return [
        BoundaryPublished(
            source=SOURCE,
            table=table,
            row=f"{row['variable']}={value}",
            column=f"epsilon={row['epsilon']}",
            quantity="n_max",
            setting=setting,
            n_max=float(row["n_max"]),
            platform="h20",
            epsilon=float(row["epsilon"]),
            noisy=row["noisy"] == "1",
            baseline=baseline,
            grid=ATTENTION_GRID if setting.module == ATTENTION.name else FFN_GRID,
        )
    ]


def _sensitivity_setting(table: str, value: int) -> tuple[Setting, int]:
    """Return the setting of a row in a sensitivity table (paper, app. C), and its baseline N."""
    if table == "tab:sensitivity-dense":
        dense = Setting(
            module="dense_ffn",
            backend="torch",
            dtype="bfloat16",
            batch=value,
            d_model=4096,
            d_ff=9216,
        )
        return dense, 1
    backend = _BACKENDS.get(table)
    if backend is None:
        raise ValueError(f"unknown table {table!r}")
    if "attn" in table:
        attention = Setting(
            module=ATTENTION.name,
            backend=backend,
            dtype="bfloat16",
            context=value,
            heads=32,
            kv_heads=32,
            head_dim=128,
        )
        return attention, 1
    balanced = "upper" in table
    moe = Setting(
        module="moe_ffn",
        backend=backend,
        dtype="bfloat16",
        d_model=4096,
        d_ff=1024,
        experts=_MOE_EXPERTS,
        top_k=value,
        routing="balanced" if balanced else "skewed",
    )
    return moe, math.ceil(_MOE_EXPERTS / value) if balanced else 1


def _lookup(line: int, row: Row) -> list[Payload]:
    moe = row["model_type"] == "moe"
    setting = Setting(
        module="model",
        backend="any",
        dtype="bfloat16",
        batch=int(row["batch"]),
        experts=int(row["experts"]) if moe else None,
        top_k=int(row["top_k"]) if moe and row["top_k"] != "any" else None,
        d_ff=int(row["d_ff_expert"]) if moe else None,
        routing=named_routing(row["routing"]) if moe else None,
    )
    quantities: tuple[Literal["idle_compute", "principle"], ...] = ("idle_compute", "principle")
    return [
        BoundaryPublished(
            source=SOURCE,
            table="tab:practical_lookup",
            row=str(line - 1),
            column=quantity,
            quantity=quantity,
            setting=setting,
            n_max=float(row[quantity]),
            platform=row["platform"],
            grid_inferred=False,
            m_attn=int(row["m_attn"]),
        )
        for quantity in quantities
    ]


def _rule(line: int, row: Row) -> list[Payload]:
    return [
        RulePublished(
            source=SOURCE,
            table=row["table"],
            row=line - 1,
            package=row["package"],
            versions=row["versions"],
            path=row["path"],
            condition=row["condition"],
            value=int(row["value"]),
        )
    ]


_FILES = {"sensitivity.csv": _sensitivity, "lookup.csv": _lookup, "rules.csv": _rule}
"""The reference files, and the functions that convert their lines to events."""
