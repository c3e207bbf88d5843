"""The report's section on real engines: what ran, T(N)/T(1), and the rules behind its steps."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
from msgspec import Struct

from nearfree.core.modules.engine import ENGINE
from nearfree.core.modules.model import MODEL
from nearfree.core.setting import FIELDS
from nearfree.log.events import EngineLoaded, Event
from nearfree.log.evidence import Take
from nearfree.show.page.sections import (
    Cell,
    Column,
    Grid,
    Row,
    backed,
    cell,
    grid,
    interval,
    n_max,
    predicted,
    words,
)
from nearfree.sources.answers.ggml_cpu import loaded_features
from nearfree.units import BYTES_PER_GB, MB_PER_GB

RATIOS = (2, 4, 8, 16)
"""The N whose T(N)/T(1) the section tells."""
_TAKE = ("stream", "take", "plan8")
_CURVE = (*_TAKE, "setting_key")
_BUILD = ("backend", "release", "file_type", "repack")
_OPTIONS = ("LLAMAFILE", "REPACK")
"""What a library tells of itself beside the CPU's features."""
_LIBRARY = "libggml-cpu"
"""What the names of libraries for one kind of CPU begin with."""


class EngineSection(Struct, frozen=True, kw_only=True):
    """The section's sentences and tables; `why` is empty where no forward of ours was measured."""

    ran: tuple[Cell, ...]
    answer: Grid
    steps: Grid
    ours: Grid
    why: str


def engine_section(
    frames: Mapping[str, pl.DataFrame], takes: Iterable[Take], epsilon: float
) -> EngineSection | None:
    """Return the section of a platform, None where it measured no engine.

    Parameters
    ----------
    frames
        A platform's tables by name: boundaries, latency, predictions and engine_steps among them.
    takes
        The platform's, with what engines had loaded.
    """
    at = frames["boundaries"].filter("newest", epsilon=epsilon)
    engines = at.filter(module=ENGINE.name)
    if engines.is_empty():
        return None
    latency = frames["latency"].filter("newest")
    own = beside(at.filter(module=MODEL.name), engines)
    named = {tuple(row[name] for name in _TAKE) for row in engines.to_dicts()}
    loaded = [
        event
        for take in takes
        if (take.name.stream, take.name.take, take.name.plan8) in named
        for event in take.events_of(EngineLoaded)
    ]
    predictions = frames["predictions"].filter(epsilon=epsilon, module=ENGINE.name)
    return EngineSection(
        ran=ran(loaded, engines),
        answer=answer(engines, latency, predictions),
        steps=steps(frames["engine_steps"].filter("newest")),
        ours=_ours(own, latency),
        why=why(own, engines, loaded),
    )


def ran(loaded: Sequence[Event], engines: pl.DataFrame) -> tuple[Cell, ...]:
    """Return a sentence for each build and file that ran: weights, threads and CPU features."""
    sentences = {}
    for event in loaded:
        data: EngineLoaded = event.data
        build = (data.engine, data.release, data.file_type, data.repack)
        mine = engines.filter(model=data.model, **dict(zip(_BUILD, build, strict=True)))
        threads = [str(many) for many in mine["threads"].unique().sort()]
        order = "free to be repacked" if data.repack else "in the file's own order"
        libraries = [name for name in data.library_sha256 if name.startswith(_LIBRARY)]
        chose = f"; it chose {', '.join(libraries)}" if libraries else ""
        text = (
            f"{data.engine} {data.release} ({data.package}) ran {data.model}, "
            f"{data.weights_bytes * MB_PER_GB / BYTES_PER_GB:.1f} MB of {data.file_type} weights "
            f"(SHA-256 {data.weights_sha256[:12]}), {order}, on {' and on '.join(threads)} "
            f"thread{'s' if threads != ['1'] else ''}{chose}, with {', '.join(features(data))}."
        )
        sentences[text] = cell(text, event.event_id)
    return tuple(sentences.values())


def features(loaded: EngineLoaded) -> list[str]:
    """Return the features of the CPU that a library says it has, else what it says of itself."""
    held = [name for name in loaded_features(loaded.system_info) if name not in _OPTIONS]
    told = [part for part in loaded.system_info.split(" | ") if ": " in part]
    return held or told or ["no features that it tells"]


def answer(engines: pl.DataFrame, latency: pl.DataFrame, predictions: pl.DataFrame) -> Grid:
    """Return N_max, T(1) and ratios of each setting, with each predictor that answers any.

    Parameters
    ----------
    engines
        Newest boundaries of engines at a tolerance.
    latency
        Newest rows of that table.
    predictions
        Rows of that table of engines at the same tolerance.
    """
    said = predictions.filter(pl.col("n_max").is_not_null() | pl.col("unbounded"))
    ways = said.select("predictor", "basis").unique().sort(pl.all()).rows()
    columns: dict[str, Column] = {
        "model": "model",
        "engine": lambda row: f"{row['backend']} {row['release']}",
        "weights": "file_type",
        "repacked": lambda row: {True: "yes", False: "no"}.get(row["repack"]),
        **_symbols("threads", "batch", "context"),
        **_measured(latency),
        **{
            ", ".join(words(part) for part in way if part): predicted(
                predictions, way, "setting_key"
            )
            for way in ways
        },
    }
    order = ("model", "backend", "release", "file_type", "repack", "threads", "context", "batch")
    return grid(engines.sort(*order, "setting_key").to_dicts(), columns)


