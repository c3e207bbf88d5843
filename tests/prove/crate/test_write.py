"""Writing a crate: its content and its reproducibility."""

import shutil
from pathlib import Path

import pytest
from conftest import make_latency, make_plan, make_started, write_payloads
from derive.tables.logs import CONFIG, make_tables, write_study
from msgspec import structs
from nearfree.core.plan import Plan
from nearfree.derive.stages import COMMANDS
from nearfree.log.events import RunStarted
from nearfree.log.ledger import read_chain, write_ledger
from nearfree.log.names import Layout, parse_take
from nearfree.log.retract import retract
from nearfree.log.seal import read_seal
from nearfree.log.take import OpenTake, take_name
from nearfree.log.verify import verify
from nearfree.measure.rounds import recover
from nearfree.prove.crate.graph import read_contents
from nearfree.prove.crate.write import write_crate
from prove.crate.conftest import PROJECT
from prove.crate.faults import read_graph
from prove.crate.written_crates import faults, refused

pytestmark = pytest.mark.slow


def every_byte(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_writing_twice_gives_the_same_bytes(made: Layout, written: Path, tmp_path: Path) -> None:
    """A crate depends on its ledger, not on the time of writing."""
    write_crate(made, PROJECT, CONFIG, tmp_path / "again")
    assert every_byte(tmp_path / "again") == every_byte(written)
    assert faults(written) == []


def test_every_take_is_an_action(made: Layout, written: Path) -> None:
    """Each take has one action with the command, times, software, plan, segments and seal."""
    graph = read_graph(written)
    for name in read_chain(made.ledgers / "local")[-1].seals:
        action = graph[f"#run/{name}"]
        attempts = read_seal(made, parse_take(name)).segments
        parts = [f"results/events/{name}.{part.attempt}.jsonl" for part in attempts]
        assert action["@type"] == "CreateAction"
        assert [reference["@id"] for reference in action["result"]] == [
            *parts,
            f"results/events/{name}.seal.json",
        ]
        assert action["object"] == {"@id": f"plans/{name}.json"}
        assert graph[action["agent"]["@id"]]["name"] == "nearfree"
        assert graph[action["instrument"]["@id"]]["@type"] == "SoftwareApplication"
        assert action["startTime"] <= action["endTime"]
        assert action["actionStatus"] == "http://schema.org/CompletedActionStatus"


def test_every_file_is_described_and_whole(written: Path) -> None:
    """Each file has its size and digest in the metadata and is a part of the root entity."""
    graph = read_graph(written)
    files = read_contents(written)
    assert {reference["@id"] for reference in graph["./"]["hasPart"]} == files.keys()
    described = {name: (graph[name]["contentSize"], graph[name]["sha256"]) for name in files}
    assert described == {
        name: (str(content.size), content.sha256) for name, content in files.items()
    }


def test_the_results_inside_are_sound(made: Layout, written: Path) -> None:
    """The crate's log, ledger, tables and figures equal the root's, and `verify` finds nothing."""
    summary = verify(written / "results")
    assert summary.findings == ()
    copied, original = every_byte(written / "results"), every_byte(made.root)
    assert copied == {name: raw for name, raw in original.items() if not name.startswith("state/")}
    assert {name.split("/")[0] for name in copied} == {"events", "ledger", "tables", "figures"}


def test_what_came_after_the_seal_stays_behind(root: Layout, tmp_path: Path) -> None:
    """Bytes after a seal and takes that the ledger does not list are left out."""
    late = next(root.events.rglob("*.jsonl"))
    sealed = late.read_bytes()
    with late.open("ab") as file:
        file.write(b'{"late":1}\n')
    plan = make_plan()
    write_payloads(root, take_name("h20", "dense", 1, plan), plan)
    write_crate(root, PROJECT, CONFIG, tmp_path / "out")
    assert (tmp_path / "out" / late.relative_to(tmp_path)).read_bytes() == sealed
    assert not (tmp_path / "out" / "results" / "events" / "h20").exists()
    assert faults(tmp_path / "out") == []


def test_the_workflow_is_its_rules(written: Path) -> None:
    """The main entity's steps are the Snakefile's rules, each with its command."""
    graph = read_graph(written)
    assert graph["./"]["mainEntity"] == {"@id": "Snakefile"}
    descriptions = {
        name.removeprefix("#step/"): entity["description"]
        for name, entity in graph.items()
        if entity["@type"] == "HowToStep"
    }
    rules = {rule: f"nearfree {command}" for rule, command in COMMANDS.items()}
    assert descriptions.items() <= rules.items()
    assert {"measure", "publish", "project", "figures", "ledger"} <= descriptions.keys()
    assert "environment" not in descriptions


def test_a_take_that_was_closed_early_failed(root: Layout, tmp_path: Path) -> None:
    """A partial take is a failed action with the requested command."""
    plan = make_plan(positions=(1, 2), rounds=9)
    take = OpenTake(root, take_name("h20", "dense", 1, plan), plan)
    take.start(make_started(plan))
    for number in range(3):
        for n in (1, 2):
            take.append(make_latency(number, n))
    take.writer.close()
    list(recover(root, str(take.name)))
    write_ledger(root, root.ledgers / "local", CONFIG)
    write_crate(root, PROJECT, CONFIG, tmp_path / "out")
    action = read_graph(tmp_path / "out")[f"#run/{take.name}"]
    assert action["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert action["error"] == "closed before its plan was done"
    assert action["description"] == make_started(plan).command
    assert len(action["result"]) == 3


def test_a_command_that_no_rule_gives_has_no_step(root: Layout, tmp_path: Path) -> None:
    """A command run by hand is an action of the program, not of a workflow step."""
    name = next(iter(read_chain(root.ledgers / "local")[-1].seals))
    target = f"{retract(root, name, 'the machine was busy').name}"
    write_ledger(root, root.ledgers / "local", CONFIG)
    for command in ("tables", "figures"):
        shutil.rmtree(root.root / command)
    write_crate(root, PROJECT, CONFIG, tmp_path / "out")
    graph = read_graph(tmp_path / "out")
    assert graph[f"#run/{target}"]["instrument"] == {"@id": "#nearfree"}
    assert {"@id": f"#run/{target}"} in graph["./"]["mentions"]
    controls = [entity["object"] for entity in graph.values() if entity["@type"] == "ControlAction"]
    controlled = [
        ref for control in controls for ref in (control if isinstance(control, list) else [control])
    ]
    assert controlled
    assert {"@id": f"#run/{target}"} not in controlled


def hostile(started: RunStarted) -> RunStarted:
    """Return a start of a run with hostile texts."""
    return structs.replace(
        started,
        command='nearfree measure "</script>\u202e../..',
        device="<script>alert(1)</script>" * 400,
        versions={"../../etc": "\u0000#'\"", "msgspec": "0.0.0"},
        host_label="#run/cpu",
    )


def test_hostile_texts_are_texts(
    root: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hostile texts of a run are kept unchanged, name no file, and leave the crate sound."""

    def evil(plan: Plan, attempt: int = 1) -> RunStarted:
        return hostile(make_started(plan, attempt))

    monkeypatch.setattr("conftest.make_started", evil)
    plan = make_plan()
    name = take_name("h20", "dense", 1, plan)
    write_payloads(root, name, plan)
    write_ledger(root, root.ledgers / "local", CONFIG)
    write_crate(root, PROJECT, CONFIG, tmp_path / "out")
    assert faults(tmp_path / "out") == []
    action = read_graph(tmp_path / "out")[f"#run/{name}"]
    assert action["description"] == evil(plan).command
    assert action["instrument"] == {"@id": "#tool/measure"}


def test_an_earlier_ledger_has_the_tables_of_its_time(root: Layout, tmp_path: Path) -> None:
    """An earlier ledger's crate holds the tables made again as of that ledger."""
    write_crate(root, PROJECT, CONFIG, tmp_path / "before", "1")
    again = root.root / "as_of" / "000001"
    for name in ("tables", "figures"):
        shutil.copytree(root.root / name, again / "results" / name)
    shutil.copytree(CONFIG, again / "config")
    write_study(root, "cpu", 2)
    write_ledger(root, root.ledgers / "local", CONFIG)
    for scope in ("cpu", "public"):
        make_tables(root, scope)
    write_crate(root, PROJECT, CONFIG, tmp_path / "after", "1")
    assert every_byte(tmp_path / "after") == every_byte(tmp_path / "before")
    (again / "other_code.txt").write_text("made by other code")
    assert "nearfree report --as-of 1" in refused(root, tmp_path / "out", name="1")


def test_a_tracked_ledger_has_a_crate(root: Layout, tmp_path: Path) -> None:
    """A tracked ledger is chosen by name, or if there is no other."""
    write_ledger(root, root.ledgers, CONFIG)
    write_crate(root, PROJECT, CONFIG, tmp_path / "named", "adopted:1")
    shutil.rmtree(root.ledgers / "local")
    write_crate(root, PROJECT, CONFIG, tmp_path / "newest")
    assert faults(tmp_path / "named") == []
    assert every_byte(tmp_path / "named") == every_byte(tmp_path / "newest")


def test_a_log_without_tables_has_a_crate(
    root: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without derived results a crate holds the log and its ledger, whatever code is installed."""
    monkeypatch.setattr("nearfree.prove.audit.ledgers.package_digest", lambda: "0" * 16)
    for name in ("tables", "figures"):
        (root.root / name).rename(tmp_path / name)
    write_crate(root, PROJECT, CONFIG, tmp_path / "out")
    assert faults(tmp_path / "out") == []
    assert not any(name.startswith("#derived/tables") for name in read_graph(tmp_path / "out"))
