"""What `nearfree audit` accepts: ids of rows, keys, figures, events and takes; no other text."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from conftest import make_plan, make_started
from derive.reference.kept import SOURCE, kept_on_two, write_kept
from log.faults import HERE
from nearfree.config.files import Config
from nearfree.core.plan import plan_digest
from nearfree.decoders.model_file import find_model_file
from nearfree.derive.outlook.outlook import LOOKUP
from nearfree.derive.reference.kernels import KERNELS, write_kernels
from nearfree.derive.tables.store import read_table
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.retract import retract
from nearfree.log.seal import Seal, seal_segment, write_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name
from nearfree.prove.audit.graph import listed_figures, trace_query
from nearfree.prove.audit.recompute import recompute

pytestmark = pytest.mark.slow


def graph_of(made, text: str):
    """Return the graph of a text."""
    return trace_query(made.layout, Config(made.config), text)


def boundary(made) -> dict:
    """Return a measured boundary's row."""
    frame = pl.read_parquet(made.layout.table("cpu", "boundaries"))
    return frame.filter(epsilon=0.2, take=2).row(0, named=True)


def test_a_row_leads_to_its_events_run_and_config(shared):
    """A row's graph holds its points, their events, and the run with its command."""
    graph = graph_of(shared, boundary(shared)["row_id"])
    kinds = {node.kind for node in graph.nodes.values()}
    assert kinds == {"row", "event", "run"}
    run = next(node for node in graph.nodes.values() if node.kind == "run")
    assert run.values["command"] == "nearfree measure cpu dense"
    events = [node for node in graph.nodes.values() if node.kind == "event"]
    assert all(len(node.values["wall_us"]) == 2 for node in events)
    for node in graph.nodes.values():
        assert set(node.made_from) <= graph.nodes.keys()


def test_a_row_shows_its_values_and_what_it_was_made_from(shared):
    """A row's node holds the cells that are not empty; its ids are the node's own fields."""
    row = boundary(shared)
    node = graph_of(shared, row["row_id"]).nodes[row["row_id"]]
    identity = {"row_id", "from_ids"}
    assert node.values == {
        name: value for name, value in row.items() if value is not None and name not in identity
    }
    assert None in row.values()
    assert node.made_from == tuple(row["from_ids"])


def test_a_prediction_leads_to_the_printed_rule_and_the_datasheet(shared):
    """A rule that a prediction's text cites leads to the rows that hold it."""
    graph = graph_of(
        shared,
        "predictions:platform=h20,module=attention,backend=flash_attn_2,predictor=principle,"
        "context=1024,epsilon=0.2",
    )
    rules = [node for node in graph.nodes.values() if node.id.startswith("granularity:")]
    assert {node.values["place"] for node in rules} == {"tab:fa2-kblockm"}
    assert {node.values["path"] for node in rules} == {"split-KV"}
    sheets = [node for node in graph.nodes.values() if node.kind == "config"]
    assert [node.title for node in sheets] == ["the datasheet of h20"]
    assert graph.nodes[graph.root].formula.text == "N_max = M_attn"


def test_an_answer_leads_to_its_model(shared, tmp_path):
    """A model's node holds what its file says, each part by name; a changed file is refused."""
    row = read_table(shared.layout, "public", LOOKUP).row(0, named=True)
    graph = graph_of(shared, row["row_id"])
    (name,) = (name for name in graph.nodes if name.startswith("config/models:"))
    node = graph.nodes[name]
    assert (node.kind, node.title) == ("config", f"the model {row['model']}")
    assert node.place == f"config/models/{row['model']}.json"
    folder = Path(shutil.copytree(shared.config, tmp_path / "config"))
    file = folder / "models" / f"{row['model']}.json"
    document = json.loads(file.read_text())
    assert node.values["d_model"] == document["hidden_size"]
    assert node.values["precision.kv"] == "bfloat16"
    assert node.values["architectures"] == tuple(document["architectures"])
    weights = [name for name in node.values if name.startswith("weights.")]
    assert weights[:4] == [
        "weights.embedding", "weights.norm", "weights.attention", "weights.attention.2",
    ]  # fmt: skip
    assert "weights" not in node.values
    elements = sum(node.values[name]["elements"] for name in weights)
    assert elements == sum(part.elements for part in find_model_file(folder, row["model"]).weights)
    file.write_text(json.dumps(document | {"hidden_size": 2 * document["hidden_size"]}))
    with pytest.raises(EvidenceError, match=f"the config no longer holds {name}"):
        trace_query(shared.layout, Config(folder), row["row_id"])


def test_a_key_that_names_one_row_is_that_row(shared):
    """TABLE:column=value,... finds one row by numbers, texts and flags."""
    row = boundary(shared)
    text = f"boundaries:platform=cpu,take=2,epsilon=0.2,batch={row['batch']},newest=true"
    assert graph_of(shared, text).root == row["row_id"]


def test_a_figure_leads_to_the_rows_of_its_marks(shared):
    """A figure, named by scope and name, leads to its marks' rows."""
    name, figure = next(iter(listed_figures(shared.layout)))
    graph = graph_of(shared, name)
    assert graph.nodes[name].made_from == figure.rows
    assert set(figure.rows) <= graph.nodes.keys()


