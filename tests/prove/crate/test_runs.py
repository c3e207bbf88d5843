"""Actions of a crate: what a run records of its machine, and what each derived file is made of."""

import itertools
import re
from typing import Literal

import pytest
from conftest import make_plan, make_started
from msgspec import structs
from nearfree.derive.stages import COMMANDS, STAGES
from nearfree.errors import DamageError
from nearfree.log.events import Payload, RunFinished, Scheduler
from nearfree.log.ledger import Ledger, seals_root
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal, seal_segment, write_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name
from nearfree.prove.crate.graph import Contents, Graph, refs
from nearfree.prove.crate.runs import (
    NEARFREE,
    SNAKEFILE,
    WORKFLOW_RUN,
    add_derivations,
    add_run,
    add_workflow,
    main_run,
    read_run,
    rule_of,
)
from prove.crate.conftest import PROJECT

PLAN = make_plan()
Outcome = Literal["complete", "partial"]
NAME = take_name("h20", "dense", 1, PLAN)


def sealed(layout: Layout, *payloads: Payload, outcome: Outcome = "complete") -> None:
    """Seal a take of these events."""
    with SegmentWriter(layout, NAME, 1) as writer:
        for payload in payloads:
            writer.append(payload)
    segment = read_segment(writer.path, writer.name)
    part = seal_segment(writer.path, segment, 1, len(segment.events))
    seal = Seal(
        scope="h20", stream="dense", take=1, plan_digest=make_started(PLAN).plan_digest,
        outcome=outcome, segments=(part,),
    )  # fmt: skip
    write_seal(layout, seal)


def test_a_run_says_its_machine_and_its_job(layout: Layout) -> None:
    """Each fact of a run's device, clocks and batch job is a property of its action."""
    started = structs.replace(
        make_started(PLAN, attempt=2),
        device="NVIDIA H20",
        clocks_mhz={"sm": 1980.0, "memory": 2619.0},
        scheduler=Scheduler(system="slurm", job_id="7"),
    )
    sealed(layout, started, RunFinished(outcome="complete", wall_s=1.0))
    graph = Graph()
    reference = add_run(graph, layout, read_run(layout, str(NAME)), "measure")
    action = graph.entities[reference["@id"]]
    facts = [graph.entities[fact["@id"]] for fact in action["additionalProperty"]]
    assert {fact["name"]: fact["value"] for fact in facts} == {
        "host_label": "unnamed", "device": "NVIDIA H20", "clock_memory_mhz": 2619.0,
        "clock_sm_mhz": 1980.0, "scheduler_system": "slurm", "scheduler_job_id": "7", "attempt": 2,
    }  # fmt: skip
    clocks = [fact["name"] for fact in facts if fact["name"].startswith("clock")]
    assert clocks == ["clock_memory_mhz", "clock_sm_mhz"]
    assert action["instrument"] == {"@id": "#tool/measure"}
    assert action["name"] == "dense of h20, take 1"
    assert action["startTime"] <= action["endTime"]


def test_the_main_run_is_the_last_of_the_first_command(layout: Layout) -> None:
    """A command that only closed the take is not its main run; a take without a start is damage."""
    first, again = make_started(PLAN), make_started(PLAN, attempt=2)
    closed = structs.replace(make_started(PLAN, attempt=3), command="nearfree log recover x")
    sealed(layout, first, again, closed, RunFinished(outcome="partial", wall_s=1.0))
    assert main_run(read_run(layout, str(NAME))) == again


def test_a_take_without_a_start_is_damage(layout: Layout) -> None:
    """A take that no run started has no action."""
    sealed(layout, RunFinished(outcome="complete", wall_s=1.0))
    with pytest.raises(DamageError, match=f"{NAME} holds no start of a run"):
        read_run(layout, str(NAME))


def test_derived_files_are_made_of_what_they_read() -> None:
    """Tables are made of seals, figures and report of tables, the ledger of seals and config."""
    names = [
        "results/events/cpu/dense/1-0123abcd.1.jsonl",
        "results/events/cpu/dense/1-0123abcd.seal.json",
        "results/tables/cpu/latency.parquet",
        "results/figures/cpu/latency.svg",
        "results/report/figures/latency.svg",
        "results/ledger/000001.json",
        "config/config.yaml",
    ]
    others = ["Snakefile", "plans/report/x.json", "results/as_of/x"]
    alone = "results/tables/x.json"
    files = {name: Contents(size=1, sha256="0" * 64) for name in (*names, *others, alone)}
    ledger = Ledger(
        number=1, time="then", previous="0" * 64, root=seals_root({}), seals={}, config={},
        code_digest="0", libraries={},
    )  # fmt: skip
    graph = Graph()
    actions = add_derivations(graph, ledger, files)
    _, seal, table, figure, page, listed, config = names
    found = {}
    for reference in itertools.chain(*actions.values()):
        entity = graph.entities[reference["@id"]]
        made = entity["name"], entity["object"], entity["result"], entity.get("endTime")
        found[reference["@id"].removeprefix("#derived/")] = made
    tables = refs([table, alone])
    assert found == {
        "tables/cpu": ("tables of cpu", refs([seal]), refs([table]), None),
        "tables": ("tables of all scopes", refs([seal]), refs([alone]), None),
        "figures/cpu": ("figures of cpu", tables, refs([figure]), None),
        "report": ("report of all scopes", tables, refs([page]), None),
        "ledger": ("ledger of all scopes", refs([seal, config]), refs([listed]), "then"),
    }
    assert {tool: len(made) for tool, made in actions.items()} == {
        "tables": 2, "figures": 1, "report": 1, "ledger": 1,
    }  # fmt: skip
    run = graph.entities[WORKFLOW_RUN]
    assert run["object"] == refs([config, seal])
    assert run["result"] == refs([table, figure, page, listed, alone])
    assert "startTime" not in run
    graph = Graph()
    for time in ("2", "1", "3"):
        graph.add(f"#run/{time}", "CreateAction", startTime=time)
    add_derivations(graph, ledger, files)
    assert graph.entities[WORKFLOW_RUN]["startTime"] == "1"


