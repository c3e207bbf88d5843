"""Changes in groups by their causes, and their numbers as text."""

from nearfree.derive.jobs import OBSERVED, TABLES
from nearfree.prove.audit.causes import Cause
from nearfree.prove.audit.changes import Change, Kind, by_cause, summary

FIRST, SECOND = Cause("config", "a"), Cause("new take", "b")


def change(table: str, kind: Kind = "changed", *causes: Cause) -> Change:
    """Return a change of a row of a table."""
    row_id = f"{table}:{kind}"
    return Change(
        kind=kind, scope="cpu", table=table, row_id=row_id, about={}, cells=(), causes=causes
    )


def test_groups_are_in_the_order_of_their_causes() -> None:
    """Changes with equal causes are one group, and groups are sorted by their causes."""
    changes = [
        change("lookup", "changed", SECOND),
        change("lookup", "changed", FIRST, SECOND),
        change("trend", "changed", SECOND),
        change("lookup", "changed", FIRST),
    ]
    groups = {causes: [part.table for part in parts] for causes, parts in by_cause(changes)}
    assert list(groups) == [(FIRST,), (FIRST, SECOND), (SECOND,)]
    assert groups == {
        (FIRST,): ["lookup"],
        (FIRST, SECOND): ["lookup"],
        (SECOND,): ["lookup", "trend"],
    }


def test_a_group_begins_with_changed_numbers_of_derived_tables() -> None:
    """In a group derived tables come before observed ones, then changed rows before other kinds."""
    observed = next(table for table in TABLES if table in OBSERVED)
    kinds: tuple[Kind, ...] = ("changed", "gone", "added", "superseded", "newest again")
    listed = [(table, kind) for table in ("lookup", observed) for kind in kinds]
    ((_, parts),) = by_cause([change(*which, FIRST) for which in reversed(listed)])
    assert [(part.table, part.kind) for part in parts] == listed


def test_changes_are_counted_by_table_and_kind() -> None:
    """The text names each table in the order of its first change, and each kind that occurs."""
    rows = [
        change("trend", "added"),
        change("lookup", "gone"),
        change("lookup", "changed"),
        change("lookup", "gone"),
    ]
    assert summary(rows) == "trend: 1 added; lookup: 1 changed, 2 gone"
    assert summary([]) == ""
