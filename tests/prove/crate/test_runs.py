"""Actions of a crate: what a run records of its machine, and what each derived file is made of."""

import pytest
from conftest import make_plan, make_started
from msgspec import structs
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
    WORKFLOW_RUN,
    add_derivations,
    add_run,
    main_run,
    read_run,
)

PLAN = make_plan()
NAME = take_name("h20", "dense", 1, PLAN)


def sealed(layout: Layout, *payloads: Payload) -> None:
    """Seal a take of these events."""
    with SegmentWriter(layout, NAME, 1) as writer:
        for payload in payloads:
            writer.append(payload)
    segment = read_segment(writer.path, writer.name)
    part = seal_segment(writer.path, segment, 1, len(segment.events))
    seal = Seal(
        scope="h20", stream="dense", take=1, plan_digest=make_started(PLAN).plan_digest,
        outcome="complete", segments=(part,),
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
    assert action["instrument"] == {"@id": "#tool/measure"}
    assert action["name"] == "dense of h20, take 1"


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
        "results/report/index.html",
        "results/ledger/000001.json",
        "config/config.yaml",
    ]
    files = {name: Contents(size=1, sha256="0" * 64) for name in names}
    ledger = Ledger(
        number=1, time="then", previous="0" * 64, root=seals_root({}), seals={}, config={},
        code_digest="0", libraries={},
    )  # fmt: skip
    graph = Graph()
    actions = add_derivations(graph, ledger, files)
    _, seal, table, figure, page, listed, config = names
    found = {}
    for tool, (reference,) in actions.items():
        entity = graph.entities[reference["@id"]]
        found[tool] = entity["name"], entity["object"], entity["result"], entity.get("endTime")
    assert found == {
        "tables": ("tables of cpu", refs([seal]), refs([table]), None),
        "figures": ("figures of cpu", refs([table]), refs([figure]), None),
        "report": ("report of all scopes", refs([table]), refs([page]), None),
        "ledger": ("ledger of all scopes", refs([seal, config]), refs([listed]), "then"),
    }
    run = graph.entities[WORKFLOW_RUN]
    assert run["object"] == refs([config, seal])
    assert run["result"] == refs([table, figure, page, listed])
    assert "startTime" not in run
