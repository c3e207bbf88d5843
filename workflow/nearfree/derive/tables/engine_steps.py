"""Table `engine_steps`: the numbers of rows at which an engine's passes over weights change."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import polars as pl

from nearfree.backends.records import BACKENDS
from nearfree.config.files import Config
from nearfree.core.scopes import SOURCES
from nearfree.derive.tables.columns import CURVE, ORIGINS, SETTING_COLUMNS, count, text
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import digests, read_table, seals_digest, write_table
from nearfree.errors import NearfreeError
from nearfree.log.events import EngineLoaded, EngineMatrix, Event, RuleExtracted
from nearfree.log.evidence import Take, read_scope
from nearfree.log.names import Layout
from nearfree.sources.answers.ggml import Product, ProductQuery, Step
from nearfree.sources.answers.ggml_cpu import loaded_build
from nearfree.sources.extraction import Extraction
from nearfree.sources.record import extraction_of, recorded_take

ENGINE_STEPS = Table(
    name="engine_steps",
    row="a number of rows at which an engine's passes over matrices of one type change",
    key=("platform", "stream", "take", "plan8", "setting_key", "type", "parts", "rows"),
    formula="the rules of the engine's release, asked with the CPU features that it told of",
    code="nearfree.derive.tables.engine_steps",
    body={
        **CURVE,
        "type": text("ggml's name of how the matrices are stored"),
        "parts": text("which matrices: names of tensors without their layers"),
        "rows": count("rows of a product, b N; none where no rule says them", nullable=True),
        "n": count("the least N with so many rows", nullable=True),
        "passes_before": count("passes over the weights with one row less", nullable=True),
        "passes": count("passes over the weights with so many rows", nullable=True),
        "path": text("the way that the new passes take", nullable=True),
        "rule": text("the rule that says so", nullable=True),
        "file": text("the file of the engine's source that holds it", nullable=True),
        "lines": text("its lines there", nullable=True),
        "refusal": text("why no rule says the passes", nullable=True),
        "origin": text("where the setting's latencies come from", one_of=ORIGINS),
    },
)
_COPIED_COLUMNS = tuple(name for name in (*CURVE, "origin") if name not in SETTING_COLUMNS)
_TAKE_COLUMNS = ("stream", "take", "plan8")
_PACKAGES = {backend.name: backend.rules.package for backend in BACKENDS if backend.rules}
Row = dict[str, Any]


class _Release(NamedTuple):
    """The rules of a release, and the event id of each rule."""

    extraction: Extraction
    events: dict[str, str]


_Releases = dict[tuple[str, str], _Release | None]
_STEP_COLUMNS = ("rows", "n", "passes_before", "passes", "path", "rule", "file", "lines")
_Steps = tuple[tuple[int | str, ...], ...] | str
"""A matrix's steps by _STEP_COLUMNS, or the reason of a refusal."""


def write_engine_steps(layout: Layout, scope: str, config: Config) -> None:
    """Write the steps of all measured settings of engines in a scope, from the log's rules only."""
    del config  # a release's rules do not depend on the config
    latency = read_table(layout, scope, LATENCY, without=["from_ids"])
    settings = latency.filter(module="engine")
    takes = read_scope(layout, scope, only=(EngineLoaded,)) if not settings.is_empty() else []
    releases = {
        (engine, version): _release_rules(layout, engine, version)
        for engine, version in settings.select("backend", "release").unique().iter_rows()
    }
    rows = _rows(settings, takes, releases)
    known = {event.event_id for take in takes for event in take.events_of(EngineLoaded)}
    known |= {
        event_id for release in releases.values() if release for event_id in release.events.values()
    }
    made_from = digests(layout, scope, LATENCY) | seals_digest(layout, SOURCES)
    table = ENGINE_STEPS.build(ENGINE_STEPS.frame(rows), known)
    write_table(layout, scope, ENGINE_STEPS, table, made_from)


