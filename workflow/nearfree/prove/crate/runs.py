"""The workflow, its runs and its derivations as entities: commands, software, outcomes.

Runs with the same software share one entity for it.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from nearfree.derive.stages import COMMANDS
from nearfree.errors import DamageError
from nearfree.log.events import RunFinished, RunStarted
from nearfree.log.evidence import Take, read_take
from nearfree.log.ledger import Ledger
from nearfree.log.line import sha256
from nearfree.log.names import Layout, parse_take
from nearfree.prove.crate.graph import RESULTS, Contents, Entity, Graph, file_id, refs

SNAKEFILE = "Snakefile"
NEARFREE = "#nearfree"
WORKFLOW_RUN = "#workflow-run"
_BY_SCOPE = ("tables", "figures")
_DERIVED = (*_BY_SCOPE, "report", "ledger")
COMPLETED = "http://schema.org/CompletedActionStatus"
_FAILED = "http://schema.org/FailedActionStatus"
_RUN_FIELDS = ("host_label", "device", "driver", "power_cap_w")
_SOFTWARE_FIELDS = ("commit", "dirty", "code_digest", "lock_sha256", "environment_sha256")


def rule_of(command: str) -> str | None:
    """Return the rule whose command a recorded command line is; None if there is no such rule.

    The longest match wins, since `import published` begins like `import`.
    """
    matches = [name for name in COMMANDS.values() if f"{command} ".startswith(f"nearfree {name} ")]
    longest = max(matches, key=len, default=None)
    return next((rule for rule, name in COMMANDS.items() if name == longest), None)


def plan_id(take: object) -> str:
    """Return the id of the file that holds a take's plan."""
    return f"plans/{take}.json"


def _tool_id(command: str) -> str:
    """Return the id of a command's tool: its first word, a subcommand of nearfree."""
    return f"#tool/{command.partition(' ')[0]}"


def read_run(layout: Layout, name: str) -> Take:
    """Return a sealed take with the start and end of its runs; DamageError without a start."""
    take = read_take(layout, parse_take(name), only=(RunFinished,))
    if not take.events_of(RunStarted):
        raise DamageError(f"{name} holds no start of a run", remedy="Restore it from a copy")
    return take


def main_run(take: Take) -> RunStarted:
    """Return the start of the take's last attempt, not of a command that only closed the take."""
    starts: list[RunStarted] = [event.data for event in take.events_of(RunStarted)]
    return [start for start in starts if start.command == starts[0].command][-1]


def add_run(graph: Graph, layout: Layout, take: Take, rule: str | None) -> Entity:
    """Add the action of one sealed take; without a rule the command was run by hand."""
    started = main_run(take)
    first, *_ = take.events_of(RunStarted)
    ended = take.events_of(RunFinished)
    partial = take.seal.outcome == "partial"
    name = f"#run/{take.name}"
    software = {field: getattr(started, field) for field in _SOFTWARE_FIELDS}
    paths = [layout.segment(take.name, part.attempt) for part in take.seal.segments]
    crate_folder = layout.root.parent
    return graph.add(
        name,
        "CreateAction",
        name=f"{take.name.stream} of {take.name.scope}, take {take.name.take}",
        description=started.command,
        startTime=first.time,
        endTime=ended[-1].time if ended else None,
        actionStatus=_FAILED if partial else COMPLETED,
        error="closed before its plan was done" if partial else None,
        agent=_add_software(graph, {"python": started.python} | started.versions, software),
        instrument={"@id": _tool_id(COMMANDS[rule]) if rule else NEARFREE},
        object=refs([plan_id(take.name)]),
        result=refs(
            file_id(path.relative_to(crate_folder)) for path in (*paths, layout.seal(take.name))
        ),
        additionalProperty=graph.facts(name, _run_facts(started)),
    )


def _run_facts(started: RunStarted) -> dict[str, object]:
    facts: dict[str, object] = {name: getattr(started, name) for name in _RUN_FIELDS}
    facts |= {f"clock_{name}_mhz": mhz for name, mhz in sorted((started.clocks_mhz or {}).items())}
    if started.scheduler:
        scheduler: dict[str, Any] = msgspec.to_builtins(started.scheduler)
        facts |= {f"scheduler_{name}": value for name, value in scheduler.items()}
    return facts | {"attempt": started.attempt}


