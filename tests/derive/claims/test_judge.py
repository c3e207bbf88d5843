"""From cases to verdicts, independent of the order of rows."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.claims.cases import Case, Group
from nearfree.derive.claims.judge import (
    CLAIMS,
    FAILS,
    HOLDS,
    PARTLY,
    UNDECIDED,
    VERDICTS,
    claim_rows,
    combined_verdict,
    verdict,
)
from nearfree.derive.claims.paper import CLAIMS_CHECKED
from nearfree.derive.claims.scope_tables import ScopeTables
from nearfree.derive.tables.boundaries import BOUNDARIES

from derive.claims.logs import EPSILON, answer, at, log, rows_of

GROUP = Group("cpu", "dense_ffn", "b", None, "measured")
VERDICT_LISTS = st.lists(st.sampled_from([True, False, None]), max_size=30)


def cases(verdicts: list[bool | None]) -> list[Case]:
    """Return cases that hold, fail, or are undecided."""
    return [Case(GROUP, verdict, "", ()) for verdict in verdicts]


@given(VERDICT_LISTS)
def test_a_verdict_counts_cases(verdicts: list[bool | None]) -> None:
    """Cases that fail always count; without one, most cases have to be decided."""
    holding, lost, unclear = (verdicts.count(verdict) for verdict in (True, False, None))
    against = PARTLY if holding > lost else FAILS
    without = HOLDS if holding >= max(unclear, 1) else UNDECIDED
    assert verdict(cases(verdicts)) == (against if lost else without)


@given(VERDICT_LISTS)
def test_undecided_cases_hide_no_counterexample(verdicts: list[bool | None]) -> None:
    """One failing case decides a claim; undecided cases change nothing for the better."""
    broken = [*verdicts, False]
    doubted = verdict(cases(broken + [None] * 100))
    assert doubted == verdict(cases([case for case in broken if case is not None]))
    assert doubted in (FAILS, PARTLY)


@given(VERDICT_LISTS)
def test_one_more_that_disagrees_never_helps(verdicts: list[bool | None]) -> None:
    """A claim does not hold after a failing case is added."""
    assert verdict(cases([*verdicts, False])) != HOLDS


@given(st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=4))
def test_parts_hold_together_only_if_each_does(parts: list[str]) -> None:
    """A claim of several parts holds if all hold, and fails if every decided part fails."""
    verdict = combined_verdict(parts)
    assert (verdict == HOLDS) == (set(parts) == {HOLDS})
    assert (verdict == FAILS) == (set(parts) - {UNDECIDED} == {FAILS})
    assert verdict in VERDICTS


@pytest.mark.parametrize("scope", ["cpu", "public"])
def test_an_empty_log_decides_nothing(scope: str) -> None:
    """Each claim has a row for each of its modules; those of datasheets are the public scope's."""
    rows = list(claim_rows(log([], scope=scope)))
    own = [claim for claim in CLAIMS_CHECKED if scope == "public" or not claim.public]
    assert len(rows) == sum(max(len(claim.modules), 1) for claim in own)
    assert {row["verdict"] for row in rows} == {UNDECIDED}
    assert {row["platform"] for row in rows} == {None if scope == "public" else scope}
    assert not any(row["from_ids"] for row in rows), "it rests on no row"


def test_a_question_is_asked_and_not_claimed() -> None:
    """A research question is answered by yes or no, not confirmed or refuted."""
    questions = [claim for claim in CLAIMS_CHECKED if claim.kind == "research question"]
    assert questions
    assert all("? Yes if " in claim.says for claim in questions)
    assert not any("?" in claim.says for claim in CLAIMS_CHECKED if claim not in questions)


def test_a_check_that_is_not_the_papers_is_marked() -> None:
    """The project's own check is marked as such."""
    (own,) = (claim for claim in CLAIMS_CHECKED if claim.section == "not in the paper")
    assert own.name == "lookup_holds_for_releases"
    assert own.says.startswith("A check of ours: ")


def mixed() -> list[dict[str, Any]]:
    """Return boundaries of several modules, platforms and origins."""
    return [
        *(at("dense_ffn", 32 // b, 64 // b, batch=b) for b in (1, 2, 4)),
        *(at("attention", n, 2 * n, context=64 * n) for n in (4, 8)),
        at("dense_ffn", 4, 8, origin="simulated", stream="t"),
        at("moe_ffn", 16, 17, routing="skewed", top_k=2, experts=8, interval=(16, 16)),
    ]


@pytest.mark.slow
@given(st.permutations(range(len(mixed()))))
@settings(deadline=None, max_examples=20)
def test_the_order_of_rows_changes_nothing(order: list[int]) -> None:
    """The same rows give the same verdicts in whatever order they come."""
    frame = rows_of(BOUNDARIES, mixed())
    rows = claim_rows(ScopeTables("cpu", EPSILON, {"boundaries": frame}))
    again = claim_rows(ScopeTables("cpu", EPSILON, {"boundaries": frame[order]}))
    assert list(rows) == list(again)


def test_origins_are_never_judged_together() -> None:
    """Measured and simulated boundaries have separate verdicts."""
    rows = [row for row in claim_rows(log(mixed())) if row["claim"] == "rq1"]
    dense = {row["origin"]: row["checked"] for row in rows if row["module"] == "dense_ffn"}
    assert dense == {"measured": 3, "simulated": 1}


def test_rows_fit_the_table_and_name_what_they_were_checked_on() -> None:
    """Verdicts on hostile names are a table all the same, shown as the text that they are."""
    name = "<script>alert('b')</script>"
    bound = at("dense_ffn", 8, 9, backend=name)
    known = log([bound], [answer(bound, "idle_compute", 8.5)])
    frame = CLAIMS.build(CLAIMS.frame(claim_rows(known)), known.ids)
    row = frame.filter(claim="rq2", module="dense_ffn").row(0, named=True)
    assert (row["backend"], row["verdict"]) == (name, HOLDS)
    kinds = {event_id.split(":")[0] for event_id in row["from_ids"]}
    assert kinds == {"boundaries", "predictions"}
    assert set(frame["from_ids"].explode().drop_nulls()) <= known.ids


def test_an_older_take_is_not_judged() -> None:
    """Only the newest take of a setting is judged."""
    old = at("dense_ffn", 1, 2) | {"newest": False}
    rows = list(claim_rows(log([old, at("dense_ffn", 8, 9) | {"take": 2}])))
    (row,) = (row for row in rows if row["claim"] == "rq1" and row["module"] == "dense_ffn")
    assert (row["verdict"], row["checked"]) == (HOLDS, 1)
