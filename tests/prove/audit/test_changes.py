"""Differences between two ledgers: all are listed, no others, each with its cause."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import json
from nearfree.cli import main
from nearfree.derive.jobs import TABLES
from nearfree.derive.tables.store import read_table
from nearfree.log.codebase import package_digest
from nearfree.log.names import Layout
from nearfree.prove.audit.causes import Cause
from nearfree.prove.audit.changes import Change, by_cause, changes
from nearfree.prove.audit.ledger_snapshot import LedgerSnapshot, make_snapshot
from prove.audit.history import REASON, RELEASE, STEPS, History

Rows = dict[tuple[str, str], dict[str, Any]]
Diff = Callable[[str, str], list[Change]]


@pytest.fixture(scope="module")
def snapshots(
    history: History, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, LedgerSnapshot]:
    """Return a snapshot of every ledger of the history; unchanged scopes are reused."""
    work, sides = tmp_path_factory.mktemp("sides"), dict[str, LedgerSnapshot]()
    for before, step in zip((None, *STEPS), STEPS, strict=False):
        like = sides[before] if before else None
        sides[step] = make_snapshot(history.layout, history.ledger(step), work / step, like)
    return sides


@pytest.fixture(scope="module")
def diff(snapshots: dict[str, LedgerSnapshot]) -> Diff:
    """Return a function that compares two steps of the history."""
    return cache(lambda old, new: changes(snapshots[old], snapshots[new]))


def rows(layout: Layout) -> Rows:
    """Return every row of every table of a results root."""
    rows_by_id: Rows = {}
    for path in (layout.root / "tables").glob("*/*.parquet"):
        for row in read_table(layout, path.parent.name, TABLES[path.stem]).to_dicts():
            rows_by_id[path.parent.name, row["row_id"]] = {**row, "from_ids": None}
    return rows_by_id


def of(compared: list[Change], table: str, kind: str) -> list[Change]:
    """Return the changes of one kind of a table."""
    return [change for change in compared if (change.table, change.kind) == (table, kind)]


def kinds(compared: list[Change]) -> set[tuple[str, str]]:
    """Return the kind and the subject of all causes."""
    return {(cause.kind, cause.what) for change in compared for cause in change.causes}


PAIRS = [*pairwise(STEPS), ("first", "sample"), ("sample", "first"), ("tolerance", "constants")]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_the_changes_are_all_that_differs(
    diff: Diff, snapshots: dict[str, LedgerSnapshot], old: str, new: str
) -> None:
    """The old rows with the changes applied are the new rows, and each listed cell differs.

    Changes are listed by scope, and name the values that a row has.
    """
    changes = diff(old, new)
    scopes = [change.scope for change in changes]
    assert scopes == sorted(scopes)
    assert not any(None in change.about.values() for change in changes)
    table, after = (rows(snapshots[step].layout) for step in (old, new))
    assert changes
    for change in changes:
        place = change.scope, change.row_id
        if change.kind == "gone":
            del table[place]
        elif change.kind == "added":
            assert place not in table
            table[place] = after[place]
        for cell in change.cells:
            assert table[place][cell.column] == cell.old != cell.new
            table[place][cell.column] = cell.new
    assert table == after


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_every_change_has_a_cause_that_happened(diff: Diff, old: str, new: str) -> None:
    """Each change has a cause, and each cause is a step between the two ledgers."""
    first, last = sorted((STEPS.index(old), STEPS.index(new)))
    words = {"retake": "take", "tolerance": "config", "sample": "retraction",
             "deployment": "config"}  # fmt: skip
    happened = {words.get(step, step) for step in STEPS[first + 1 : last + 1]}
    for change in diff(old, new):
        assert change.causes
        assert list(change.causes) == sorted(change.causes)
        for cause in change.causes:
            assert {*cause.kind.split()} & happened, (change, happened)


def test_a_new_take_adds_its_rows_and_supersedes(history: History, diff: Diff) -> None:
    """A new take adds rows and supersedes the old take's; claims change with the boundary."""
    changes = diff("first", "retake")
    assert kinds(changes) == {("new take", str(history.second))}
    assert {change.about["take"] for change in of(changes, "boundaries", "added")} == {2}
    old = of(changes, "boundaries", "superseded")
    assert {change.about["take"] for change in old} == {1}
    assert {cell for change in old for cell in map(str, change.cells)} == {str(old[0].cells[0])}
    (judged, *_) = of(changes, "validation", "changed")
    (cell,) = [cell for cell in judged.cells if cell.column == "n_max"]
    assert cell.old > cell.new
    assert judged.about["module"] == "dense_ffn"
    assert not of(changes, "boundaries", "changed")
    assert not [change for change in changes if change.scope == "public"]


def test_a_tolerance_is_a_change_of_the_config(diff: Diff) -> None:
    """Rows at a tolerance that the config no longer lists are gone, with that key as the cause."""
    changes = diff("retake", "tolerance")
    cause = Cause(
        "config",
        "config.yaml:tolerances",
        "[0.05, 0.1, 0.15, 0.2, 0.3] became [0.05, 0.1, 0.2, 0.3]",
    )
    assert {change.causes for change in changes} == {(cause,)}
    assert {change.about["epsilon"] for change in changes if change.kind == "gone"} == {0.15}
    changed = {change.table for change in changes if change.kind == "changed"}
    assert changed - {"claims"} == {"sensitivity"}


