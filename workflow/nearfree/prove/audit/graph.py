"""The provenance graph of a number: rows, events, runs, rules and config values as nodes."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from nearfree.config.files import Config
from nearfree.decoders.model_file import find_model_file
from nearfree.derive.jobs import TABLES
from nearfree.derive.outlook.about import MODELS, model_fields, model_id
from nearfree.derive.tables.platforms import config_id
from nearfree.derive.tables.schema import Formula
from nearfree.errors import EvidenceError
from nearfree.log.events import Event, RunFinished
from nearfree.log.evidence import RETRACTED, Take, read_take, retractions, stored_line
from nearfree.log.line import sha256
from nearfree.log.names import Layout, TakeName, parse_take
from nearfree.log.reader import read_bytes
from nearfree.prove.audit.table_index import ROW_ID, TableIndex, TableRow, rules_behind
from nearfree.show.figures.listing import Figure, read_figures

_TAKE = re.compile(r"[a-z0-9_]+/[a-z0-9_]+/[1-9][0-9]*-[0-9a-f]{8}")
_CONFIG = "config/"


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of a number.

    `kind` is row, event, run, config or figure; `values` holds its fields by name; `place` is its
    file, with lines; `made_from` holds the ids of its own inputs.
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
    """Traces the nodes of a results root.

    Parameters
    ----------
    config
        The config with the datasheets and models that rows name.
    """

    def __init__(self, tables: TableIndex, config: Config) -> None:
        self.tables, self.config = tables, config
        self.layout: Layout = tables.layout

    def trace(self, root: str, *, root_node: Node | None = None) -> Graph:
        """Return the graph below an id.

        Parameters
        ----------
        root_node
            The root node, if it is neither a row nor an event.

        Raises
        ------
        EvidenceError
            An id cannot be resolved.
        """
        nodes: dict[str, Node] = {} if root_node is None else {root: root_node}
        pending = [root] if root_node is None else list(root_node.made_from)
        while pending:
            for node in self._nodes(pending):
                nodes[node.id] = node
            parents = (parent for name in pending for parent in nodes[name].made_from)
            pending = [name for name in dict.fromkeys(parents) if name not in nodes]
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
                raise EvidenceError(
                    f"{name!r} is no id of a row, an event, a take or a config entry",
                    remedy="Name a row or an event",
                )

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

    @cache  # noqa: B019 (a tracer lives as long as a command)
    def _take(self, name: TakeName) -> tuple[Take, dict[str, Event]]:
        if not self.layout.seal(name).exists():
            raise EvidenceError(
                f"the take {name} is gone from the log", remedy="Restore it from a copy"
            )
        take = read_take(self.layout, name)
        return take, {event.event_id: event for event in take.events}

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
            values={"time": event.time, **self._retraction(take, name), **self._stored(event)},
            place=f"events/{segment}.jsonl:{line}",
            made_from=(str(take), *getattr(event.data, "made_from", ())),
        )

    @cache  # noqa: B019 (a tracer lives as long as a command)
    def _retractions(self, scope: str) -> dict[str, str]:
        return retractions(self.layout, self.layout.takes(scope, RETRACTED))

    def _retraction(self, take: TakeName, name: str) -> dict[str, str]:
        """Return the reason why an event or its take was retracted; empty if it was not."""
        reasons = self._retractions(take.scope)
        matches = [reasons[target] for target in (name, str(take)) if target in reasons]
        return {"retracted": matches[0]} if matches else {}

    def _stored(self, event: Event) -> dict[str, Any]:
        """Return an event's data as stored on disk, in the version that wrote it."""
        if event.type_name == event.data.type_name:
            data: dict[str, Any] = msgspec.to_builtins(event.data)
        else:
            data = msgspec.json.decode(stored_line(self.layout, event))["data"]
        return data

    def _run(self, name: str) -> Node:
        take, _ = self._take(parse_take(name))
        seal = self.layout.seal(take.name)
        started = self._stored(take.started)
        ended: list[Event] = take.events_of(RunFinished)
        return Node(
            id=name,
            kind="run",
            title="one sealed take, and the run that sealed it",
            values={
                "time": take.started.time,
                **self._retraction(take.name, name),
                **{k: v for k, v in started.items() if v is not None},
                "wall_s": ended[-1].data.wall_s if ended else None,
                "outcome": take.seal.outcome,
                "segments": msgspec.to_builtins(take.seal.segments),
                "seal_sha256": sha256(read_bytes(seal)),
            },
            place=f"events/{name}.seal.json",
        )

    def _config(self, name: str) -> Node:
        """Return the node of a datasheet or a model, given its id, which ends with its digest."""
        entry = name.partition("@")[0]
        sheets = {config_id(k, sheet): (k, sheet) for k, sheet in self.config.platforms.items()}
        if name in sheets:
            platform, sheet = sheets[name]
            title, values = f"the datasheet of {platform}", msgspec.to_builtins(sheet)
        else:
            model = entry.removeprefix(MODELS)
            file = find_model_file(self.config.folder, model)
            if not name.startswith(MODELS) or model_id(file) != name:
                raise EvidenceError(
                    f"the config no longer holds {name}", remedy="Run the workflow again"
                )
            title, values = f"the model {model}", dict(_model_values(model_fields(file)))
            entry = f"config/models/{model}.json"
        return Node(id=name, kind="config", title=title, values=values, place=entry)


