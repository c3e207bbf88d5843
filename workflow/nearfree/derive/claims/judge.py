"""Table `claims`: the paper's claims, and verdicts from their cases."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nearfree.core.scopes import PUBLIC
from nearfree.derive.claims.cases import Case, Claim, Group
from nearfree.derive.claims.paper import CLAIMS_CHECKED
from nearfree.derive.claims.scope_tables import PLATFORM_TABLES, PUBLIC_TABLES, ScopeTables
from nearfree.derive.tables.columns import ORIGINS, count, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import digests, read_table, tolerances_digest, write_table
from nearfree.log.names import Layout

KINDS = ("research question", "finding", "claim")
HOLDS, FAILS, PARTLY, UNDECIDED = VERDICTS = ("holds", "fails", "partly", "undecided")

CLAIMS = Table(
    name="claims",
    row="one claim of the paper against the rows of one kind that a scope has of it",
    key=("claim", "platform", "module", "backend", "routing", "origin"),
    formula="a claim, checked on every row that it speaks of",
    code="nearfree.derive.claims",
    body={
        "claim": text("short name of the claim"),
        "kind": text("what it is in the paper", one_of=KINDS),
        "place": count("its place among the claims, as the paper has them"),
        "section": text("where the paper says it"),
        "says": text("the claim, with the rule by which a case counts as agreeing"),
        "platform": text("the kind of machine, none where it speaks of several", nullable=True),
        "module": text("dense_ffn, moe_ffn, attention or model, none where it speaks of no one",
                       nullable=True),
        "backend": text("what ran it", nullable=True),
        "routing": text("how tokens fell on experts, none also where two are compared",
                        nullable=True),
        "origin": text("where the checked rows come from, none where there is none to check",
                       nullable=True, one_of=ORIGINS),
        "verdict": text(
            "of the cases that can be told: holds, if all agree; partly, if some do not and more "
            "than half do; fails, if some do not and half or fewer do; undecided, if none "
            "disagrees and most cannot be told, or there is none. A claim of several parts holds "
            "if each does, and holds partly if they differ",
            one_of=VERDICTS,
        ),
        "checked": count("cases: settings, pairs of settings, or rows", at_least=0),
        "kept": count("of them, those that agree", at_least=0),
        "unclear": count("of them, those that cannot be told: an interval that holds both "
                         "answers, an end of the grid, or a fact that is missing", at_least=0),
        "worst": text("the case that disagrees most, with its numbers; empty if none does"),
        "why": text("the verdict in a sentence, with numbers"),
    },
)  # fmt: skip

_CASES_SHOWN = 4
"""How many cases a sentence lists."""
Row = dict[str, object]


def write_claims(layout: Layout, scope: str, *, epsilon: float) -> None:
    """Write a scope's verdicts on the claims of the paper, after all its other tables."""
    tables = (*PLATFORM_TABLES, *PUBLIC_TABLES) if scope == PUBLIC else PLATFORM_TABLES
    frames = {table.name: read_table(layout, scope, table) for table in tables}
    scope_tables = ScopeTables(scope, epsilon, frames)
    rows = CLAIMS.frame(claim_rows(scope_tables))
    made_from = digests(layout, scope, *tables) | tolerances_digest([epsilon])
    write_table(layout, scope, CLAIMS, CLAIMS.build(rows, scope_tables.ids), made_from)


def claim_rows(tables: ScopeTables, claims: Iterable[Claim] = CLAIMS_CHECKED) -> Iterator[Row]:
    """Yield the verdicts of a scope; a claim that the log has no case of is undecided."""
    for place, claim in enumerate(claims, start=1):
        if claim.public and tables.scope != PUBLIC:
            continue
        parts = [list(check(tables, *claim.modules)) for check in claim.checks]
        about = {"claim": claim.name, "kind": claim.kind, "place": place, "section": claim.section,
                 "says": claim.says}  # fmt: skip
        groups = _groups(claim, parts)
        for group, cases in groups.items():
            yield about | group._asdict() | judged(claim, cases)
        seen = {group.module for group in groups}
        for module in claim.modules or (None,):
            if module not in seen:
                yield about | _nothing(tables, claim, module)


def _groups(claim: Claim, parts: Sequence[list[Case]]) -> dict[Group, list[list[Case]]]:
    """Return the cases of each verdict, part by part."""
    covered: dict[str, Any] = {claim.across: None} if claim.across else {}
    groups: dict[Group, list[list[Case]]] = {}
    for number, part in enumerate(parts):
        for case in part:
            group = case.group._replace(**covered)
            groups.setdefault(group, [[] for _ in parts])[number].append(case)
    return groups


def verdict(cases: Sequence[Case]) -> str:
    """Return the verdict on cases that agree, that do not, and that cannot be told.

    One that does not agree counts however many cannot be told: the claim is of every case.
    """
    kept, lost, unclear = (sum(c.agrees is a for c in cases) for a in (True, False, None))
    if lost:
        return PARTLY if kept > lost else FAILS
    return HOLDS if kept and unclear <= kept else UNDECIDED


def both(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim of several parts: it holds only if each of them does."""
    decided = {verdict for verdict in verdicts if verdict != UNDECIDED}
    if len(decided) > 1:
        return PARTLY
    if decided == {HOLDS} and UNDECIDED in verdicts:
        return UNDECIDED
    return decided.pop() if decided else UNDECIDED


def judged(claim: Claim, parts: Sequence[Sequence[Case]]) -> Row:
    """Return the verdict on the cases of one claim, part by part, with its numbers and rows."""
    cases = [case for part in parts for case in part]
    kept = [case for case in cases if case.agrees]
    lost = sorted((c for c in cases if c.agrees is False), key=lambda case: -case.gap)
    unclear = [case for case in cases if case.agrees is None]
    return {
        "verdict": both([verdict(part) for part in parts]),
        "checked": len(cases),
        "kept": len(kept),
        "unclear": len(unclear),
        "worst": lost[0].text if lost else "",
        "why": _why(claim, kept, lost, unclear),
        "from_ids": sorted({row_id for case in cases for row_id in case.ids}),
    }


def _why(claim: Claim, kept: list[Case], lost: list[Case], unclear: list[Case]) -> str:
    total = len(kept) + len(lost) + len(unclear)
    parts = [f"{len(kept)} of {total} {claim.unit} agree"]
    if lost:
        parts.append(f"{len(lost)} {'does' if len(lost) == 1 else 'do'} not: {_some(lost)}")
    if unclear:
        parts.append(f"{len(unclear)} cannot be told: {_some(unclear)}")
    if not lost and not unclear:
        parts.append(_some(sorted(kept, key=lambda case: -case.gap)))
    return "; ".join(parts)


def _some(cases: Sequence[Case]) -> str:
    shown = " / ".join(case.text for case in cases[:_CASES_SHOWN])
    left = len(cases) - _CASES_SHOWN
    return f"{shown} / and {left} more" if left > 0 else shown


def _nothing(tables: ScopeTables, claim: Claim, module: str | None) -> Row:
    return {
        **dict.fromkeys(Group._fields),
        **judged(claim, ()),
        "platform": tables.scope if tables.scope != PUBLIC else None,
        "module": module,
        "why": f"not in the log of {tables.scope}: {claim.needs}",
    }
