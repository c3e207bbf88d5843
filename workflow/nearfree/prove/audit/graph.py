"""The provenance graph of a number: rows, events, runs, rules and config values as nodes."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.decoders.model_file import find_model_file
from nearfree.derive.jobs import TABLES
from nearfree.derive.outlook.about import MODELS, described, model_id
from nearfree.derive.tables.platforms import config_id
from nearfree.derive.tables.schema import Formula
from nearfree.errors import EvidenceError
from nearfree.log.events import Event, ObservationRetracted, RunFinished
from nearfree.log.evidence import RETRACTED, Take, read_take, stored_line
from nearfree.log.line import sha256
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import read_bytes
from nearfree.prove.audit.table_index import ROW_ID, TableIndex, TableRow, rules_behind
from nearfree.show.figures.listing import Figure, read_figures

_TAKE = re.compile(r"[a-z0-9_]+/[a-z0-9_]+/[1-9][0-9]*-[0-9a-f]{8}")
_CONFIG = "config/"


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of a number.

    `kind` is row, event, run, config or figure; `values` its fields by name; `place` its file, with
    lines; `made_from` the ids of its own inputs.
    """

    id: str
    kind: str
    title: str
    values: dict[str, Any]
    formula: Formula | None = None
    beside: Formula | None = None
    place: str = ""
    made_from: tuple[str, ...] = ()
    inputs: dict[str, str] = {}
    """For a row: its table's inputs, by name and digest."""


class Graph(Struct, frozen=True):
    """The nodes behind a root node, by id."""

    root: str
    nodes: dict[str, Node]


class Tracer:
    """Finds the nodes of a results root.

    Parameters
    ----------
    config
        The datasheets and models that rows name.
    """

    def __init__(self, tables: TableIndex, config: Config) -> None:
        self.tables, self.config = tables, config
        self.layout: Layout = tables.layout
        self._takes: dict[str, tuple[Take, dict[str, Event]]] = {}
        self._reasons: dict[str, dict[str, str]] = {}

    def trace(self, root: str, *, first: Node | None = None) -> Graph:
        """Return the graph below an id.

        Parameters
        ----------
        first
            The root node, where it is neither a row nor an event.

        Raises
        ------
        EvidenceError
            An id cannot be resolved.
        """
        nodes: dict[str, Node] = {} if first is None else {root: first}
        pending = [root] if first is None else list(first.made_from)
        while pending:
            for node in self._nodes(pending):
                nodes[node.id] = node
            below = (parent for name in pending for parent in nodes[name].made_from)
            pending = [name for name in dict.fromkeys(below) if name not in nodes]
        return Graph(root, nodes)

    def _nodes(self, identifiers: Sequence[str]) -> Iterable[Node]:
        rows = self.tables.rows([name for name in identifiers if ROW_ID.fullmatch(name)])
        for name in identifiers:
            if name in rows:
                yield self._row(rows[name])
            elif name.startswith(_CONFIG):
                yield self._config(name)
            elif "#" in name:
                yield self._event(name)
            elif _TAKE.fullmatch(name):
                yield self._run(name)
            else:
                raise EvidenceError(f"{name!r} names nothing", remedy="Name a row or an event")

    def _row(self, located: TableRow) -> Node:
        row, table = located.row, located.table
        values = {k: v for k, v in row.items() if k not in ("row_id", "from_ids") and v is not None}
        return Node(
            id=row["row_id"],
            kind="row",
            title=table.row,
            values=values,
            formula=table.formula_of(row),
            beside=table.beside,
            place=f"tables/{located.scope}/{table.name}.parquet",
            made_from=(*row["from_ids"], *rules_behind(row, self.tables)),
            inputs=self.tables.inputs(located.scope, table.name),
        )

    def _take(self, name: TakeName) -> tuple[Take, dict[str, Event]]:
        if str(name) not in self._takes:
            if not self.layout.seal(name).exists():
                raise EvidenceError(
                    f"the take {name} is gone from the log", remedy="Restore it from a copy"
                )
            take = read_take(self.layout, name)
            self._takes[str(name)] = take, {event.event_id: event for event in take.events}
        return self._takes[str(name)]

    def _event(self, name: str) -> Node:
        segment, _, line = name.partition("#")
        take = parse_take(segment.rpartition(".")[0])
        event = self._take(take)[1].get(name)
        if event is None:
            raise EvidenceError(
                f"there is no event {name}", remedy=f"`nearfree log show {take}` lists its events"
            )
        return Node(
            id=name,
            kind="event",
            title=event.type_name,
            values={"time": event.time, **self._retracted(take, name), **self._stored(event)},
            place=f"events/{segment}.jsonl:{line}",
            made_from=(str(take), *getattr(event.data, "made_from", ())),
        )

    def _retracted(self, take: TakeName, name: str) -> dict[str, str]:
        """Return why an event or a take must not be used any more, nothing where it may be."""
        if take.scope not in self._reasons:
            kept = (
                read_take(self.layout, each) for each in self.layout.takes(take.scope, RETRACTED)
            )
            events = [event.data for of in kept for event in of.of(ObservationRetracted)]
            self._reasons[take.scope] = {each.target: each.reason for each in events}
        reasons = self._reasons[take.scope]
        found = [reasons[each] for each in (name, str(take)) if each in reasons]
        return {"retracted": found[0]} if found else {}

    def _stored(self, event: Event) -> dict[str, Any]:
        """Return an event's data as it lies on disk, in whichever version."""
        if event.type_name == event.data.type_name:
            data: dict[str, Any] = msgspec.to_builtins(event.data)
        else:
            data = msgspec.json.decode(stored_line(self.layout, event))["data"]
        return data

    def _run(self, name: str) -> Node:
        take, _ = self._take(parse_take(name))
        seal = self.layout.seal(take.name)
        started = self._stored(take.started)
        ended: list[Event] = take.of(RunFinished)
        return Node(
            id=name,
            kind="run",
            title="one sealed take, and the run that sealed it",
            values={
                "time": take.started.time,
                **self._retracted(take.name, name),
                **{k: v for k, v in started.items() if v is not None},
                "wall_s": ended[-1].data.wall_s if ended else None,
                "outcome": take.seal.outcome,
                "segments": msgspec.to_builtins(take.seal.segments),
                "seal_sha256": sha256(read_bytes(seal)),
            },
            place=f"events/{name}.seal.json",
        )

    def _config(self, name: str) -> Node:
        """Return the node of a datasheet or a model, whose id ends with its digest."""
        place = name.partition("@")[0]
        known = {config_id(k, sheet): (k, sheet) for k, sheet in self.config.platforms.items()}
        if name in known:
            title, values = (
                f"the datasheet of {known[name][0]}",
                msgspec.to_builtins(known[name][1]),
            )
        else:
            model = place.removeprefix(MODELS)
            file = find_model_file(self.config.folder, model)
            if not name.startswith(MODELS) or model_id(file) != name:
                raise EvidenceError(
                    f"the config no longer holds {name}", remedy="Run the workflow again"
                )
            title, values = f"the model {model}", dict(_told(described(file)))
            place = f"config/models/{model}.json"
        return Node(id=name, kind="config", title=title, values=values, place=place)


