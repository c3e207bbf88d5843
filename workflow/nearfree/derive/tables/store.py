"""Tables on disk: a Parquet file and its hashed manifest, written and read together."""

import io
from collections.abc import Collection, Mapping, Sequence

import polars as pl

from nearfree.derive.tables.schema import Table
from nearfree.errors import TableError
from nearfree.log.document import (
    Manifest,
    check_table,
    manifest_path,
    read_document,
    replace_with_manifest,
)
from nearfree.log.ledger import current_seals, seals_root
from nearfree.log.line import sha256
from nearfree.log.names import Layout


def write_table(
    layout: Layout, scope: str, table: Table, frame: pl.DataFrame, made_from: Mapping[str, str]
) -> None:
    """Write a checked frame and its manifest.

    `made_from` are the inputs by name and digest: seals, other tables, parts of the config.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=False)
    raw = buffer.getvalue()
    path = layout.table(scope, table.name)
    manifest = Manifest(
        table=table.name, rows=frame.height, sha256=sha256(raw), made_from=dict(made_from)
    )
    replace_with_manifest(path, raw, manifest)


def read_table(
    layout: Layout, scope: str, table: Table, *, without: Collection[str] = ()
) -> pl.DataFrame:
    """Return a table; raise TableError if its bytes or its columns are not as expected.

    Columns `without` are left out: `from_ids` is most of a table with many events per row.
    """
    path = layout.table(scope, table.name)
    raw = check_table(path)
    try:
        schema = pl.DataFrame(schema=pl.read_parquet_schema(io.BytesIO(raw)))
        columns = [name for name in schema.columns if name not in without]
        frame = pl.read_parquet(io.BytesIO(raw), columns=columns)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TableError(
            f"{path} is not Parquet: {error}", remedy="Remove it and run the workflow again"
        ) from error
    table.fits(schema, str(path))
    return frame


def row_count(layout: Layout, scope: str, name: str) -> int:
    """Return the number of a table's rows; TableError if its bytes are not as expected."""
    path = layout.table(scope, name)
    check_table(path)
    return read_document(manifest_path(path), Manifest).rows


def table_digest(layout: Layout, scope: str, table: Table) -> str:
    """Return the SHA-256 in a table's manifest."""
    return read_document(manifest_path(layout.table(scope, table.name)), Manifest).sha256


def seals_digest(layout: Layout, scope: str) -> dict[str, str]:
    """Return the root over a scope's seals, by its name in manifests."""
    seals = current_seals(layout, scope)
    return {f"events/{scope}": seals_root(seals)}


def digests(layout: Layout, scope: str, *tables: Table) -> dict[str, str]:
    """Return the digests of tables by name, as inputs of another."""
    return {table.name: table_digest(layout, scope, table) for table in tables}


def epsilon_digest(epsilon: float) -> dict[str, str]:
    """Return the digest of the headline tolerance by its name as an input."""
    return {"config/config.yaml:epsilon": sha256(repr(epsilon).encode())}


def tolerances_digest(tolerances: Sequence[float]) -> dict[str, str]:
    """Return the digest of tolerances by their name as an input."""
    return {"config/config.yaml:tolerances": sha256(repr(tuple(tolerances)).encode())}
