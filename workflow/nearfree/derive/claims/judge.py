"""Table `claims`: the paper's claims, and verdicts from their cases."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nearfree.core.scopes import PUBLIC
from nearfree.derive.claims.cases import Case, Claim, Group
from nearfree.derive.claims.paper import CLAIMS_CHECKED
from nearfree.derive.claims.scope_tables import ScopeTables
from nearfree.derive.stages import STAGE_OF, STAGES, declared
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
        "kind": text("its kind in the paper", one_of=KINDS),
        "place": count("its place among the claims, as the paper has them"),
        "section": text("the paper's section"),
        "says": text("the claim, with the rule by which a case counts as agreeing"),
        "platform": text("the kind of machine, none where it speaks of several", nullable=True),
        "module": text("dense_ffn, moe_ffn, attention or model, none where it speaks of no one",
                       nullable=True),
        "backend": text("the backend that ran it", nullable=True),
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
        "unclear": count("of them, undecided ones: an interval that allows both "
                         "answers, an end of the grid, or a fact that is missing", at_least=0),
        "worst": text("the case that disagrees most, with its numbers; empty if none does"),
        "why": text("the verdict in a sentence, with numbers"),
    },
)  # fmt: skip

_CASES_SHOWN = 4
"""Most cases that a sentence lists."""
Row = dict[str, object]


def write_claims(layout: Layout, scope: str, *, epsilon: float) -> None:
    """Write a scope's verdicts on the claims of the paper, after all its other tables."""
    reads = STAGES["claims"].reads
    tables = [declared(name) for name in reads if STAGE_OF[name].has(scope)]
    frames = {table.name: read_table(layout, scope, table) for table in tables}
    scope_tables = ScopeTables(scope, epsilon, frames)
    rows = CLAIMS.frame(claim_rows(scope_tables))
    made_from = digests(layout, scope, *tables) | tolerances_digest([epsilon])
    write_table(layout, scope, CLAIMS, CLAIMS.build(rows, scope_tables.ids), made_from)


def claim_rows(tables: ScopeTables, claims: Iterable[Claim] = CLAIMS_CHECKED) -> Iterator[Row]:
    """Yield the verdicts of a scope; a claim without a case in the log is undecided."""
    for place, claim in enumerate(claims, start=1):
        if claim.public and tables.scope != PUBLIC:
            continue
        cases_by_check = [list(check(tables, *claim.modules)) for check in claim.checks]
        claim_columns = {
            "claim": claim.name,
            "kind": claim.kind,
            "place": place,
            "section": claim.section,
            "says": claim.says,
        }
        groups = _groups(claim, cases_by_check)
        for group, cases in groups.items():
            yield claim_columns | group._asdict() | judgement(claim, cases)
        covered = {group.module for group in groups}
        for module in claim.modules or (None,):
            if module not in covered:
                yield claim_columns | _no_case_row(tables, claim, module)


def _groups(claim: Claim, parts: Sequence[list[Case]]) -> dict[Group, list[list[Case]]]:
    """Return the cases of each verdict, part by part."""
    cleared: dict[str, Any] = {claim.across: None} if claim.across else {}
    groups: dict[Group, list[list[Case]]] = {}
    for number, cases in enumerate(parts):
        for case in cases:
            group = case.group._replace(**cleared)
            groups.setdefault(group, [[] for _ in parts])[number].append(case)
    return groups


def verdict(cases: Sequence[Case]) -> str:
    """Return the verdict on cases that agree, disagree or are undecided.

    A disagreeing case counts however many are undecided: the claim covers every case.
    """
    agreeing, disagreeing, undecided = (
        sum(case.agrees is outcome for case in cases) for outcome in (True, False, None)
    )
    if disagreeing:
        return PARTLY if agreeing > disagreeing else FAILS
    return HOLDS if agreeing and undecided <= agreeing else UNDECIDED


def combined_verdict(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim of several parts: it holds only if every part does."""
    decided = {verdict for verdict in verdicts if verdict != UNDECIDED}
    if len(decided) > 1:
        return PARTLY
    if decided == {HOLDS} and UNDECIDED in verdicts:
        return UNDECIDED
    return decided.pop() if decided else UNDECIDED


def judgement(claim: Claim, parts: Sequence[Sequence[Case]]) -> Row:
    """Return the verdict on the cases of one claim, part by part, with its numbers and rows."""
    cases = [case for part in parts for case in part]
    agreeing = [case for case in cases if case.agrees]
    disagreeing = sorted(
        (case for case in cases if case.agrees is False), key=lambda case: -case.gap
    )
    undecided = [case for case in cases if case.agrees is None]
    return {
        "verdict": combined_verdict([verdict(part) for part in parts]),
        "checked": len(cases),
        "kept": len(agreeing),
        "unclear": len(undecided),
        "worst": disagreeing[0].text if disagreeing else "",
        "why": _explanation(claim, agreeing, disagreeing, undecided),
        "from_ids": sorted({row_id for case in cases for row_id in case.ids}),
    }


def _explanation(
    claim: Claim, agreeing: list[Case], disagreeing: list[Case], undecided: list[Case]
) -> str:
    total = len(agreeing) + len(disagreeing) + len(undecided)
    parts = [f"{len(agreeing)} of {total} {claim.unit} agree"]
    if disagreeing:
        do = "does" if len(disagreeing) == 1 else "do"
        parts.append(f"{len(disagreeing)} {do} not: {_listed_cases(disagreeing)}")
    if undecided:
        parts.append(f"{len(undecided)} cannot be told: {_listed_cases(undecided)}")
    if not disagreeing and not undecided:
        parts[0] += f": {_listed_cases(sorted(agreeing, key=lambda case: -case.gap))}"
    return ". ".join(parts)


def _listed_cases(cases: Sequence[Case]) -> str:
    shown = "; ".join(case.text for case in cases[:_CASES_SHOWN])
    omitted = len(cases) - _CASES_SHOWN
    return f"{shown}; and {omitted} more" if omitted > 0 else shown


def _no_case_row(tables: ScopeTables, claim: Claim, module: str | None) -> Row:
    return {
        **dict.fromkeys(Group._fields),
        **judgement(claim, ()),
        "platform": tables.scope if tables.scope != PUBLIC else None,
        "module": module,
        "why": f"not in the log of {tables.scope}: {claim.needs}",
    }