def test_a_run_names_its_software_once(layout: Layout) -> None:
    """A run's agent is this program, with its version and the other packages, Python among them."""
    versions = {"torch": "2.9", "nearfree": "1.0", "msgspec": "0.19"}
    sealed(layout, structs.replace(make_started(PLAN), python="3.12", versions=versions))
    graph = Graph()
    reference = add_run(graph, layout, read_run(layout, str(NAME)), None)
    action = graph.entities[reference["@id"]]
    agent = graph.entities[action["agent"]["@id"]]
    assert (agent["name"], agent["softwareVersion"]) == ("nearfree", "1.0")
    packages = [graph.entities[package["@id"]] for package in agent["softwareRequirements"]]
    assert [(entity["name"], entity["softwareVersion"]) for entity in packages] == [
        ("msgspec", "0.19"), ("python", "3.12"), ("torch", "2.9"),
    ]  # fmt: skip
    assert action["instrument"] == {"@id": NEARFREE}
    assert not any("scheduler" in name for name in graph.entities)
    assert "endTime" not in action


@pytest.mark.parametrize(("outcome", "status"), [("complete", "Completed"), ("partial", "Failed")])
def test_a_partial_take_is_a_failed_action(layout: Layout, outcome: Outcome, status: str) -> None:
    """A take that was closed before its plan was done failed, with that as its error."""
    sealed(layout, make_started(PLAN), outcome=outcome)
    graph = Graph()
    action = graph.entities[add_run(graph, layout, read_run(layout, str(NAME)), None)["@id"]]
    assert action["actionStatus"] == f"http://schema.org/{status}ActionStatus"
    assert action.get("error") == (
        "closed before its plan was done" if status == "Failed" else None
    )


def test_the_workflow_has_a_step_for_each_rule() -> None:
    """Each executed rule is a numbered step with its tool, and a control of its actions."""
    graph, action = Graph(), {"@id": "#run/x"}
    add_workflow(graph, {"measure": [action], "publish": [action], "import_curves": [action]})
    workflow, run = graph.entities[SNAKEFILE], graph.entities["#orchestration"]
    steps = [graph.entities[step["@id"]] for step in workflow["step"]]
    assert [(step["name"], step["description"], step["position"]) for step in steps] == [
        ("measure", "nearfree measure", "1"),
        ("publish", "nearfree import published", "2"),
        ("import_curves", "nearfree import", "3"),
    ]
    tools = [step["workExample"]["@id"] for step in steps]
    assert tools == ["#tool/measure", "#tool/import", "#tool/import"]
    assert workflow["hasPart"] == refs(["#tool/measure", "#tool/import"])
    assert [graph.entities[tool]["name"] for tool in tools[:2]] == [
        "nearfree measure", "nearfree import",
    ]  # fmt: skip
    controls = [graph.entities[control["@id"]] for control in run["object"]]
    assert [control["instrument"] for control in controls] == workflow["step"]
    assert all(control["object"] == [action] for control in controls)
    assert run["result"] == {"@id": WORKFLOW_RUN}
    assert graph.entities[NEARFREE]["name"] == "nearfree"


def test_every_rule_with_a_command_is_a_step() -> None:
    """Each rule with a command is a step, and each command leads to its rule."""
    text = "".join(path.read_text() for path in sorted((PROJECT / "rules").glob("*.smk")))
    rules = re.findall(r"^rule (\w+):", text, re.MULTILINE)
    tables = [name for name, stage in STAGES.items() if stage.tables]
    assert sorted(COMMANDS) == sorted(rules + tables)
    assert rule_of("nearfree measure cpu attention --take 1") == "measure"
    assert rule_of("nearfree import published") == "publish"
    assert rule_of("nearfree import aiconfigurator --version 1") == "import_curves"
    assert rule_of("nearfree rules extract vllm==0.33.0 --take 1") == "extract"
    assert rule_of("nearfree calibrate gemm") is None
