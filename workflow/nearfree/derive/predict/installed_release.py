"""Which release ran: the version of a backend's package that a take's run put on record."""

from collections.abc import Iterable, Mapping

import polars as pl

from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.log.evidence import Take

_PACKAGES = {adapter.backend: adapter.package.replace("_", "-") for adapter in ADAPTERS}


def release_of(backend: str, versions: Mapping[str, str]) -> str | None:
    """Return the version of a backend's package, None where it is torch or was not installed."""
    package = _PACKAGES.get(backend, "torch")
    return None if package == "torch" else versions.get(package, versions.get(f"{package}-python"))


def releases_that_ran(settings: pl.DataFrame, takes: Iterable[Take]) -> pl.DataFrame:
    """Return `row_id` and `backend_version` of the settings that a take of the scope holds.

    Parameters
    ----------
    settings
        Rows of the table `settings`, each made from the event that first speaks of it.
    """
    versions = {str(take.name): take.started.data.versions for take in takes}
    rows = []
    for row in settings.select("row_id", "backend", "from_ids").iter_rows(named=True):
        take = row["from_ids"][0].rpartition("#")[0].rpartition(".")[0]
        found = release_of(row["backend"], versions.get(take, {}))
        rows.append({"row_id": row["row_id"], "backend_version": found})
    schema = {"row_id": pl.String, "backend_version": pl.String}
    return pl.DataFrame(rows, schema=schema).unique("row_id", maintain_order=True)
