"""A crate's metadata, a pure function of the files in its folder."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from nearfree.derive.stages import COMMANDS
from nearfree.errors import DamageError
from nearfree.log.evidence import Take
from nearfree.log.ledger import Ledger, read_chain
from nearfree.log.line import sha256
from nearfree.prove.crate.graph import (
    METADATA,
    Contents,
    Entity,
    Graph,
    crate_layout,
    file_id,
    ledger_folder,
    read_contents,
    refs,
)
from nearfree.prove.crate.runs import (
    SNAKEFILE,
    add_derivations,
    add_run,
    add_workflow,
    main_run,
    plan_id,
    read_run,
    rule_of,
)

ROOT = "./"
LICENCE = "https://spdx.org/licenses/Apache-2.0"
_RO_CRATE = "https://w3id.org/ro/crate/1.1"
_WORKFLOW = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    _WORKFLOW: "Workflow RO-Crate",
}
_MEDIA_TYPES = {
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
}


def describe(folder: Path) -> bytes:
    """Return the metadata of the crate in a folder.

    Raises
    ------
    DamageError
        A config file or a plan differs from what the ledger or a take records.
    """
    files = read_contents(folder)
    layout = crate_layout(folder)
    ledger = read_chain(ledger_folder(layout))[-1]
    takes = [read_run(layout, name) for name in ledger.seals]
    for name, sha in _recorded_files(ledger, takes):
        if name not in files or files[name].sha256 != sha:
            raise DamageError(
                f"{name} is not the one that ledger {ledger.number} holds",
                remedy="Write the crate again",
            )
    graph = Graph()
    _add_root(graph, ledger, files)
    by_rule: dict[str, list[Entity]] = defaultdict(list)
    for take in takes:
        rule = rule_of(main_run(take).command)
        action = add_run(graph, layout, take, rule)
        if rule:
            by_rule[rule].append(action)
    derivations = add_derivations(graph, ledger, files)
    for rule, command in COMMANDS.items():
        tool = command.partition(" ")[0]
        if tool in derivations:
            by_rule[rule] += derivations[tool]
    add_workflow(graph, {rule: by_rule[rule] for rule in COMMANDS if rule in by_rule})
    graph.entities[ROOT]["mentions"] = [
        *graph.of_type("OrganizeAction"),
        *graph.of_type("CreateAction"),
    ]
    _add_files(graph, files)
    return graph.render()


def _recorded_files(ledger: Ledger, takes: list[Take]) -> Iterator[tuple[str, str]]:
    """Yield id and SHA-256 of each config file in the ledger and of each take's plan."""
    for name, text in ledger.config.items():
        yield file_id(PurePosixPath("config", name)), sha256(text.encode())
    for take in takes:
        yield plan_id(take.name), take.started.data.plan_digest


def _add_root(graph: Graph, ledger: Ledger, files: Mapping[str, Contents]) -> None:
    graph.add(
        METADATA,
        "CreativeWork",
        about={"@id": ROOT},
        conformsTo=refs([_RO_CRATE, _WORKFLOW]),
    )
    graph.add(
        ROOT,
        "Dataset",
        name=f"nearfree, ledger {ledger.number}",
        description=(
            "Measured, imported and published latencies of decode forwards over the number of "
            "positions, the near-free boundaries that follow from them, and how each was made. "
            f"Ledger {ledger.number} lists {len(ledger.seals)} takes; its root is {ledger.root}."
        ),
        datePublished=ledger.time,
        license={"@id": LICENCE},
        conformsTo=refs(PROFILES),
        mainEntity={"@id": SNAKEFILE},
        hasPart=refs(files),
    )
    for profile, name in PROFILES.items():
        version = profile.rpartition("/")[2]
        graph.add(profile, "CreativeWork", name=name, version=version)
    graph.add(LICENCE, "CreativeWork", name="Apache License 2.0", identifier="Apache-2.0")


def _add_files(graph: Graph, files: Mapping[str, Contents]) -> None:
    for name, contents in files.items():
        graph.add(name, "File", name=PurePosixPath(name).name)
        graph.entities[name] |= {
            "contentSize": str(contents.size),
            "encodingFormat": _MEDIA_TYPES.get(PurePosixPath(name).suffix, "text/plain"),
            "sha256": contents.sha256,
        }
