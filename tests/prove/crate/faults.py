"""Faults of a crate, one change each, with who must reject it and the reason."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import make_plan, write_payloads
from msgspec import Struct, json
from nearfree.log.take import take_name
from nearfree.prove.crate.graph import METADATA, crate_layout, read_contents

Graph = dict[str, dict[str, Any]]
Harm = Callable[[Path], None]
SEGMENT = "results/events/cpu/dense_ffn"


class Fault(Struct, frozen=True):
    """One fault: how it is made, and what the validator and `--verify` say of it.

    None stands for a tool that cannot see it.
    """

    name: str
    harm: Harm
    validator: str | None
    verify: str | None


def read_graph(crate: Path) -> Graph:
    """Return a crate's entities by id."""
    return {
        entity["@id"]: entity for entity in json.decode((crate / METADATA).read_bytes())["@graph"]
    }


def write_graph(crate: Path, graph: Graph) -> None:
    """Write entities as a crate's metadata."""
    document = json.decode((crate / METADATA).read_bytes())
    document["@graph"] = list(graph.values())
    (crate / METADATA).write_bytes(json.encode(document))


def edited(change: Callable[[Graph], object]) -> Harm:
    """Return a fault that changes the metadata only."""

    def harm(crate: Path) -> None:
        graph = read_graph(crate)
        change(graph)
        write_graph(crate, graph)

    return harm


def run_of(graph: Graph) -> dict[str, Any]:
    """Return the action of one measured take."""
    runs = (entity for entity in graph.values() if entity["@type"] == "CreateAction")
    return next(run for run in runs if run["@id"].startswith("#run/cpu/dense_ffn"))


def segment(crate: Path) -> Path:
    """Return the file of one segment."""
    return next((crate / SEGMENT).glob("*.jsonl"))


def _conforms_less(graph: Graph) -> None:
    profiles = graph["./"]["conformsTo"]
    graph["./"]["conformsTo"] = [
        profile for profile in profiles if "provenance" not in profile["@id"]
    ]


def _refer_to_nothing(graph: Graph) -> None:
    run_of(graph)["result"].append({"@id": "results/events/cpu/dense_ffn/gone.jsonl"})


def _flip(crate: Path) -> None:
    raw = bytearray(segment(crate).read_bytes())
    raw[len(raw) // 2] ^= 1
    segment(crate).write_bytes(raw)


def _wrong_size(graph: Graph) -> None:
    graph["config/config.yaml"]["contentSize"] = "1"


def _other_seal(crate: Path) -> None:
    """Add a sound take that the ledger does not list, and describe its files."""
    layout, plan = crate_layout(crate), make_plan()
    before = read_contents(crate)
    write_payloads(layout, take_name("h20", "dense", 1, plan), plan)
    shutil.rmtree(layout.state)
    graph = read_graph(crate)
    for name, content in read_contents(crate).items() - before.items():
        sizes = {"contentSize": str(content.size), "sha256": content.sha256}
        graph[name] = {"@id": name, "@type": "File"} | sizes
        graph["./"]["hasPart"].append({"@id": name})
    write_graph(crate, graph)


def _escape(graph: Graph) -> None:
    graph["../../etc/passwd"] = {"@id": "../../etc/passwd", "@type": "File", "name": "passwd"}
    graph["./"]["hasPart"].append({"@id": "../../etc/passwd"})


def _add_file(crate: Path) -> None:
    (crate / "results" / "tables" / "cpu" / "more.parquet").write_bytes(b"PAR1")


def _link(crate: Path) -> None:
    path = crate / "config" / "config.yaml"
    path.rename(crate.parent / "config.yaml")
    path.symlink_to(crate.parent / "config.yaml")


def _other_time(graph: Graph) -> None:
    run_of(graph)["startTime"] = "2020-01-01T00:00:00Z"


_OTHERWISE = "otherwise than its log"
FAULTS = (
    Fault(
        "no main entity",
        edited(lambda graph: graph["./"].pop("mainEntity")),
        "must be specified through a `mainEntity`",
        _OTHERWISE,
    ),
    Fault(
        "no profile", edited(_conforms_less), "permalink of the Provenance Run Crate", _OTHERWISE
    ),
    Fault(
        "no licence",
        edited(lambda graph: graph["./"].pop("license")),
        "must specify a license",
        _OTHERWISE,
    ),
    Fault(
        "no date",
        edited(lambda graph: graph["./"].pop("datePublished")),
        "MUST have a `datePublished`",
        _OTHERWISE,
    ),
    Fault(
        "an action without instrument",
        edited(lambda graph: run_of(graph).pop("instrument")),
        "MUST have an instrument",
        _OTHERWISE,
    ),
    Fault(
        "no language",
        edited(lambda graph: graph["Snakefile"].pop("programmingLanguage")),
        "refer to its language via programmingLanguage",
        _OTHERWISE,
    ),
    Fault(
        "a step without tool",
        edited(lambda graph: graph["#step/measure"].pop("workExample")),
        "corresponding tool via workExample",
        _OTHERWISE,
    ),
    Fault(
        "an order without result",
        edited(lambda graph: graph["#orchestration"].pop("result")),
        "action representing the workflow run via result",
        _OTHERWISE,
    ),
    Fault(
        "a control without run",
        edited(lambda graph: graph["#control/measure"].pop("object")),
        "corresponding tool run via object",
        _OTHERWISE,
    ),
    Fault(
        "a file that is gone",
        lambda crate: segment(crate).unlink(),
        "dense_ffn",
        "is not there",
    ),
    Fault(
        "an action without agent",
        edited(lambda graph: run_of(graph).pop("agent")),
        None,
        _OTHERWISE,
    ),
    Fault("a result that is nothing", edited(_refer_to_nothing), None, _OTHERWISE),
    Fault("a changed bit", _flip, None, "has other bytes than described"),
    Fault("a wrong size", edited(_wrong_size), None, _OTHERWISE),
    Fault("a file too much", _add_file, None, "more.parquet is not described"),
    Fault("a seal that is not listed", _other_seal, None, "is not a seal of ledger 1"),
    Fault("a path that leads out", edited(_escape), "../../etc/passwd", "passwd is not there"),
    Fault("a link", _link, None, "is a link or no plain file"),
    Fault("another time", edited(_other_time), None, _OTHERWISE),
)