def test_a_retraction_takes_rows_away_with_its_reason(history: History, diff: Diff) -> None:
    """The retracted take's rows are gone, and the rows that it superseded are newest again."""
    changes = diff("tolerance", "retraction")
    assert {c.causes for c in changes} == {(Cause("retraction of", str(history.second), REASON),)}
    assert {c.about["take"] for c in of(changes, "boundaries", "gone")} == {2}
    assert {c.about["take"] for c in of(changes, "boundaries", "newest again")} == {1}
    back = diff("retraction", "tolerance")
    assert {c.causes[0].kind for c in back} == {"no retraction of"}


def test_a_retracted_sample_changes_the_rows_that_it_was_in(history: History, diff: Diff) -> None:
    """A retracted event changes only the rows made from it, with the retraction as the cause."""
    changes = diff("rules", "sample")
    assert kinds(changes) == {("retraction of", f"{history.first.segment(1)}#2")}
    points = of(changes, "latency", "changed")
    assert {change.about["batch"] for change in points} == {1}
    (baseline,) = (change for change in points if change.about["n"] == 1)
    assert {"latency_us", "rounds", "samples"} <= {cell.column for cell in baseline.cells}


def test_a_datasheet_changes_predictions_of_its_platform_alone(diff: Diff) -> None:
    """A changed datasheet is named by its key, and changes rows of its own platform only."""
    changes = diff("retraction", "datasheet")
    assert kinds(changes) == {("datasheet", "platforms.yaml:h20.bandwidth_gb_s")}
    assert of(changes, "predictions", "changed")
    assert {c.about["platform"] for c in of(changes, "predictions", "changed")} == {"h20"}
    assert not [change for change in changes if change.scope == "cpu"]


def test_new_constants_and_new_rules_are_told_as_such(diff: Diff) -> None:
    """New constants and new rules are each named as causes of changed predictions."""
    (kind,) = {kind for kind, _ in kinds(diff("datasheet", "constants"))}
    assert kind == "new constants"
    assert of(diff("datasheet", "constants"), "predictions", "changed")
    changes = diff("constants", "rules")
    assert {(k, what.rpartition("/")[0]) for k, what in kinds(changes)} == {
        ("new rules", f"sources/{RELEASE}")
    }
    assert of(changes, "granularity", "added")
    assert [c for c in changes if c.table in ("predictions", "lookup", "trend")]


def test_a_deployment_that_is_asked_about_is_told_by_its_entry(diff: Diff) -> None:
    """Rows for an added batch size are caused by that entry of deployments.yaml."""
    changes = diff("sample", "deployment")
    cause = Cause("config", "deployments.yaml:dense.batch", "[1] became [1, 2]")
    assert {change.causes for change in changes} == {(cause,)}
    assert {change.about["batch"] for change in of(changes, "lookup", "added")} == {2}


@pytest.mark.parametrize("step", STEPS)
def test_a_ledger_does_not_differ_from_itself(diff: Diff, step: str) -> None:
    """A ledger compared with itself has no changes."""
    assert diff(step, step) == []


@pytest.mark.parametrize("step", ["retake", "retraction"])
def test_tables_that_are_taken_over_are_those_that_would_be_made(
    history: History, snapshots: dict[str, LedgerSnapshot], tmp_path: Path, step: str
) -> None:
    """Tables that are reused for an unchanged scope equal recomputed ones, byte for byte."""
    alone = make_snapshot(history.layout, history.ledger(step), tmp_path / "alone").layout.root
    files = sorted(path.relative_to(alone) for path in (alone / "tables").rglob("*.*"))
    assert len(files) > 30
    for name in files:
        assert (snapshots[step].layout.root / name).read_bytes() == (alone / name).read_bytes(), (
            name
        )


def test_changes_are_grouped_by_cause_with_numbers_first(diff: Diff) -> None:
    """Changes are grouped by their causes, derived tables before observed ones."""
    changes = diff("first", "sample")
    groups = by_cause(changes)
    assert sorted(c.row_id for _, some in groups for c in some) == sorted(c.row_id for c in changes)
    for causes, some in groups:
        assert {change.causes for change in some} == {causes}
        observed = [change.table == "latency" for change in some]
        assert observed == sorted(observed)


def test_the_command_prints_text_for_people(
    history: History, diff: Diff, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text names the code and some rows per cause; control characters are escaped."""
    own, names = history.copy(tmp_path), []
    for digest, step in (("a" * 16, "tolerance"), ("b" * 16, "retraction")):
        then = own.ledger(step).ledger
        names.append(own.write(code_digest=digest, seals=then.seals, config=then.config).name)
    with pytest.raises(SystemExit) as ended:
        main(["diff", "--results", str(own.layout.root), *names])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    for digest in ("a" * 16, "b" * 16):
        assert f"'code' was '{digest}' and is '{package_digest()}'" in out
    assert "recomputed by the installed code, so it causes no difference below" in out
    assert f"retraction of {history.second}: a backup ran \\x1b[31m<script>" in out
    assert "\x1b" not in out
    assert out.count(" (cpu; module dense_ffn, ") == 5
    assert f"and {len(diff('tolerance', 'retraction')) - 5} more" in out


def test_the_command_prints_json_for_programs(
    history: History, diff: Diff, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON holds every change, with its causes and cells."""
    with pytest.raises(SystemExit) as ended:
        main(["diff", "--results", str(history.layout.root), "3", "4", "--format", "json"])
    document = json.decode(capsys.readouterr().out)
    assert ended.value.code == 0
    assert [ledger["name"] for ledger in document["ledgers"]] == ["3", "4"]
    assert document["changes"] == json.decode(json.encode(diff("tolerance", "retraction")))
