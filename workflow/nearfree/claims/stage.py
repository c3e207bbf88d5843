"""The stage `claims`: from a scope's tables to its verdicts."""

from nearfree.claims.judge import claim_rows
from nearfree.claims.log import OUTLOOK, OWN, Log
from nearfree.claims.table import CLAIMS
from nearfree.config import Config
from nearfree.events.names import Layout
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.tables.store import read_table, write_table
from nearfree.theory.made_from import digests, tolerances_digest


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
