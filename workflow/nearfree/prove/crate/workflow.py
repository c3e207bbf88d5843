"""The workflow as the crate's main entity: its steps, their tools, and what Snakemake ran."""

from nearfree.prove.crate.derived import WORKFLOW_RUN
from nearfree.prove.crate.graph import Entity, Graph, refs
from nearfree.prove.crate.runs import NEARFREE, tool_id
from nearfree.prove.crate.steps import SNAKEFILE, Step


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
