"""The workflow as the crate's main entity, and its derivations as actions."""

from collections import defaultdict
from collections.abc import Mapping

from nearfree.log.ledger import Ledger
from nearfree.prove.crate.graph import RESULTS, Contents, Entity, Graph, refs
from nearfree.prove.crate.runs import (
    COMPLETED,
    NEARFREE,
    SNAKEFILE,
    Step,
    deriving_software,
    tool_id,
)

WORKFLOW_RUN = "#workflow-run"
_BY_SCOPE = ("tables", "figures")
_DERIVED = (*_BY_SCOPE, "report", "ledger")


def add_derivations(
    graph: Graph, ledger: Ledger, files: Mapping[str, Contents]
) -> dict[str, list[Entity]]:
    """Add the actions of each deriving subcommand, and that of the whole workflow.

    Returns
    -------
    dict
        References to the actions, by subcommand.
    """
    made = _derived(files)
    tables = [file for (tool, _), results in made.items() if tool == "tables" for file in results]
    seals = [file for file in files if file.endswith(".seal.json")]
    needed = {
        "tables": seals,
        "figures": tables,
        "report": tables,
        "ledger": [*seals, *_config(files)],
    }
    agent = deriving_software(graph, ledger)
    actions: dict[str, list[Entity]] = defaultdict(list)
    for (tool, scope), results in made.items():
        action = graph.add(
            f"#derived/{tool}/{scope}" if scope else f"#derived/{tool}",
            "CreateAction",
            name=f"{tool} of {scope or 'all scopes'}",
            description=f"nearfree {tool}",
            endTime=ledger.time if tool == "ledger" else None,
            actionStatus=COMPLETED,
            agent=agent,
            instrument={"@id": tool_id(tool)},
            object=refs(needed[tool]),
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
        object=refs([*_config(files), *seals]),
        result=refs(file for results in made.values() for file in results),
    )
    return actions


def _config(files: Mapping[str, Contents]) -> list[str]:
    return [file for file in files if file.startswith("config/")]


def _derived(files: Mapping[str, Contents]) -> dict[tuple[str, str], list[str]]:
    """Return the derived files by subcommand and scope; no scope stands for all of them."""
    made: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in files:
        below, *parts = file.split("/")
        if below == RESULTS and parts[0] in _DERIVED:
            scope = parts[1] if parts[0] in _BY_SCOPE and len(parts) > 2 else ""
            made[parts[0], scope].append(file)
    return made


def add_workflow(graph: Graph, ran: list[tuple[Step, list[Entity]]]) -> None:
    """Add the workflow, its executed steps with their actions, and their orchestration."""
    for number, (step, actions) in enumerate(ran, start=1):
        _add_step(graph, number, step)
        graph.add(
            f"#control/{step.rule}",
            "ControlAction",
            name=f"runs of {step.rule}",
            instrument={"@id": f"#step/{step.rule}"},
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
        hasPart=refs(dict.fromkeys(tool_id(step.tool) for step, _ in ran)),
        step=graph.of_type("HowToStep"),
    )


def _add_step(graph: Graph, number: int, step: Step) -> None:
    tool = graph.add(
        tool_id(step.tool),
        "SoftwareApplication",
        name=f"nearfree {step.tool}",
    )
    graph.add(
        f"#step/{step.rule}",
        "HowToStep",
        name=step.rule,
        description=f"nearfree {step.command}",
        position=str(number),
        workExample=tool,
    )
