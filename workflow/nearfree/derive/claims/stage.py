"""The stage `claims`: from a scope's tables to its verdicts."""

from nearfree.config.files import Config
from nearfree.derive.claims.judge import claim_rows
from nearfree.derive.claims.scope_tables import PLATFORM_TABLES, PUBLIC_TABLES, ScopeTables
from nearfree.derive.claims.table import CLAIMS
from nearfree.derive.predict.provenance import digests, tolerances_digest
from nearfree.derive.tables.store import read_table, write_table
from nearfree.log.names import Layout
from nearfree.public.published import SCOPE as PUBLIC


def write_claims(layout: Layout, scope: str, config: Config) -> None:
    """Write a scope's verdicts on the claims of the paper.

    Parameters
    ----------
    layout
        The results root.
    scope
        A platform, or the public scope, after all its other tables.
    config
        The headline tolerance.
    """
    tables = (*PLATFORM_TABLES, *PUBLIC_TABLES) if scope == PUBLIC else PLATFORM_TABLES
    frames = {table.name: read_table(layout, scope, table) for table in tables}
    epsilon = config.site.epsilon
    scope_tables = ScopeTables(scope, epsilon, frames)
    rows = CLAIMS.frame(claim_rows(scope_tables))
    made_from = digests(layout, scope, *tables) | tolerances_digest([epsilon])
    write_table(layout, scope, CLAIMS, CLAIMS.build(rows, scope_tables.ids), made_from)