def _rows(settings: pl.DataFrame, takes: list[Take], releases: _Releases) -> Iterator[Row]:
    by_name = {(take.name.stream, take.name.take, take.name.plan8): take for take in takes}
    last_points = settings.sort("n").unique(
        [*_TAKE_COLUMNS, "setting_key"], keep="last", maintain_order=True
    )
    for row in last_points.to_dicts():
        take = by_name[tuple(row[name] for name in _TAKE_COLUMNS)]
        loaded = next(
            (event for event in take.events_of(EngineLoaded) if is_loaded_for(event.data, row)),
            None,
        )
        if loaded is None:
            continue
        release = releases[row["backend"], row["release"]]
        copied = {name: row[name] for name in (*_COPIED_COLUMNS, *SETTING_COLUMNS)}
        for step in _setting_steps(row, loaded, release):
            yield {**copied, **step}


def is_loaded_for(loaded: EngineLoaded, row: Row) -> bool:
    """Return whether a load event is that of a setting, by its fields."""
    return (loaded.engine, loaded.release, loaded.model, loaded.file_type, loaded.repack) == (
        *(row[name] for name in ("backend", "release", "model", "file_type")),
        bool(row["repack"]),
    )


def _release_rules(layout: Layout, engine: str, version: str) -> _Release | None:
    """Return the log's rules of an engine's release, None if it has none."""
    package = _PACKAGES.get(engine)
    take = recorded_take(layout, package, version) if package else None
    if take is None:
        return None
    events = {event.data.rule: event.event_id for event in take.events_of(RuleExtracted)}
    return _Release(extraction_of(take), events)


def _setting_steps(setting: Row, loaded: Event, release: _Release | None) -> Iterator[Row]:
    """Yield the steps of a setting's matrices; matrices of one type with equal steps share rows."""
    parts_by_steps: dict[tuple[str, _Steps], list[str]] = defaultdict(list)
    for matrix in loaded.data.matrices:
        parts_by_steps[matrix.type, _steps(setting, loaded.data, matrix, release)].append(
            matrix.part
        )
    for (weight_type, steps), parts in parts_by_steps.items():
        columns: Row = {"type": weight_type, "parts": ", ".join(dict.fromkeys(parts))}
        columns |= {**dict.fromkeys(_STEP_COLUMNS), "refusal": None, "from_ids": [loaded.event_id]}
        if isinstance(steps, str):
            yield columns | {"refusal": steps}
        elif release is not None:
            for step in steps:
                row = columns | dict(zip(_STEP_COLUMNS, step, strict=True))
                yield row | {"from_ids": [loaded.event_id, release.events[row["rule"]]]}


def _steps(
    row: Row, loaded: EngineLoaded, matrix: EngineMatrix, release: _Release | None
) -> _Steps:
    """Return the steps of a matrix up to the largest N, or the reason of a refusal."""
    if release is None:
        if row["backend"] not in _PACKAGES:
            return f"no rules of {row['backend']} are read: its kernels are in its libraries"
        return f"the log holds no rules of {row['backend']} {row['release']}"
    if matrix.routed:
        return "passes over experts are expectations that change at every N"
    try:
        rules = release.extraction.by_name()
        flags, repack = loaded_build(rules, loaded.system_info, repack=loaded.repack)
        query = ProductQuery(
            weight=matrix.type,
            columns=matrix.rows,
            depth=matrix.columns,
            flags=flags,
            threads=row["threads"],
            repack=repack,
        )
        product = Product(release.extraction, query)
        steps = product.steps(row["batch"] * row["n"])
        return tuple(_step_row(step, row["batch"]) for step in steps)
    except NearfreeError as error:
        return error.what


def _step_row(step: Step, batch: int) -> tuple[int | str, ...]:
    """Return the columns of a step, with the source of its rule."""
    quote = dict(step.places)[step.rule].quotes[-1]
    first, last = quote.lines
    lines = str(first) if first == last else f"{first}-{last}"
    n = -(-step.rows // batch)
    passes = int(step.before), int(step.after)
    return step.rows, n, *passes, step.path, step.rule, quote.file, lines
