"""The stage `claims`: from a scope's tables to its verdicts."""

from nearfree.config.files import Config
from nearfree.derive.claims.judge import claim_rows
from nearfree.derive.claims.scope_tables import OUTLOOK, OWN, Log
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
    tables = (*OWN, *OUTLOOK) if scope == PUBLIC else OWN
    frames = {table.name: read_table(layout, scope, table) for table in tables}
    epsilon = config.site.epsilon
    log = Log(scope, epsilon, frames)
    rows = CLAIMS.frame(claim_rows(log))
    made_from = digests(layout, scope, *tables) | tolerances_digest([epsilon])
    write_table(layout, scope, CLAIMS, CLAIMS.build(rows, log.ids), made_from)
