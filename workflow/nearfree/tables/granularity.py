"""Table `granularity`: block and tile rules, a row a branch."""

from collections.abc import Iterator

from nearfree.events.evidence import Take
from nearfree.events.types import RulePublished
from nearfree.tables.schema import ORIGINS, Table, count, text

GRANULARITY = Table(
    name="granularity",
    row="one branch of a block or tile rule",
    key=("origin", "source", "place", "branch"),
    body={
        "origin": text("published, or extracted from source", one_of=(*ORIGINS, "extracted")),
        "package": text("the backend's package"),
        "versions": text("the versions that the rule speaks of, as printed"),
        "path": text("the kernel path"),
        "condition": text("when the branch applies"),
        "value": count("rows of a block or tile"),
        "source": text("the document"),
        "place": text("the table of a document"),
        "branch": count("the row of that table"),
    },
)


def granularity_rows(takes: list[Take]) -> Iterator[dict[str, object]]:
    """Yield the published rules."""
    for take in takes:
        for event in take.of(RulePublished):
            rule = event.data
            yield {
                "origin": "published",
                "package": rule.package,
                "versions": rule.versions,
                "path": rule.path,
                "condition": rule.condition,
                "value": rule.value,
                "source": rule.source,
                "place": rule.table,
                "branch": rule.row,
                "from_ids": [event.event_id],
            }