def _told(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is read of a model, each field of its forward, each format and kind of weights."""
    rest = dict(described)
    yield from (rest.pop("decoder") or {}).items()
    for kind, formats in (rest.pop("precision") or {}).items():
        yield f"precision.{kind}", formats
    named = Counter[str]()
    for each in rest.pop("weights"):
        name = f"weights.{each.pop('kind')}"
        named[name] += 1
        yield f"{name}.{named[name]}" if named[name] > 1 else name, each
    yield from rest.items()


def trace_query(layout: Layout, config: Config, text: str) -> Graph:
    """Return the provenance graph of a row, figure, event or take.

    Parameters
    ----------
    text
        A row's id; `TABLE:column=value,...`; a figure as SCOPE/NAME, or its name where only one
        scope has it; an event as SEGMENT#LINE; or a take.

    Raises
    ------
    EvidenceError
        The text names nothing, or several things, which the message lists.
    """
    index = TableIndex(layout)
    tracer = Tracer(index, config)
    table, _, columns = text.partition(":")
    if table in TABLES and "=" in columns:
        return tracer.trace(index.by_key(text).row["row_id"])
    if ROW_ID.fullmatch(text) or "#" in text or text.count("/") == 2:
        return tracer.trace(text)
    if ":" in text:
        return tracer.trace(index.by_key(text).row["row_id"])
    name, figure = _figure(layout, text)
    node = Node(
        id=name,
        kind="figure",
        title=figure.caption,
        values={"marks": len(figure.rows)},
        place=f"figures/{name}.html",
        made_from=figure.rows,
    )
    return tracer.trace(name, first=node)


def listed_figures(layout: Layout) -> Iterator[tuple[str, Figure]]:
    """Yield every drawn figure, as SCOPE/NAME."""
    for folder in sorted((layout.root / "figures").glob("*/")):
        for figure in read_figures(folder).figures:
            yield f"{folder.name}/{figure.name}", figure


def _figure(layout: Layout, text: str) -> tuple[str, Figure]:
    figures = list(listed_figures(layout))
    matching = [entry for entry in figures if text in (entry[0], entry[1].name)]
    if len(matching) == 1:
        return matching[0]
    close = [name for name, _ in matching] or [name for name, _ in figures if text in name]
    raise EvidenceError(
        f"{len(matching)} figures are named {text!r}{': ' if close else ''}{', '.join(close[:20])}",
        remedy="Name a row (TABLE:DIGEST), TABLE:column=value,..., SCOPE/FIGURE or SEGMENT#LINE",
    )