def _model_values(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a model's values by name: decoder fields, formats, kinds of weights, and the rest."""
    fields = dict(described)
    yield from (fields.pop("decoder") or {}).items()
    for kind, formats in (fields.pop("precision") or {}).items():
        yield f"precision.{kind}", formats
    counts = Counter[str]()
    for weights in fields.pop("weights"):
        name = f"weights.{weights.pop('kind')}"
        counts[name] += 1
        yield f"{name}.{counts[name]}" if counts[name] > 1 else name, weights
    yield from fields.items()


def trace_query(layout: Layout, config: Config, text: str) -> Graph:
    """Return the provenance graph of a row, figure, event or take.

    Parameters
    ----------
    text
        A row's id; `TABLE:column=value,...`; a figure as SCOPE/NAME, or its name if only one scope
        has it; an event as SEGMENT#LINE; or a take.

    Raises
    ------
    EvidenceError
        The text names nothing, or several rows or figures, which the message lists.
    """
    index = TableIndex(layout)
    tracer = Tracer(index, config)
    is_id = ROW_ID.fullmatch(text) or "#" in text or text.count("/") == 2
    if ":" in text and ("=" in text or not is_id):
        return tracer.trace(index.by_key(text).row["row_id"])
    if is_id:
        return tracer.trace(text)
    name, figure = _figure(layout, text)
    node = Node(
        id=name,
        kind="figure",
        title=figure.caption,
        values={"marks": len(figure.rows)},
        place=f"figures/{name}.html",
        made_from=figure.rows,
    )
    return tracer.trace(name, root_node=node)


def listed_figures(layout: Layout) -> Iterator[tuple[str, Figure]]:
    """Yield every drawn figure with its name, SCOPE/NAME."""
    for folder in sorted((layout.root / "figures").glob("*/")):
        for figure in read_figures(folder).figures:
            yield f"{folder.name}/{figure.name}", figure


def _figure(layout: Layout, text: str) -> tuple[str, Figure]:
    figures = list(listed_figures(layout))
    matching = [entry for entry in figures if text in (entry[0], entry[1].name)]
    if len(matching) == 1:
        return matching[0]
    if not matching and text in TABLES:
        raise EvidenceError(
            f"{text} is a table, and no row of it is named",
            remedy=f"Name a row by columns, {text}:column=value,... (its key is "
            f"{', '.join(TABLES[text].key)}), or by its id, {text}:DIGEST",
        )
    if matching:
        names = ", ".join(name for name, _ in matching[:20])
        what = f"{len(matching)} figures are named {text!r}: {names}"
    else:
        known = {*TABLES, *(figure.name for _, figure in figures)}
        containing = [name for name, _ in figures if text in name]
        near = ", ".join(containing[:20] or get_close_matches(text[:80], sorted(known), n=3))
        what = f"no table or figure is named {text!r:.80}{'; near it: ' if near else ''}{near}"
    raise EvidenceError(
        what,
        remedy="Name a row (TABLE:DIGEST), TABLE:column=value,..., SCOPE/FIGURE or SEGMENT#LINE",
    )
