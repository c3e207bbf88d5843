"""The workflow's steps and the runs of a ledger's takes as actions: command, software, outcome.

The software of a run is an entity of its own, shared by all runs with the same software.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from nearfree.core.plan import Plan
from nearfree.derive.stages import COMMANDS
from nearfree.errors import DamageError
from nearfree.log.events import RunFinished, RunStarted
from nearfree.log.evidence import Take, read_take
from nearfree.log.ledger import Ledger
from nearfree.log.line import sha256
from nearfree.log.names import Layout, parse_take
from nearfree.prove.crate.graph import Entity, Graph, file_id, refs

SNAKEFILE = "Snakefile"
NEARFREE = "#nearfree"
COMPLETED = "http://schema.org/CompletedActionStatus"
_FAILED = "http://schema.org/FailedActionStatus"
_ON_THE_RUN = ("host_label", "device", "driver", "power_cap_w")
_ON_SOFTWARE = ("commit", "dirty", "code_digest", "lock_sha256", "environment_sha256")


class Step(Struct, frozen=True):
    """A rule, and the words of its command that are always the same."""

    rule: str
    command: str

    @property
    def tool(self) -> str:
        """The subcommand that does the work."""
        return self.command.partition(" ")[0]

    def ran(self, command: str) -> bool:
        """Say whether a recorded command line is one of this step's."""
        return f"{command} ".startswith(f"nearfree {self.command} ")


STEPS = tuple(Step(rule, command) for rule, command in COMMANDS.items())
"""Every step, in the order of the rules."""


def step_of(command: str) -> Step | None:
    """Return the step that a recorded command line is of, None where no rule has that command.

    `import published` is an `import`, too: the longest command is meant.
    """
    fitting = [step for step in STEPS if step.ran(command)]
    return max(fitting, key=lambda step: len(step.command), default=None)


def plan_id(take: object) -> str:
    """Return the id of the file that holds a take's plan."""
    return f"plans/{take}.json"


def plan_bytes(plan: Plan) -> bytes:
    """Return a plan's canonical JSON, whose digest names its take."""
    return msgspec.json.encode(plan, order="deterministic")


def tool_id(tool: str) -> str:
    """Return the id of a subcommand as a tool of the workflow."""
    return f"#tool/{tool}"


def read_run(layout: Layout, name: str) -> Take:
    """Return a sealed take with the start and end of its runs; DamageError without a start."""
    take = read_take(layout, parse_take(name), only=(RunFinished,))
    if not take.of(RunStarted):
        raise DamageError(f"{name} does not say who ran it", remedy="Restore it from a copy")
    return take


def main_run(take: Take) -> RunStarted:
    """Return the start of the take's last attempt, not that of a command which closed it."""
    starts: list[RunStarted] = [event.data for event in take.of(RunStarted)]
    return [start for start in starts if start.command == starts[0].command][-1]


def add_run(graph: Graph, layout: Layout, take: Take, step: Step | None) -> Entity:
    """Add the action of one sealed take; without a step the command was given by hand."""
    started = main_run(take)
    first, *_ = take.of(RunStarted)
    ended = take.of(RunFinished)
    partial = take.seal.outcome == "partial"
    name = f"#run/{take.name}"
    paths = [layout.segment(take.name, part.attempt) for part in take.seal.segments]
    above = layout.root.parent
    return graph.add(
        name,
        "CreateAction",
        name=f"{take.name.stream} of {take.name.scope}, take {take.name.take}",
        description=started.command,
        startTime=first.time,
        endTime=ended[-1].time if ended else None,
        actionStatus=_FAILED if partial else COMPLETED,
        error="closed before its plan was done" if partial else None,
        agent=_software(graph, started),
        instrument={"@id": tool_id(step.tool) if step else NEARFREE},
        object=refs([plan_id(take.name)]),
        result=refs(file_id(path.relative_to(above)) for path in (*paths, layout.seal(take.name))),
        additionalProperty=graph.facts(name, _on_the_run(started)),
    )


def _on_the_run(started: RunStarted) -> dict[str, object]:
    facts: dict[str, object] = {name: getattr(started, name) for name in _ON_THE_RUN}
    facts |= {f"clock_{name}_mhz": mhz for name, mhz in sorted((started.clocks_mhz or {}).items())}
    if started.scheduler:
        scheduler: dict[str, Any] = msgspec.to_builtins(started.scheduler)
        facts |= {f"scheduler_{name}": value for name, value in scheduler.items()}
    return facts | {"attempt": started.attempt}


def _software(graph: Graph, started: RunStarted) -> Entity:
    packages = {"python": started.python} | started.versions
    facts = {name: getattr(started, name) for name in _ON_SOFTWARE}
    return _add_software(graph, packages, facts)


def deriving_software(graph: Graph, ledger: Ledger) -> Entity:
    """Add the software that made a ledger's tables and figures."""
    return _add_software(graph, ledger.libraries, {"code_digest": ledger.code_digest})


def _add_software(graph: Graph, packages: Mapping[str, str], facts: Mapping[str, object]) -> Entity:
    """Add nearfree with its version then, its packages and its facts.

    The id is a digest of these, so that equal software is one entity.
    """
    others = {name: packages[name] for name in sorted(packages) if name != "nearfree"}
    known = msgspec.json.encode([packages, facts], order="deterministic")
    name = f"#software/{sha256(known)[:12]}"
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
