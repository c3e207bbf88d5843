"""The content of a crate: a ledger, and the root with tables and figures made from its takes."""

import tempfile
from functools import cache
from pathlib import Path

from msgspec import Struct

from nearfree.decoders.config_file import decoder_names
from nearfree.decoders.model_file import find_model_file
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.document import (
    FOLDER_MANIFEST,
    MANIFEST_SUFFIX,
    Manifest,
    manifest_path,
    read_document,
)
from nearfree.log.ledger import Ledger, config_texts, ledger_paths, seals_root
from nearfree.log.line import holds_home, sha256
from nearfree.log.names import Layout
from nearfree.log.reader import read_bytes
from nearfree.prove.audit.ledgers import (
    ADOPTED,
    NamedLedger,
    check_names,
    differences,
    restored_config,
)
from nearfree.prove.crate.graph import RESULTS, ledger_folder

CONFIG = "config/"
"""Prefix of config entries in manifests."""


def config_digests(ledger: Ledger) -> dict[str, set[str]]:
    """Return the possible digests of each entry of a ledger's config in a manifest.

    There are several for the tolerances: a table depends on all, on the headline one, or on both.

    Raises
    ------
    ConfigError
        The config does not fit this code.
    DamageError
        A config file has an invalid name.
    """
    from nearfree.derive.outlook.about import model_id
    from nearfree.derive.tables.platforms import config_id
    from nearfree.derive.tables.store import tolerances_digest

    with (
        tempfile.TemporaryDirectory() as folder,
        restored_config(ledger, f"{ledger.number}", Path(folder)) as config,
    ):
        site = config.site
        ids = [config_id(*platform) for platform in config.platforms.items()]
        names = decoder_names(config.folder)
        ids += [model_id(find_model_file(config.folder, name)) for name in names]
    digests = {
        name: {digest} for name, _, digest in (config_part.rpartition("@") for config_part in ids)
    }
    digests["config/config.yaml:epsilon"] = {sha256(repr(site.epsilon).encode())}
    for tolerances in (site.tolerances, [site.epsilon, *site.tolerances], [site.epsilon]):
        for name, digest in tolerances_digest(tolerances).items():
            digests.setdefault(name, set()).add(digest)
    return digests


DERIVED = ("tables", "figures", "report")
"""The folders of a root that are derived from its log."""


class _ManifestFields(Struct, frozen=True):
    """The fields to read from the manifests of tables, figures and the report."""

    made_from: dict[str, str] = {}
    files: dict[str, str] = {}


def newest_ledger(layout: Layout) -> str:
    """Return the name of the newest ledger: this machine's own, or else a tracked one."""
    folder = ledger_folder(layout)
    number = len(ledger_paths(folder))
    if number == 0:
        raise EvidenceError(
            f"{folder} holds no ledger", remedy="Run the workflow, or `nearfree ledger`"
        )
    return f"{number}" if folder != layout.ledgers else f"{ADOPTED}{number}"


def check_config(named: NamedLedger) -> None:
    """Refuse a ledger whose config has files outside its folder, or the home folder's path."""
    check_names(named.ledger)
    for name, text in named.ledger.config.items():
        if holds_home(text):
            raise ConfigError(
                f"config/{name} of ledger {named.name} holds the path of your home folder",
                remedy="Remove the path, write a new ledger, and make the crate of that ledger",
            )


def derived_root(layout: Layout, config: Path, named: NamedLedger) -> Layout:
    """Return the root whose tables are made from a ledger: `layout`, or the ledger's `as_of`."""
    mismatch = _mismatch_here(layout, config, named.ledger)
    if not mismatch:
        return layout
    from nearfree.prove.audit.restore import FOLDER, NOTE

    as_of = layout.root / FOLDER / named.folder
    if as_of.is_dir() and not (as_of / NOTE).exists():
        root, ledger = Layout(as_of / RESULTS), named.ledger
        if not (_config_mismatch(as_of / "config", ledger) or find_mismatch(root, ledger)):
            return root
    raise EvidenceError(
        f"{mismatch} than ledger {named.name} records",
        remedy="Run the workflow and take its newest ledger, or make this one's tables by the code "
        f"that wrote it: nearfree report --as-of {named.name}",
    )


def _mismatch_here(layout: Layout, config: Path, ledger: Ledger) -> str | None:
    """Return the first difference of derived files, config or code from a ledger's, or None."""
    if not any((layout.root / name).is_dir() for name in DERIVED):
        return None
    if mismatch := find_mismatch(layout, ledger) or _config_mismatch(config, ledger):
        return mismatch
    code_differences = differences(ledger)
    return (
        f"there are other code or libraries installed ({code_differences})"
        if code_differences
        else None
    )


def _config_mismatch(config: Path, ledger: Ledger) -> str | None:
    texts = config_texts(config)
    for name in sorted({*texts, *ledger.config}):
        if texts.get(name) != ledger.config.get(name):
            return f"{config / name} is other"
    return None


def find_mismatch(layout: Layout, ledger: Ledger) -> str | None:
    """Return a text on the first file made from other inputs than a ledger's, or None.

    Inputs are seals, config, tables and figures, as manifests record them. Manifests are trusted
    here; recomputing the tables checks more.
    """
    root = layout.root
    digests_of_config = cache(lambda: config_digests(ledger))
    tables = sorted(root.glob(f"tables/*/*{MANIFEST_SUFFIX}"))
    for path in (*tables, *sorted(root.glob("figures/*/figures.json"))):
        for name, sha in read_document(path, _ManifestFields).made_from.items():
            if name.startswith(CONFIG):
                matches = sha in digests_of_config().get(name, ())
            else:
                matches = sha == _input_digest(root, ledger, path.parent, name, sha)
            if not matches:
                return f"{path} is made from other {name}"
    report = root / "report" / FOLDER_MANIFEST
    reported_files = read_document(report, _ManifestFields).files if report.is_file() else {}
    for name in (name for name in reported_files if name.startswith("figures/")):
        if (root / name).is_file() and reported_files[name] != sha256(read_bytes(root / name)):
            return f"{report} shows another {name}"
    return None


def _input_digest(root: Path, ledger: Ledger, folder: Path, name: str, recorded: str) -> str:
    """Return the digest of an input by its name in manifests; `recorded` if it is not a file.

    A table is `tables/SCOPE/NAME`, or NAME alone beside the file that is made from it; a table that
    is not there has the digest of none.
    """
    kind, _, scope = name.partition("/")
    if kind == "events":
        return seals_root(
            {take: digest for take, digest in ledger.seals.items() if take.startswith(f"{scope}/")}
        )
    manifest = manifest_path((root if kind == "tables" else folder) / f"{name}.parquet")
    if manifest.is_file():
        return read_document(manifest, Manifest).sha256
    return "" if kind in ("tables", name) else recorded
