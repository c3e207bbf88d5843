"""A provenance graph as text, as JSON, or as a Mermaid chart."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from nearfree.core.label import AXES, label
from nearfree.core.setting import STORED
from nearfree.errors import printable_json
from nearfree.prove.audit.graph import Graph, Node

_MAX_ROWS = 3
_MAX_LENGTH = 160
_IDENTIFYING = (
    *("platform", "origin", "model", "module", "backend", "package", "version", "versions"),
    *("release", "file_type", "repack", "dtype", *STORED, *AXES),
    *("n", "epsilon", "predictor", "basis"),
    *("condition", "place", "lines", "claim"),
)
_RESULTS = (
    *("latency_us", "ratio", "n_max", "n_low", "n_high", "predicted", "value", "hit", "verdict"),
    *("balance_flop_per_byte", "peak_tflops", "bandwidth_gb_s", "flop_executed", "block_size_m"),
    *("limiting_term", "evidence", "refusal", "share", "quote", "why"),
    *("fits", "peak_bytes", "capacity_bytes"),
)
_RUN = (
    *("command", "commit", "dirty", "code_digest", "plan_digest", "python", "versions"),
    *("host_label", "device", "driver", "clocks_mhz", "power_cap_w", "scheduler"),
    *("lock_sha256", "environment_sha256", "time", "wall_s", "outcome", "seal_sha256"),
)


def as_json(graph: Graph, differs: Sequence[str] | None = None) -> str:
    """Return all nodes with all their values as JSON.

    Parameters
    ----------
    differs
        Cells that differ from the recomputed row; None if it was not recomputed.
    """
    nodes = msgspec.to_builtins(graph.nodes)
    for name, node in graph.nodes.items():
        if node.kind == "row":
            nodes[name]["recompute"] = f"nearfree audit {name}"
    raw = msgspec.json.encode({"root": graph.root, "differs": differs, "nodes": nodes})
    return printable_json(msgspec.json.format(raw, indent=2).decode())


def as_text(graph: Graph) -> Iterator[str]:
    """Yield lines: the number, the tree of its inputs, then runs and config values."""
    root = graph.nodes[graph.root]
    yield f"{root.id}  {root.title}"
    yield from _value_lines(root)
    for formula in filter(None, (root.formula, root.beside)):
        paper = f"  (paper {formula.paper})" if formula.paper else ""
        yield f"  formula   {formula.text}{paper}"
        yield f"  computed  {formula.code}"
    if root.place:
        yield f"  lies in   {root.place}"
    for name, digest in root.inputs.items():
        yield f"  rests on  {name} {digest[:12]}"
    yield from _input_lines(graph, root, "", set())
    further = [node for node in graph.nodes.values() if node is not root]
    for node in (node for node in further if node.kind == "run"):
        yield ""
        yield f"run {node.id}  {node.place}"
        yield from _value_lines(node, _RUN)
    for node in (node for node in further if node.kind == "config"):
        yield ""
        yield f"config {node.id}"
        yield from _value_lines(node)


def _value_lines(node: Node, names: Sequence[str] = ()) -> Iterator[str]:
    for name, value in node.values.items():
        if value not in (None, "") and (not names or name in names):
            yield f"  {name:<24} {plain(value)}"


def _input_lines(graph: Graph, node: Node, indent: str, shown: set[str]) -> Iterator[str]:
    """Yield a node's inputs as a tree; of a table's many rows the deciding ones, and a count."""
    parts = [graph.nodes[name] for name in node.made_from]
    rows = [part for part in parts if part.kind == "row"]
    for _, group in groupby(rows, key=lambda part: part.id.partition(":")[0]):
        all_rows = list(group)
        chosen = _deciding_rows(node, all_rows)
        for part in chosen:
            yield f"{indent}+ {_line(part)}"
            if part.id not in shown:
                shown.add(part.id)
                yield from _input_lines(graph, part, f"{indent}| ", shown)
        if len(all_rows) > len(chosen):
            more = len(all_rows) - len(chosen)
            yield f"{indent}+ ... and {more} more rows like these (--format json has all)"
    yield from _event_lines((part for part in parts if part.kind == "event"), indent)


def _deciding_rows(node: Node, rows: list[Node]) -> list[Node]:
    """Return the deciding rows: for a boundary those at its baseline, N_max and the next N."""
    if len(rows) <= _MAX_ROWS:
        return rows
    deciding = {node.values.get(name) for name in ("baseline", "n_max", "next_n")} - {None}
    deciding_rows = [row for row in rows if row.values.get("n") in deciding]
    return deciding_rows or rows[:_MAX_ROWS]


def _event_lines(events: Iterable[Node], indent: str) -> Iterator[str]:
    segments: dict[str, list[Node]] = defaultdict(list)
    for event in events:
        segments[event.id.partition("#")[0]].append(event)
    for segment, segment_events in segments.items():
        numbers = [event.id.partition("#")[2] for event in segment_events]
        yield (
            f"{indent}+ {segment_events[0].title}, {len(segment_events)} event(s): "
            f"events/{segment}.jsonl line {', '.join(numbers)}"
        )
        first = segment_events[0].values
        first_value = f"{plain(first['wall_us'])} us" if "wall_us" in first else plain(first)
        yield f"{indent}|   the first says {first_value}"


def _line(node: Node) -> str:
    subject = label(node.values, _IDENTIFYING)
    results = ", ".join(
        f"{name} = {plain(node.values[name])}" for name in _RESULTS if name in node.values
    )
    return f"{node.id}  {subject}: {results}"


def plain(value: Any) -> str:
    """Return a value as readable text, cut to a maximal length."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        text = ", ".join(f"{name} {plain(item)}" for name, item in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(plain(item) for item in value)
    else:
        text = str(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."


def as_mermaid(graph: Graph) -> Iterator[str]:
    """Yield a flow chart from the events up to the number, events by segment."""
    yield "flowchart BT"
    names: dict[str, str] = {}
    links: set[tuple[str, str]] = set()

    def name(text: str) -> str:
        return names.setdefault(text, f"n{len(names)}")

    for node in graph.nodes.values():
        group = _group_of(node)
        if group not in names:
            yield f'  {name(group)}["{_label(node, group)}"]'
    for node in graph.nodes.values():
        for below in node.made_from:
            pair = name(_group_of(graph.nodes[below])), name(_group_of(node))
            if pair not in links and pair[0] != pair[1]:
                links.add(pair)
                yield f"  {pair[0]} --> {pair[1]}"


def _group_of(node: Node) -> str:
    return node.id.partition("#")[0] if node.kind == "event" else node.id


def _label(node: Node, group: str) -> str:
    text = {"row": _line(node), "event": f"events of {group}"}.get(
        node.kind, f"{node.kind} {group}"
    )
    return "".join(c if c.isalnum() or c in " .,:=/_-()" else f"#{ord(c)};" for c in plain(text))
