"""The report's section on claims: all are listed, failures first."""

import polars as pl
import pytest
from nearfree.derive.claims.judge import CLAIMS, VERDICTS
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.page.claims_section import by_claim, counts
from nearfree.show.page.inline import style

from show.page.page import Page

RAW = {"yes": "holds", "no": "fails", "open": "undecided"}
"""What answers to questions are called in the table."""


@pytest.fixture(scope="module")
def claims(made: Layout) -> pl.DataFrame:
    """Return the claims checked on two scopes."""
    return pl.concat(read_table(made, scope, CLAIMS) for scope in ("cpu", "public"))


def test_every_row_is_told_under_its_claim(claims: pl.DataFrame) -> None:
    """Each row of the table is one line under its claim, in the paper's order."""
    grouped = by_claim(claims)
    places = {row["says"]: row["place"] for row in claims.to_dicts()}
    assert [places[claim.says] for claim in grouped] == sorted(places.values())
    rows = [line[0].row for claim in grouped for line in claim.grid.rows]
    assert sorted(rows) == sorted(claims["row_id"])


def test_what_fails_stands_first_and_is_counted(
    claims: pl.DataFrame, page: str, read: Page
) -> None:
    """A claim's failures are first; a folded claim says how many there are of each verdict."""
    for claim in by_claim(claims):
        verdicts = [RAW.get(line[0].text, line[0].text) for line in claim.grid.rows]
        assert verdicts == sorted(verdicts, key=("fails", "partly", "undecided", "holds").index)
        shown = [line[0].text for line in claim.grid.rows]
        assert dict(claim.counts) == {name: shown.count(name) for name in shown}
    folded = page.split('<details class="claim">')[1:]
    assert len(folded) >= len(by_claim(claims))
    assert all('<span class="verdict ' in text.partition("</summary>")[0] for text in folded)
    assert all(claim.says in read.text for claim in by_claim(claims))


def test_a_backend_keeps_its_name(claims: pl.DataFrame) -> None:
    """A claim names the backend as the log and the commands do."""
    backends = claims["backend"].drop_nulls().unique().to_list()
    assert any("_" in backend for backend in backends)
    names = [line[2].text for claim in by_claim(claims) for line in claim.grid.rows]
    for backend in backends:
        assert any(f", {backend}" in text for text in names)


def test_counts_are_of_all_rows(claims: pl.DataFrame) -> None:
    """The counts by verdict add up to all rows."""
    grid = counts(claims)
    for place, verdict in enumerate(VERDICTS, start=2):
        total = sum(int(row[place].text) for row in grid.rows)
        assert total == claims.filter(verdict=verdict).height


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_question_is_answered_and_a_claim_judged(claims: pl.DataFrame, verdict: str) -> None:
    """A question's verdict is yes, no, partly or open; it never holds or fails."""
    one = claims.with_columns(pl.lit(verdict).alias("verdict"))
    for claim in by_claim(one):
        if claim.kind == "research question":
            ((count, _),) = claim.counts
            assert RAW.get(count, count) == verdict
            assert count not in ("holds", "fails", "undecided")
        else:
            assert [name for name, _ in claim.counts] == [verdict]


def test_answers_to_questions_have_the_colours_of_verdicts() -> None:
    """No has the colour of a failed claim, yes that of one that holds."""
    css = str(style().text)
    for verdict, answer in (("fails", "no"), ("holds", "yes")):
        assert f".verdict.{verdict}, .verdict.{answer} {{" in css
