"""The results of an earlier ledger, recomputed under `results/as_of/`."""

from pathlib import Path

from nearfree.errors import ConfigError, WriteError
from nearfree.log.document import new_folder, replace
from nearfree.log.names import Layout
from nearfree.prove.audit.ledgers import NamedLedger, differences
from nearfree.prove.audit.rebuild import make_all
from nearfree.prove.audit.restore import RestoredPipeline, restore
from nearfree.show.page.stage import report_of

FOLDER = "as_of"
"""The folder of a results root that holds recomputed results."""
NOTE = "other_code.txt"
"""The file beside them that says so if other code made them."""


def as_of(
    log: Layout, named: NamedLedger, *, other_code: bool = False
) -> tuple[RestoredPipeline, str]:
    """Recompute the tables, figures and report of a ledger, and return their pipeline.

    Earlier results stay until all new ones are complete.

    Parameters
    ----------
    other_code
        Continue if code or libraries are not the ledger's, so that numbers may differ.

    Returns
    -------
    tuple
        The pipeline, and a sentence to show beside the results if they are not.

    Raises
    ------
    ConfigError
        They are not and `other_code` is false, or the config does not fit this code.
    WriteError
        The folder is a link, whose target is not replaced.
    """
    mismatch = differences(named.ledger)
    if mismatch and not other_code:
        raise ConfigError(
            f"ledger {named.name} was written by other code or libraries: {mismatch}",
            remedy="Install what it was written by, or give --other-code",
        )
    into = log.root / FOLDER / named.folder
    for path in (into.parent, into):
        _check_folder(path)
    note = ""
    with new_folder(into) as folder:
        pipeline = restore(log, named, folder)
        if mismatch:
            note = (
                f"These are the takes and the config of ledger {named.name}, "
                f"made by other code or libraries, so numbers may differ from those of that time: "
                f"{mismatch}."
            )
            replace(folder / NOTE, f"{note}\n".encode())
        make_all(pipeline, figures=True)
        report_of(pipeline)
    return RestoredPipeline(into / "results", into / "config"), note


def _check_folder(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise WriteError(f"{path} is a link or no folder", remedy="Move it away")
