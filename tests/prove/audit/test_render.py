"""A graph as text, JSON and Mermaid; control characters of its data are escaped."""

import json
import re

import polars as pl
import pytest
from nearfree.config.files import Config
from nearfree.prove.audit.graph import Graph, Node, trace_query
from nearfree.prove.audit.render import as_json, as_mermaid, as_text, plain

HOSTILE = '<script>"]\n end --> x\u202e' + "y" * 1000


@pytest.fixture(scope="module")
def graph(shared) -> Graph:
    """Return the graph of a boundary."""
    frame = pl.read_parquet(shared.layout.table("cpu", "boundaries"))
    row = frame.filter(epsilon=0.2, take=2).row(0, named=True)
    return trace_query(shared.layout, Config(shared.config), row["row_id"])


def test_text_says_the_number_its_formula_points_lines_and_run(graph):
    """The text shows the number, its formula, its points, the events' lines and the run."""
    text = "\n".join(as_text(graph))
    root = graph.nodes[graph.root]
    assert text.startswith(root.id)
    assert re.search(rf"^  n_max +{root.values['n_max']}$", text, re.MULTILINE)
    assert "N_max = max { N : ratio(N) <= 1 + epsilon }" in text
    for n in {root.values["baseline"], root.values["n_max"], root.values["next_n"]}:
        assert f"N = {n}: latency_us = " in text
    assert "events/cpu/dense_ffn/2-" in text
    assert "nearfree measure cpu dense" in text
    assert "more rows like these" in text


def test_json_holds_every_node_with_all_values(graph):
    """The JSON, read back, is the same graph."""
    document = json.loads(as_json(graph))
    assert document["root"] == graph.root
    assert document["nodes"].keys() == graph.nodes.keys()
    row = document["nodes"][graph.root]
    assert row["recompute"] == f"nearfree audit {graph.root}"
    assert row["made_from"] == list(graph.nodes[graph.root].made_from)


def test_mermaid_draws_each_row_once_and_events_by_segment(graph):
    """Each row is one box, events one box a segment, and each arrow joins two boxes."""
    lines = list(as_mermaid(graph))
    boxes = [m[1] for line in lines if (m := re.match(r'  (n\d+)\["[^"]*"\]$', line))]
    arrows = [m.groups() for line in lines if (m := re.match(r"  (n\d+) --> (n\d+)$", line))]
    assert lines[0] == "flowchart BT"
    assert len(lines) == 1 + len(boxes) + len(arrows)
    assert len(set(boxes)) == len(boxes)
    assert {end for arrow in arrows for end in arrow} == set(boxes)


def test_hostile_text_stays_text():
    """Line breaks, brackets and control characters of the data are escaped in the output."""
    node = Node(id=HOSTILE, kind="run", title=HOSTILE, values={"command": HOSTILE})
    top = Node(id="t:1", kind="row", title="t", values={"module": HOSTILE}, made_from=(HOSTILE,))
    graph = Graph("t:1", {"t:1": top, HOSTILE: node})
    chart = list(as_mermaid(graph))
    assert all(re.fullmatch(r'  n\d+(\["[^"<>\n\u202e]*"\]| --> n\d+)', line) for line in chart[1:])
    shown = [line for line in as_text(graph) if "command" in line or "module" in line]
    assert all(len(line) < 250 and "\u202e" not in line and "\n" not in line for line in shown)
    assert json.loads(as_json(graph))["nodes"]["t:1"]["values"]["module"] == HOSTILE


@pytest.mark.parametrize("table", ["lookup", "schedules"])
def test_text_of_a_deployment_says_formats_and_memory(shared, table):
    """The text shows a deployment's formats, its memory by part, and the stored weights."""
    row = pl.read_parquet(shared.layout.table("public", table)).row(0, named=True)
    traced = trace_query(shared.layout, Config(shared.config), row["row_id"])
    text = "\n".join(as_text(traced))
    for name in ("weights", "kv_dtype", "fits", "peak_bytes", "capacity_bytes", "largest_batch"):
        assert re.search(rf"^  {name} +{plain(row[name])}$", text, re.MULTILINE)
    assert "on the GPU that holds most, weights as stored + cache of b (L + 1) positions" in text
    assert "computed  nearfree.derive.memory" in text
    (model,) = [node for node in traced.nodes.values() if node.title.startswith("the model ")]
    stored = sum(v["size_bytes"] for k, v in model.values.items() if k.startswith("weights."))
    assert round(stored) == row["weights_bytes"]
    assert re.search(r"^  precision.ffn +bfloat16, bfloat16$", text, re.MULTILINE)
    sheets = [node for node in traced.nodes.values() if node.title.startswith("the datasheet")]
    assert row["capacity_bytes"] in {1e9 * node.values["memory_gb"] for node in sheets}
