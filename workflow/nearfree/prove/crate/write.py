"""Write a crate: copy a ledger's evidence and results, then describe them.

Files are copied, never linked, since a link would change with its original.
"""

from pathlib import Path

from msgspec import Struct, json

from nearfree.errors import ConfigError, DamageError, WriteError
from nearfree.log.document import new_folder, walk
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.reader import read_bytes
from nearfree.log.verify import verify
from nearfree.prove.audit.ledgers import differences, find_ledger
from nearfree.prove.crate.derived_root import DERIVED, check_config, derived_root, newest_ledger
from nearfree.prove.crate.describe import describe
from nearfree.prove.crate.graph import METADATA, crate_layout, read_contents
from nearfree.prove.crate.runs import SNAKEFILE, plan_id, read_run

_REMEDY = "Run the workflow, which makes derived files and a ledger, then name that ledger"


class WrittenCrate(Struct, frozen=True):
    """A written crate: its ledger's name, and the numbers of its takes, files and bytes."""

    ledger: str
    takes: int
    files: int
    size: int
    other_code: str
    """The differences of the installed code from the ledger's; empty if there are none."""


def write_crate(
    layout: Layout, project: Path, config: Path, out: Path, name: str | None = None
) -> WrittenCrate:
    """Write the crate of a ledger into a new folder; the same ledger gives the same bytes.

    Parameters
    ----------
    project
        The folder with the Snakefile and its rules.
    config
        The config folder of the tables in `layout`.
    name
        The ledger's name, as in `find_ledger` (default: the newest of this machine).

    Raises
    ------
    EvidenceError
        There is no ledger, or derived files are not made from its takes and config.
    ConfigError
        There is no Snakefile, or the config holds the path of the home folder.
    DamageError
        A file that the ledger lists is missing.
    WriteError
        The crate's folder is not empty, or lies among the results.
    """
    named = find_ledger(layout, newest_ledger(layout) if name is None else name)
    ledger = named.ledger
    check_config(named)
    _check_place(layout, out)
    source = derived_root(layout, config, named)
    with new_folder(out) as folder:
        copied = crate_layout(folder)
        _copy_workflow(project, folder)
        for file, text in ledger.config.items():
            _put(folder / "config" / file, text.encode())
        for take in ledger.seals:
            _copy_take(layout, copied, take)
        for number in range(1, ledger.number + 1):  # a ledger and all ledgers before it
            path = Path("." if named.adopted else "local", f"{number:06}.json")
            _put(copied.ledgers / path, read_bytes(layout.ledgers / path))
        for kind in DERIVED:
            _copy_derived(source.root, copied.root, kind)
        _check_sound(copied, source)
        _put(folder / METADATA, describe(folder))
        contents = read_contents(folder)
    size = sum(file.size for file in contents.values())
    return WrittenCrate(named.name, len(ledger.seals), len(contents), size, differences(ledger))


def _check_sound(copied: Layout, original: Layout) -> None:
    for finding in verify(copied.root).findings:
        if not finding.notice:
            message = finding.message.replace(str(copied.root), str(original.root))
            raise DamageError(f"{original.root}/{finding.path}: {message}", remedy=_REMEDY)


def _check_place(layout: Layout, out: Path) -> None:
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise WriteError(f"{out} is not empty", remedy="Name a folder that is new or empty")
    if out.resolve().is_relative_to(layout.root.resolve()):
        raise WriteError(f"{out} is in {layout.root}", remedy="Name a folder outside of it")


def _copy_derived(root: Path, copied: Path, name: str) -> None:
    """Copy a folder's files, except those left by interrupted writes."""
    for path in walk(root / name) if (root / name).is_dir() else ():
        relative = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            _put(copied / relative, read_bytes(path))


def _copy_workflow(project: Path, folder: Path) -> None:
    paths = [project / SNAKEFILE, *sorted(project.glob("rules/*.smk"))]
    if not paths[0].is_file():
        raise ConfigError(f"{paths[0]} is not here", remedy="Run this in the folder of the project")
    for path in paths:
        _put(folder / path.relative_to(project), read_bytes(path))


def _copy_take(layout: Layout, copied: Layout, name: str) -> None:
    """Copy a take's seal, the sealed part of its segments, and its plan."""
    take = read_run(layout, name)
    for part in take.seal.segments:
        raw = read_bytes(layout.segment(take.name, part.attempt))[: part.bytes]
        _put(copied.segment(take.name, part.attempt), raw)
    _put(copied.seal(take.name), read_bytes(layout.seal(take.name)))
    plan = json.encode(take.started.data.plan, order="deterministic")
    if sha256(plan) != take.started.data.plan_digest:
        raise DamageError(f"the plan of {name} is not the one it names", remedy="Retract the take")
    _put(copied.root.parent / plan_id(name), plan)


def _put(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
