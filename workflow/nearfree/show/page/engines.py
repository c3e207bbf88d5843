"""The report's section on real engines: builds, N_max, T(N)/T(1), and the rules of its steps."""

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
from nearfree.units import BYTES_PER_GB, MB_PER_GB, US_PER_MS

RATIOS = (2, 4, 8, 16)
"""The N whose T(N)/T(1) the section shows."""
_TAKE = ("stream", "take", "plan8")
_CURVE = (*_TAKE, "setting_key")
_BUILD = ("backend", "release", "file_type", "repack")
_OPTIONS = ("LLAMAFILE", "REPACK")
"""Build options that a library lists among the CPU features."""
_LIBRARY = "libggml-cpu"
"""Prefix of the libraries that are built for one kind of CPU."""


class EngineSection(Struct, frozen=True, kw_only=True):
    """The section's sentences and tables."""

    builds: tuple[Cell, ...]
    """A sentence per build and file that ran."""
    boundaries: Grid
    steps: Grid
    own_forwards: Grid
    """The project's own forwards of comparable models."""
    difference: str
    """Why these differ from the engine's; empty where none was measured."""


def engine_section(
    frames: Mapping[str, pl.DataFrame], takes: Iterable[Take], epsilon: float
) -> EngineSection | None:
    """Return the section of a platform, None where it measured no engine.

    Parameters
    ----------
    frames
        A platform's tables by name: boundaries, latency, predictions and engine_steps among them.
    takes
        The platform's takes, whose events EngineLoaded are read.
    """
    boundaries = frames["boundaries"].filter("newest", epsilon=epsilon)
    engines = boundaries.filter(module=ENGINE.name)
    if engines.is_empty():
        return None
    latency = frames["latency"].filter("newest")
    own = comparable_models(boundaries.filter(module=MODEL.name), engines)
    take_names = {tuple(row[name] for name in _TAKE) for row in engines.to_dicts()}
    loaded = [
        event
        for take in takes
        if (take.name.stream, take.name.take, take.name.plan8) in take_names
        for event in take.events_of(EngineLoaded)
    ]
    predictions = frames["predictions"].filter(epsilon=epsilon, module=ENGINE.name)
    return EngineSection(
        builds=build_sentences(loaded, engines),
        boundaries=engine_boundaries(engines, latency, predictions),
        steps=steps(frames["engine_steps"].filter("newest")),
        own_forwards=_own_forwards(own, latency),
        difference=difference_sentence(own, engines, loaded),
    )


def build_sentences(loaded: Sequence[Event], engines: pl.DataFrame) -> tuple[Cell, ...]:
    """Return a sentence per build and file that ran: weights, threads and CPU features."""
    sentences = {}
    for event in loaded:
        data: EngineLoaded = event.data
        build = (data.engine, data.release, data.file_type, data.repack)
        settings = engines.filter(model=data.model, **dict(zip(_BUILD, build, strict=True)))
        threads = [str(count) for count in settings["threads"].unique().sort()]
        layout = "repacked where the release does" if data.repack else "in the file's layout"
        libraries = [name for name in data.library_sha256 if name.startswith(_LIBRARY)]
        library_text = f"; it loaded {', '.join(libraries)}" if libraries else ""
        text = (
            f"{data.engine} {data.release} ({data.package}) ran {data.model}, "
            f"{data.weights_bytes * MB_PER_GB / BYTES_PER_GB:.1f} MB of {data.file_type} weights "
            f"(SHA-256 {data.weights_sha256[:12]}), {layout}, on {' and on '.join(threads)} "
            f"thread{'s' if threads != ['1'] else ''}{library_text}, "
            f"with {', '.join(features(data))}."
        )
        sentences[text] = cell(text, event.event_id)
    return tuple(sentences.values())


def features(loaded: EngineLoaded) -> list[str]:
    """Return the CPU features that a library reports, else its other reported properties."""
    known = [name for name in loaded_features(loaded.system_info) if name not in _OPTIONS]
    numbers = [part for part in loaded.system_info.split(" | ") if ": " in part]
    return known or numbers or ["no reported features"]


def engine_boundaries(
    engines: pl.DataFrame, latency: pl.DataFrame, predictions: pl.DataFrame
) -> Grid:
    """Return N_max, T(1), ratios, and the predictions of each predictor that answers any setting.

    Parameters
    ----------
    engines
        Newest boundaries of engines at a tolerance.
    latency
        Newest rows of the table `latency`.
    predictions
        Predictions for engines at the same tolerance.
    """
    answered = predictions.filter(pl.col("n_max").is_not_null() | pl.col("unbounded"))
    predictors = answered.select("predictor", "basis").unique().sort(pl.all()).rows()
    columns: dict[str, Column] = {
        "model": "model",
        "engine": lambda row: f"{row['backend']} {row['release']}",
        "weights": "file_type",
        "repacked": lambda row: {True: "yes", False: "no"}.get(row["repack"]),
        **({} if engines["kv_dtype"].is_null().all() else {"cache": _cache}),
        **_symbols("threads", "batch", "context"),
        **_measured(latency),
        **{
            ", ".join(words(part) for part in predictor if part): predicted(
                predictions, predictor, "setting_key"
            )
            for predictor in predictors
        },
    }
    order = ("model", "backend", "release", "file_type", "repack", "threads", "context", "batch")
    return grid(engines.sort(*order, "setting_key").to_dicts(), columns)


