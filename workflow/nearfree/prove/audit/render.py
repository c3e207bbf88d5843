"""A graph as text for a person, as JSON for a program, or as a Mermaid chart."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from nearfree.prove.audit.graph import Graph, Node, by_kind

_FIRST = 3
_LONGEST = 160
_TELLING = (
    *("platform", "origin", "model", "module", "backend", "package", "version", "versions"),
    *("dtype", "batch", "context", "top_k", "routing", "n", "epsilon", "predictor", "basis"),
    *("condition", "place", "lines", "claim"),
)
_SAYING = (
    *("latency_us", "ratio", "n_max", "n_low", "n_high", "predicted", "value", "hit", "verdict"),
    *("balance_flop_per_byte", "peak_tflops", "bandwidth_gb_s", "flop_executed", "block_size_m"),
    *("limiting_term", "evidence", "refusal", "share", "quote", "why"),
)
_RUN = (
    *("command", "commit", "dirty", "code_digest", "plan_digest", "python", "versions"),
    *("host_label", "device", "driver", "clocks_mhz", "power_cap_w", "scheduler"),
    *("lock_sha256", "environment_sha256", "time", "wall_s", "outcome", "seal_sha256"),
)


def as_json(graph: Graph, differs: Sequence[str] | None = None) -> str:
    """Return all nodes with all their values.

    Parameters
    ----------
    differs
        Where the row is not what the log gives; None if that was not asked.
    """
    nodes = {name: _builtin(node) for name, node in graph.nodes.items()}
    raw = msgspec.json.encode({"root": graph.root, "differs": differs, "nodes": nodes})
    return msgspec.json.format(raw, indent=2).decode()


def _builtin(node: Node) -> Any:
    said = msgspec.to_builtins(node)
    if node.kind == "row":
        said["recompute"] = f"nearfree audit {node.id}"
    return said


def as_text(graph: Graph) -> Iterator[str]:
    """Yield lines: the number, what it was made from by and by, then runs, and config values."""
    root = graph.nodes[graph.root]
    yield f"{root.id}  {root.title}"
    yield from _values(root)
    if root.formula:
        paper = f"  (paper {root.formula.paper})" if root.formula.paper else ""
        yield f"  formula   {root.formula.text}{paper}"
        yield f"  computed  {root.formula.code}"
    if root.place:
        yield f"  lies in   {root.place}"
    for name, digest in root.inputs.items():
        yield f"  rests on  {name} {digest[:12]}"
    shown: set[str] = set()
    yield from _below(graph, root, "", shown)
    kinds = by_kind(graph)
    for node in kinds["run"]:
        if node.id != root.id:
            yield ""
            yield f"run {node.id}  {node.place}"
            yield from _values(node, _RUN)
    for node in kinds["config"]:
        if node.id != root.id:
            yield ""
            yield f"config {node.id}"
            yield from _values(node)


def _values(node: Node, names: Sequence[str] = ()) -> Iterator[str]:
    for name, value in node.values.items():
        if value not in (None, "") and (not names or name in names):
            yield f"  {name:<24} {plain(value)}"


def _below(graph: Graph, node: Node, indent: str, shown: set[str]) -> Iterator[str]:
    """Yield what a node was made from; of many rows of a kind the telling ones, and their count."""
    parts = [graph.nodes[name] for name in node.made_from]
    parts = [part for part in parts if part.kind in ("row", "event")]
    lines = [part for part in parts if part.kind == "event"]
    rows = [part for part in parts if part.kind == "row"]
    for _, group in groupby(rows, key=lambda part: part.id.partition(":")[0]):
        every = list(group)
        chosen = _chosen(node, every)
        for part in chosen:
            yield f"{indent}+ {_line(part)}"
            if part.id not in shown:
                shown.add(part.id)
                yield from _below(graph, part, f"{indent}| ", shown)
        if len(every) > len(chosen):
            more = len(every) - len(chosen)
            yield f"{indent}+ ... and {more} more rows like these (--format json has all)"
    yield from _events(lines, indent)


def _chosen(node: Node, rows: list[Node]) -> list[Node]:
    """Return the rows that decide: of a boundary its baseline, its last N and the next."""
    if len(rows) <= _FIRST:
        return rows
    deciding = {node.values.get(name) for name in ("baseline", "n_max", "next_n")} - {None}
    found = [row for row in rows if row.values.get("n") in deciding]
    return found or rows[:_FIRST]


def _events(events: Iterable[Node], indent: str) -> Iterator[str]:
    segments: dict[str, list[Node]] = defaultdict(list)
    for event in events:
        segments[event.id.partition("#")[0]].append(event)
    for segment, found in segments.items():
        numbers = [event.id.partition("#")[2] for event in found]
        yield (
            f"{indent}+ {found[0].title}, {len(found)} event(s): events/{segment}.jsonl "
            f"line {', '.join(numbers)}"
        )
        first = found[0].values
        said = f"{plain(first['wall_us'])} us" if "wall_us" in first else plain(first)
        yield f"{indent}|   the first says {said}"


def _line(node: Node) -> str:
    about = ", ".join(f"{node.values[name]}" if name not in _NAMED else
                      f"{_NAMED[name]} = {node.values[name]}"
                      for name in _TELLING if node.values.get(name) not in (None, ""))  # fmt: skip
    says = ", ".join(
        f"{name} = {plain(node.values[name])}" for name in _SAYING if name in node.values
    )
    return f"{node.id}  {about}: {says}"


_NAMED = {"batch": "b", "context": "L", "top_k": "k", "n": "N", "epsilon": "epsilon"}


def plain(value: Any) -> str:
    """Return a value as a person reads it, cut where it is long."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        text = ", ".join(f"{name} {plain(each)}" for name, each in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(plain(each) for each in value)
    else:
        text = str(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def as_mermaid(graph: Graph) -> Iterator[str]:
    """Yield a flow chart from the events up to the number, events by segment."""
    yield "flowchart BT"
    names: dict[str, str] = {}
    links: set[tuple[str, str]] = set()

    def name(text: str) -> str:
        return names.setdefault(text, f"n{len(names)}")

    for node in graph.nodes.values():
        own = _grouped(node)
        if own not in names:
            yield f'  {name(own)}["{_label(node, own)}"]'
    for node in graph.nodes.values():
        for below in node.made_from:
            pair = name(_grouped(graph.nodes[below])), name(_grouped(node))
            if pair not in links and pair[0] != pair[1]:
                links.add(pair)
                yield f"  {pair[0]} --> {pair[1]}"


def _grouped(node: Node) -> str:
    return node.id.partition("#")[0] if node.kind == "event" else node.id


def _label(node: Node, own: str) -> str:
    text = {"row": _line(node), "event": f"events of {own}"}.get(node.kind, f"{node.kind} {own}")
    return "".join(c if c.isalnum() or c in " .,:=/_-()" else f"#{ord(c)};" for c in plain(text))