def test_an_event_and_a_take_can_be_asked_for(shared):
    """An event leads to its run; a take is its run."""
    event = next(n for n in graph_of(shared, boundary(shared)["row_id"]).nodes if "#" in n)
    graph = graph_of(shared, event)
    take = event.partition("#")[0].rpartition(".")[0]
    assert list(graph.nodes) == [event, take]
    assert graph_of(shared, take).nodes[take].kind == "run"


def test_an_event_or_a_run_that_is_not_there_is_refused(shared):
    """A line that a take does not have is refused with the way to list its events."""
    take = str(shared.layout.takes("cpu", "dense_ffn")[0])
    with pytest.raises(EvidenceError, match=rf"there is no event {take}\.1#99999") as caught:
        graph_of(shared, f"{take}.1#99999")
    assert caught.value.remedy == f"`nearfree log show {take}` lists its events"


def test_a_take_without_an_end_is_shown(made):
    """A run that recorded no end has no seconds, and everything else."""
    plan = make_plan()
    name = take_name("cpu", "unended", 1, plan)
    with SegmentWriter(made.layout, name, 1) as writer:
        writer.append(make_started(plan))
    segment = read_segment(writer.path, writer.name)
    part = seal_segment(writer.path, segment, 1, 1)
    write_seal(made.layout, Seal(scope=name.scope, stream=name.stream, take=1, outcome="partial",
                                 plan_digest=plan_digest(plan), segments=(part,)))  # fmt: skip
    node = graph_of(made, str(name)).nodes[str(name)]
    assert (node.values["wall_s"], node.values["outcome"]) == (None, "partial")
    assert node.values["seal_sha256"] == sha256(made.layout.seal(name).read_bytes())


def test_what_was_retracted_says_so_with_its_reason(made):
    """A retracted event, take or event of a retracted take shows the reason; others show none."""
    graph = graph_of(made, boundary(made)["row_id"])
    first, second, *_ = (name for name in graph.nodes if "#" in name)
    take = first.partition("#")[0].rpartition(".")[0]
    retract(made.layout, first, "a backup ran")
    assert graph_of(made, first).nodes[first].values["retracted"] == "a backup ran"
    assert all("retracted" not in node.values for node in graph_of(made, second).nodes.values())
    retract(made.layout, take, "the wrong machine")
    for node in graph_of(made, second).nodes.values():
        assert node.values["retracted"] == "the wrong machine"


def test_an_imported_curve_leads_to_its_kernel_s_event(shared, layout):
    """An imported point leads to the event with its curve and licence, and to the run."""
    seal = write_kept(layout, *kept_on_two())
    write_kernels(layout, "public", epsilon=0.2)
    row = read_table(layout, "public", KERNELS).row(0, named=True)
    graph = trace_query(layout, Config(shared.config), row["row_id"])
    (event,) = row["from_ids"]
    assert list(graph.nodes) == [row["row_id"], event, str(seal.name)]
    assert graph.nodes[event].title == "nearfree.kernel.referenced.v2"
    assert graph.nodes[event].values["source"] == SOURCE
    assert recompute(layout, shared.config, [row["row_id"]]) == {row["row_id"]: []}


def test_an_event_is_shown_in_the_version_on_disk(shared):
    """An event of an old version is shown as it was written, with its own type."""
    layout = Layout(HERE / "golden_versions" / "log")
    name = "public/constants/1-08c0841e.1#2"
    node = trace_query(layout, Config(shared.config), name).nodes[name]
    assert node.title == "nearfree.constants.calibrated.v1"
    assert node.values["family"] == "gemm"
    assert "dtypes" not in node.values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("boundaries:000000000000", "no table has the row"),
        ("nothing:platform=cpu", "there is no table 'nothing'"),
        ("boundaries:platform=cpu", "rows of boundaries fit"),
        ("boundaries:platform=nowhere", "0 rows of boundaries fit"),
        ("boundaries:colour=red", "has no column 'colour'"),
        ("boundaries:n_max=many", "n_max is a number, not 'many'"),
        ("boundaries:newest=ture", "newest is true or false, not 'ture'"),
        ("boundaries:from_ids=x", "has no column 'from_ids'"),
        ("tuning:forwards=cpu/llama_cpp_m/1-0123abcd,kind=all", "0 rows of tuning fit"),
        ("foo:5b1eae9b1bfa", "row foo:5b1eae9b1bfa. Tables are .*boundaries, "),
        ("boundaries", r"boundaries is a table, .* boundaries:column=value,\.\.\. \(its key is "),
        ("no_such_figure", "no table or figure is named 'no_such_figure'"),
        ("boundries", "near it: boundaries"),
        ("latency_against_n", "near it: cpu/dense_ffn_latency_against_n, "),
        ("cpu/dense_ffn/1-00000000.1#7", "gone from the log"),
        ("../../etc/passwd#1", "is not the name of a take"),
        ("<script>alert(1)</script>", "no table or figure is named"),
    ],
)
def test_what_names_nothing_is_refused_in_one_line(shared, text, words):
    """A text that names nothing is refused, and the message lists what exists."""
    with pytest.raises(NearfreeError, match=words) as caught:
        graph_of(shared, text)
    assert "\n" not in str(caught.value)