def _cache(row: Row) -> str:
    return row["kv_dtype"] or "the engine's own"


def _symbols(*names: str) -> dict[str, Column]:
    return {FIELDS[name].symbol: name for name in names}


def _measured(latency: pl.DataFrame) -> dict[str, Column]:
    """Return the columns of measured values: the boundary, T(1) and ratios."""
    points = {(*(row[name] for name in _CURVE), row["n"]): row for row in latency.to_dicts()}

    def point(n: int, row: Row) -> Row | None:
        return points.get((*(row[name] for name in _CURVE), n))

    def ratio(n: int, row: Row) -> Cell | None:
        measured, single = point(n, row), point(1, row)
        if measured is None or single is None or single["baseline"] != 1:
            return None
        return cell(f"{measured['ratio']:.2f}", measured["row_id"])

    def first(row: Row) -> Cell | None:
        single = point(1, row)
        if single is None:
            return None
        return cell(f"{single['latency_us'] / US_PER_MS:.3f}", single["row_id"])

    return {
        "N_max": backed(n_max),
        "interval": backed(interval),
        "verdict": "verdict",
        "T(1), ms": first,
        **{f"T({n})/T(1)": partial(ratio, n) for n in RATIOS},
    }


def steps(rows: pl.DataFrame) -> Grid:
    """Return the rules that change the passes over an engine's weights, with the numbers of rows.

    Parameters
    ----------
    rows
        Newest rows of the table `engine_steps`; equal rows of several settings are merged.
    """
    rule_fields = ("type", "parts", "path", "rule", "file", "lines", "refusal")
    by_threads: dict[tuple[Any, ...], dict[int | None, Row]] = defaultdict(dict)
    for row in rows.sort("rows", "setting_key").to_dicts():
        key = tuple(row[name] for name in (*_BUILD, *rule_fields, "threads"))
        by_threads[key].setdefault(row["rows"], row)
    merged: dict[tuple[Any, ...], Row] = {}
    for key, rows_at in by_threads.items():
        merged_row = {**next(iter(rows_at.values())), "at": tuple(rows_at), "by": []}
        merged.setdefault((*key[:-1], *rows_at), merged_row)["by"].append(key[-1])
    columns: dict[str, Column] = {
        "engine": lambda row: f"{row['backend']} {row['release']}",
        "file": "file_type",
        "repacked": lambda row: {True: "yes", False: "no"}.get(row["repack"]),
        "threads": lambda row: ", ".join(map(str, sorted(row["by"]))),
        "weights": "type",
        "matrices": "parts",
        "from rows b N": backed(lambda row: row["rows"] or "-"),
        "passes there": backed(
            lambda row: "-" if row["rows"] is None else f"{row['passes_before']} to {row['passes']}"
        ),
        "and at": lambda row: number_runs(row["at"][1:]) or None,
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


def number_runs(numbers: Sequence[int | None]) -> str:
    """Return rising numbers as text, with runs of consecutive numbers as ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if number is None:
            continue
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def comparable_models(models: pl.DataFrame, engines: pl.DataFrame) -> pl.DataFrame:
    """Return the boundaries of the project's own forwards to compare with an engine's.

    Those of the same model, else those at the engine's batch sizes, else all.
    """
    for field in ("model", "batch"):
        matching = models.filter(pl.col(field).is_in(engines[field].unique().implode()))
        if not matching.is_empty():
            return matching
    return models


def _own_forwards(own: pl.DataFrame, latency: pl.DataFrame) -> Grid:
    columns: dict[str, Column] = {
        "model": "model",
        "run by": "backend",
        "weights": lambda row: row["weights"] or row["dtype"],
        **_symbols("routing", "top_k", "batch", "context"),
        **_measured(latency),
    }
    return grid(own.sort("model", "routing", "top_k", "context", "batch").to_dicts(), columns)


def difference_sentence(own: pl.DataFrame, engines: pl.DataFrame, loaded: Sequence[Event]) -> str:
    """Return a sentence on why the project's own forwards differ from the engine's."""
    if own.is_empty() or not loaded:
        return ""
    formats = own.select(pl.col("weights").fill_null(pl.col("dtype"))).to_series().unique().sort()
    types = sorted({matrix.type for event in loaded for matrix in event.data.matrices})
    same_model = set(own["model"]) <= set(engines["model"])
    subject = "Own forwards of the same model" if same_model else "Own forwards of other models"
    return (
        f"{subject} keep weights in {' and '.join(formats)} and multiply with torch's kernels "
        f"({', '.join(own['backend'].unique().sort())}); the engine keeps them in "
        f"{' and '.join(types)} and multiplies with its own kernels. So the bytes that are read at "
        "N = 1, the work to widen them, and the rows per pass over them differ."
    )
