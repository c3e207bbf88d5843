"""Table `granularity`: block and tile rules, a row per branch."""

from collections.abc import Iterator

from nearfree.derive.tables.columns import ORIGINS, count, text
from nearfree.derive.tables.schema import Table
from nearfree.log.events import Branch, RuleExtracted, RulePublished, SourceFetched
from nearfree.log.evidence import Take, newest_takes

_COPIED = ("package", "versions", "path", "condition", "source")
GRANULARITY = Table(
    name="granularity",
    row="one branch of a block or tile rule",
    key=("origin", "source", "path", "place", "branch"),
    formula="as printed, or read from source in two ways that agree",
    paper="app. on backends' rules",
    code="nearfree.derive.tables.granularity",
    body={
        "origin": text("published, or extracted from source", one_of=(*ORIGINS, "extracted")),
        "package": text("the backend's package"),
        "versions": text("the versions that the rule speaks of: as printed, or the release"),
        "path": text("the kernel path as printed, or the rule's name"),
        "condition": text("when the branch applies"),
        "value": text("rows of a block or tile, or the rule's other answer; may be an expression"),
        "source": text("the document, or the artefact"),
        "place": text("the table of a document, or the file of an artefact"),
        "lines": text("first and last line of the value", nullable=True),
        "quote": text("what stands there", nullable=True),
        "sha256": text("digest of the file", nullable=True),
        "branch": count("the row of that table, or the number of the branch"),
    },
)


def granularity_rows(takes: list[Take]) -> Iterator[dict[str, object]]:
    """Yield the published rules and those read from source, of each stream's newest take."""
    for take in newest_takes(takes, RulePublished):
        for event in take.events_of(RulePublished):
            rule = event.data
            yield {
                "origin": "published",
                **{name: getattr(rule, name) for name in _COPIED},
                "value": str(rule.value),
                "place": rule.table,
                **dict.fromkeys(("lines", "quote", "sha256")),
                "branch": rule.row,
                "from_ids": [event.event_id],
            }
    for take in newest_takes(takes, RuleExtracted):
        yield from _extracted(take)


def _extracted(take: Take) -> Iterator[dict[str, object]]:
    fetched: list[SourceFetched] = [event.data for event in take.events_of(SourceFetched)]
    hashes = {member.path: member.sha256 for source in fetched for member in source.members}
    for event in take.events_of(RuleExtracted):
        rule = event.data
        for number, branch in enumerate(rule.branches, start=1):
            yield {
                "origin": "extracted",
                "package": rule.package,
                "versions": rule.version,
                "path": rule.rule,
                "condition": " and ".join(branch.when) or "always",
                "value": branch.value,
                "source": fetched[0].artefact if fetched else "unknown",
                **_place(branch, hashes),
                "branch": number,
                "from_ids": [event.event_id],
            }


def _place(branch: Branch, hashes: dict[str, str]) -> dict[str, object]:
    if not branch.quotes:
        return {"place": "none", "lines": None, "quote": None, "sha256": None}
    quote = branch.quotes[-1]
    return {
        "place": quote.file,
        "lines": f"{quote.lines[0]}-{quote.lines[1]}",
        "quote": quote.text,
        "sha256": hashes.get(quote.file),
    }
