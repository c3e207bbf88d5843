"""The results of an earlier ledger, made again under `results/as_of/`."""

from pathlib import Path

from nearfree.errors import ConfigError, WriteError
from nearfree.log.document import new_folder, replace
from nearfree.log.names import Layout
from nearfree.prove.audit.ledgers import Named, differences
from nearfree.prove.audit.rebuild import make_all
from nearfree.prove.audit.restore import Past, put_back
from nearfree.show.page.whole import report_of

FOLDER = "as_of"
"""The folder of a results root that holds what was made again."""
NOTE = "other_code.txt"
"""The file beside it that says so if other code made it."""


def as_of(log: Layout, named: Named, *, other_code: bool = False) -> tuple[Past, str]:
    """Make the tables, figures and report of a ledger again, and return their pipeline.

    What was made before stays until all is there.

    Parameters
    ----------
    other_code
        Whether to go on if code or libraries are not the ledger's, so that numbers may differ.

    Returns
    -------
    tuple
        The pipeline, and a sentence that has to stand beside the results if they are not.

    Raises
    ------
    ConfigError
        They are not, and nobody asked to go on; or the config does not fit this code.
    WriteError
        The folder is a link: what it leads to is not replaced.
    """
    found = differences(named.ledger)
    if found and not other_code:
        raise ConfigError(
            f"ledger {named.name} was written by other code or libraries: {found}",
            remedy="Install what it was written by, or give --other-code",
        )
    into = log.root / FOLDER / named.folder
    for path in (into.parent, into):
        _check_folder(path)
    note = ""
    with new_folder(into) as folder:
        pipeline = put_back(log, named, folder)
        if found:
            note = (
                f"These are the takes and the config of ledger {named.name}, "
                f"made by other code or libraries, so numbers may differ from those of that time: "
                f"{found}."
            )
            replace(folder / NOTE, f"{note}\n".encode())
        make_all(pipeline, figures=True)
        report_of(pipeline)
    return Past(into / "results", into / "config"), note


def _check_folder(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise WriteError(f"{path} is a link or no folder", remedy="Move it away")