def _add_software(graph: Graph, packages: Mapping[str, str], facts: Mapping[str, object]) -> Entity:
    """Add an entity of nearfree with its version, packages and facts.

    The id is a digest of these, so that equal software is one entity.
    """
    others = {name: packages[name] for name in sorted(packages) if name != "nearfree"}
    content = msgspec.json.encode([packages, facts], order="deterministic")
    name = f"#software/{sha256(content)[:12]}"
    return graph.add(
        name,
        "SoftwareApplication",
        name="nearfree",
        softwareVersion=packages.get("nearfree"),
        softwareRequirements=[_package(graph, *package) for package in others.items()],
        additionalProperty=graph.facts(name, facts),
    )


def _package(graph: Graph, name: str, version: str) -> Entity:
    return graph.add(
        f"#package/{quote(name, safe='')}/{quote(version, safe='')}",
        "SoftwareApplication",
        name=name,
        softwareVersion=version,
    )


def add_derivations(
    graph: Graph, ledger: Ledger, files: Mapping[str, Contents]
) -> dict[str, list[Entity]]:
    """Add the actions of each subcommand that derives files, and that of the whole workflow.

    Return references to the actions, by subcommand.
    """
    derived = _derived_files(files)
    tables = [
        file for (tool, _), results in derived.items() if tool == "tables" for file in results
    ]
    seals = [file for file in files if file.endswith(".seal.json")]
    config = [file for file in files if file.startswith("config/")]
    inputs = {"tables": seals, "figures": tables, "report": tables, "ledger": [*seals, *config]}
    agent = _add_software(graph, ledger.libraries, {"code_digest": ledger.code_digest})
    actions: dict[str, list[Entity]] = defaultdict(list)
    for (tool, scope), results in derived.items():
        action = graph.add(
            f"#derived/{tool}/{scope}" if scope else f"#derived/{tool}",
            "CreateAction",
            name=f"{tool} of {scope or 'all scopes'}",
            description=f"nearfree {tool}",
            endTime=ledger.time if tool == "ledger" else None,
            actionStatus=COMPLETED,
            agent=agent,
            instrument={"@id": _tool_id(tool)},
            object=refs(inputs[tool]),
            result=refs(results),
        )
        actions[tool].append(action)
    starts = [entity["startTime"] for entity in graph.entities.values() if "startTime" in entity]
    graph.add(
        WORKFLOW_RUN,
        "CreateAction",
        name=f"from the log to ledger {ledger.number}",
        description="snakemake",
        startTime=min(starts, default=None),
        endTime=ledger.time,
        actionStatus=COMPLETED,
        agent=agent,
        instrument={"@id": SNAKEFILE},
        object=refs([*config, *seals]),
        result=refs(file for results in derived.values() for file in results),
    )
    return actions


def _derived_files(files: Mapping[str, Contents]) -> dict[tuple[str, str], list[str]]:
    """Return the derived files by subcommand and scope; the scope is empty for all scopes."""
    derived: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in files:
        top, *parts = file.split("/")
        if top == RESULTS and parts[0] in _DERIVED:
            scope = parts[1] if parts[0] in _BY_SCOPE and len(parts) > 2 else ""
            derived[parts[0], scope].append(file)
    return derived


def add_workflow(graph: Graph, actions_by_rule: Mapping[str, list[Entity]]) -> None:
    """Add the workflow, a step with its actions per executed rule, and the orchestration."""
    tools = {rule: _tool_id(COMMANDS[rule]) for rule in actions_by_rule}
    for number, (rule, actions) in enumerate(actions_by_rule.items(), start=1):
        command = f"nearfree {COMMANDS[rule]}"
        tool = " ".join(command.split(" ")[:2])
        graph.add(
            f"#step/{rule}",
            "HowToStep",
            name=rule,
            description=command,
            position=str(number),
            workExample=graph.add(tools[rule], "SoftwareApplication", name=tool),
        )
        graph.add(
            f"#control/{rule}",
            "ControlAction",
            name=f"runs of {rule}",
            instrument={"@id": f"#step/{rule}"},
            object=actions,
        )
    graph.add(
        "#orchestration",
        "OrganizeAction",
        name="what Snakemake ran",
        instrument=graph.add("#snakemake", "SoftwareApplication", name="Snakemake"),
        object=graph.of_type("ControlAction"),
        result={"@id": WORKFLOW_RUN},
    )
    graph.add(NEARFREE, "SoftwareApplication", name="nearfree")
    graph.add(
        SNAKEFILE,
        ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        name="nearfree's workflow: observe, derive, draw, report",
        programmingLanguage=graph.add(
            "#snakemake-language",
            "ComputerLanguage",
            name="Snakemake",
            url="https://snakemake.github.io",
        ),
        hasPart=refs(dict.fromkeys(tools.values())),
        step=graph.of_type("HowToStep"),
    )