def _symbols(*names: str) -> dict[str, Column]:
    return {FIELDS[name].symbol: name for name in names}


def _measured(latency: pl.DataFrame) -> dict[str, Column]:
    """Return the columns of what was measured: the boundary, T(1) and ratios."""
    points = {(*(row[name] for name in _CURVE), row["n"]): row for row in latency.to_dicts()}

    def at(n: int, row: Row) -> Row | None:
        return points.get((*(row[name] for name in _CURVE), n))

    def ratio(n: int, row: Row) -> Cell | None:
        point, one = at(n, row), at(1, row)
        if point is None or one is None or one["baseline"] != 1:
            return None
        return cell(f"{point['ratio']:.2f}", point["row_id"])

    def first(row: Row) -> Cell | None:
        point = at(1, row)
        return cell(f"{point['latency_us'] / 1000:.3f}", point["row_id"]) if point else None

    return {
        "N_max": backed(n_max),
        "interval": backed(interval),
        "verdict": "verdict",
        "T(1), ms": first,
        **{f"T({n})/T(1)": partial(ratio, n) for n in RATIOS},
    }


def steps(rows: pl.DataFrame) -> Grid:
    """Return the rules that change an engine's passes, each with all its numbers of rows.

    Parameters
    ----------
    rows
        Newest rows of the table `engine_steps`; settings that agree are told once.
    """
    place = ("type", "parts", "path", "rule", "file", "lines", "refusal")
    by_threads: dict[tuple[Any, ...], dict[int | None, Row]] = defaultdict(dict)
    for row in rows.sort("rows", "setting_key").to_dicts():
        key = tuple(row[name] for name in (*_BUILD, *place, "threads"))
        by_threads[key].setdefault(row["rows"], row)
    merged: dict[tuple[Any, ...], Row] = {}
    for key, at in by_threads.items():
        known = {**next(iter(at.values())), "at": tuple(at), "by": []}
        merged.setdefault((*key[:-1], *at), known)["by"].append(key[-1])
    columns: dict[str, Column] = {
        "engine": lambda row: f"{row['backend']} {row['release']}",
        "file": "file_type",
        "repacked": lambda row: {True: "yes", False: "no"}.get(row["repack"]),
        "threads": lambda row: ", ".join(map(str, sorted(row["by"]))),
        "weights": "type",
        "matrices": "parts",
        "from rows b N": backed(lambda row: row["rows"] or "-"),
        "passes there": backed(_passes),
        "and at": lambda row: spans(row["at"][1:]) or None,
        "way": "path",
        "rule": lambda row: row["rule"] or row["refusal"],
        "source": lambda row: row["file"] and f"{row['file']}:{row['lines']}",
    }
    ordered = sorted(
        merged.values(),
        key=lambda row: (
            *(str(row[name]) for name in (*_BUILD, "type", "parts")),
            row["rows"] or 0,
        ),
    )
    return grid(ordered, columns)


def _passes(row: Row) -> str:
    if row["rows"] is None:
        return "-"
    return f"{row['passes_before']} to {row['passes']}"


def spans(numbers: Sequence[int | None]) -> str:
    """Return rising numbers as text, those that follow each other as their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if number is None:
            continue
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def beside(models: pl.DataFrame, engines: pl.DataFrame) -> pl.DataFrame:
    """Return the boundaries of our own forwards that stand beside an engine's.

    Those of the same model, else of other ones; of these the engine's batch sizes, where there are.
    """
    for same in ("model", "batch"):
        found = models.filter(pl.col(same).is_in(engines[same].unique().implode()))
        if not found.is_empty():
            return found
    return models


def _ours(own: pl.DataFrame, latency: pl.DataFrame) -> Grid:
    columns: dict[str, Column] = {
        "model": "model",
        "run by": "backend",
        "weights": lambda row: row["weights"] or row["dtype"],
        **_symbols("routing", "top_k", "batch", "context"),
        **_measured(latency),
    }
    return grid(own.sort("model", "routing", "top_k", "context", "batch").to_dicts(), columns)


def why(own: pl.DataFrame, engines: pl.DataFrame, loaded: Sequence[Event]) -> str:
    """Return in a sentence why our own forwards differ from the engine's, empty without any."""
    if own.is_empty() or not loaded:
        return ""
    ours = own.select(pl.col("weights").fill_null(pl.col("dtype"))).to_series().unique().sort()
    types = sorted({matrix.type for event in loaded for matrix in event.data.matrices})
    same = set(own["model"]) <= set(engines["model"])
    subject = "Ours, of the same model," if same else "Ours, of other models,"
    return (
        f"{subject} keep weights in {' and '.join(ours)} and multiply with torch's kernels "
        f"({', '.join(own['backend'].unique().sort())}); the engine keeps them in "
        f"{' and '.join(types)} and multiplies with its own, so that the bytes that are read at "
        "N = 1, the work of widening them, and the rows of a pass over them differ."
    )
