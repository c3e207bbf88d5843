"""The whole text and chart of a small graph, line by line."""

import json

import pytest
from nearfree.derive.tables.schema import Formula
from nearfree.prove.audit.graph import Graph, Node
from nearfree.prove.audit.render import as_json, as_mermaid, as_text, plain

SEGMENT = "cpu/dense/1-0123abcd.1"
OTHER = "cpu/dense/1-0123abcd.2"
TAKE = "cpu/dense/1-0123abcd"
SHEET = "config/platforms.yaml:cpu@0123456789ab"


def point(n: int, *events: str, **values: object) -> Node:
    """Return the row of a point T(N) that was made from some events."""
    return Node(
        id=f"latency:{n:012}",
        kind="row",
        title="a point",
        values={"module": "gemm", "n": n, "latency_us": 10.0 + n / 8, **values},
        made_from=events,
    )


def visit(segment: str, line: int, **values: object) -> Node:
    """Return the event of a visit."""
    return Node(
        id=f"{segment}#{line}",
        kind="event",
        title="nearfree.latency.measured.v1",
        values={"time": "then", **values},
        made_from=(TAKE,),
    )


def graph() -> Graph:
    """Return a boundary over four points, with one more row, a run and a datasheet."""
    visits = [
        visit(SEGMENT, 2, wall_us=[10.125, 10.5]),
        visit(SEGMENT, 3, wall_us=[11.0]),
        visit(OTHER, 2, n=4),
    ]
    first, second, third = (node.id for node in visits)
    points = [point(1, first, second, third), point(2, first), point(4), point(8, second)]
    bandwidth = Node(
        id="platforms:0123456789ab",
        kind="row",
        title="a fact",
        values={"platform": "cpu", "basis": "probed", "value": 40.0},
        made_from=(SHEET, points[0].id),
    )
    root = Node(
        id="boundaries:0123456789ab",
        kind="row",
        title="N_max of a setting",
        values={"module": "gemm", "n_max": 2, "baseline": 1, "next_n": 4, "note": "", "k": None},
        formula=Formula(text="N_max = max", paper="sec. 2", code="nearfree.here"),
        beside=Formula(text="a sum", paper="", code="nearfree.there"),
        place="tables/cpu/boundaries.parquet",
        made_from=(*(node.id for node in points), bandwidth.id),
        inputs={"latency": "0123456789abcdef"},
    )
    run = Node(
        id=TAKE,
        kind="run",
        title="a run",
        values={"command": "nearfree measure cpu dense", "plan": {"kind": "measure"}, "driver": ""},
        place=f"events/{TAKE}.seal.json",
    )
    sheet = Node(id=SHEET, kind="config", title="a sheet", values={"year": 2024, "sm": None})
    nodes = [root, *points, bandwidth, *visits, run, sheet]
    return Graph(root.id, {node.id: node for node in nodes})


TEXT = """
boundaries:0123456789ab  N_max of a setting
  module                   gemm
  n_max                    2
  baseline                 1
  next_n                   4
  formula   N_max = max  (paper sec. 2)
  computed  nearfree.here
  formula   a sum
  computed  nearfree.there
  lies in   tables/cpu/boundaries.parquet
  rests on  latency 0123456789ab
+ latency:000000000001  gemm, N = 1: latency_us = 10.125
| + nearfree.latency.measured.v1, 2 event(s): events/cpu/dense/1-0123abcd.1.jsonl line 2, 3
| |   the first says 10.125, 10.5 us
| + nearfree.latency.measured.v1, 1 event(s): events/cpu/dense/1-0123abcd.2.jsonl line 2
| |   the first says time then, n 4
+ latency:000000000002  gemm, N = 2: latency_us = 10.25
| + nearfree.latency.measured.v1, 1 event(s): events/cpu/dense/1-0123abcd.1.jsonl line 2
| |   the first says 10.125, 10.5 us
+ latency:000000000004  gemm, N = 4: latency_us = 10.5
+ ... and 1 more rows like these (--format json has all)
+ platforms:0123456789ab  cpu, probed: value = 40
| + latency:000000000001  gemm, N = 1: latency_us = 10.125

run cpu/dense/1-0123abcd  events/cpu/dense/1-0123abcd.seal.json
  command                  nearfree measure cpu dense

config config/platforms.yaml:cpu@0123456789ab
  year                     2024
"""
CHART = """
flowchart BT
  n0["boundaries:0123456789ab  gemm: n_max = 2"]
  n1["latency:000000000001  gemm, N = 1: latency_us = 10.125"]
  n2["latency:000000000002  gemm, N = 2: latency_us = 10.25"]
  n3["latency:000000000004  gemm, N = 4: latency_us = 10.5"]
  n4["latency:000000000008  gemm, N = 8: latency_us = 11"]
  n5["platforms:0123456789ab  cpu, probed: value = 40"]
  n6["events of cpu/dense/1-0123abcd.1"]
  n7["events of cpu/dense/1-0123abcd.2"]
  n8["run cpu/dense/1-0123abcd"]
  n9["config config/platforms.yaml:cpu#64;0123456789ab"]
  n1 --> n0
  n2 --> n0
  n3 --> n0
  n4 --> n0
  n5 --> n0
  n6 --> n1
  n7 --> n1
  n6 --> n2
  n6 --> n4
  n9 --> n5
  n1 --> n5
  n8 --> n6
  n8 --> n7
"""


def test_the_text_is_this() -> None:
    """Deciding rows are whole, others counted, and the inputs of a row are shown once."""
    assert "\n".join(as_text(graph())) == TEXT.strip("\n")


def test_the_chart_is_this() -> None:
    """Events are one box a segment, and each arrow is drawn once."""
    assert "\n".join(as_mermaid(graph())) == CHART.strip("\n")


@pytest.mark.parametrize("count", [3, 4, 23])
def test_rows_that_decide_nothing_are_three_and_a_count(count: int) -> None:
    """Of a table's rows without a deciding one three are shown, and the others counted."""
    points = [point(n) for n in range(1, count + 1)]
    root = Node(
        id="t:1", kind="row", title="t", values={}, made_from=tuple(node.id for node in points)
    )
    _, *lines = as_text(Graph("t:1", {node.id: node for node in (root, *points)}))
    assert lines[:3] == [
        f"+ {node.id}  gemm, N = {n}: latency_us = {10 + n / 8:.6g}"
        for n, node in enumerate(points[:3], start=1)
    ]
    more = f"+ ... and {count - 3} more rows like these (--format json has all)"
    assert lines[3:] == ([more] if count > 3 else [])


def test_only_rows_name_the_command_that_recomputes_them() -> None:
    """JSON is indented by two blanks; a row, and no other node, has its own command."""
    text = as_json(graph())
    assert text.startswith('{\n  "root": "boundaries:0123456789ab",\n  "differs": null,\n')
    nodes = json.loads(text)["nodes"]
    assert {name: node.get("recompute") for name, node in nodes.items()} == {
        name: f"nearfree audit {name}" if node.kind == "row" else None
        for name, node in graph().nodes.items()
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456789, "0.123457"),
        ([1, 2.5], "1, 2.5"),
        ({"a": (1, 2)}, "a 1, 2"),
        ("x" * 160, "x" * 160),
        ("x" * 161, "x" * 157 + "..."),
        ("a\nb\x1b", r"a\nb\x1b"),
    ],
)
def test_a_value_is_one_line_of_limited_length(value: object, text: str) -> None:
    """A value has six digits, no unprintable character, and at most 160 characters."""
    assert plain(value) == text
