"""Raw samples and runs in the page are those of the log."""

import json
from pathlib import Path
from typing import Any

import pytest
from derive.tables.logs import SHEETS
from nearfree.derive.tables.platforms import config_id
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.show.page import evidence
from nearfree.show.page.evidence import config_entries, run_records, sample_blocks

from show.page.page import Page


def lines(layout: Layout, segment: str) -> list[dict[str, Any]]:
    """Return a segment's events, read without the project's reader."""
    path = Path(layout.events) / f"{segment}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_samples_are_those_of_the_log(made: Layout, read: Page) -> None:
    """Each visit is in the page at its line, with its samples."""
    checked = 0
    for take in (take for scope in ("cpu", "h20") for take in made.takes(scope)):
        for number, event in enumerate(lines(made, f"{take}.1"), start=1):
            if event["type"] != "nearfree.latency.measured.v1":
                continue
            in_page = read.block(f"samples:{take}")[f"{take}.1"]
            place = in_page["line"].index(number)
            for name in ("n", "baseline", "round", "order", "wall_us", "process_us", "dirty"):
                assert in_page[name][place] == event["data"][name]
            checked += 1
    assert checked > 100


def test_samples_stop_where_the_page_would_grow_too_large(
    made: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a stated size the samples of whole later takes are left out."""
    takes = [take for scope in ("cpu", "h20") for take in read_scope(made, scope)]
    every = list(sample_blocks(takes))
    assert len(every) == 3
    monkeypatch.setattr(evidence, "MAX_SAMPLE_CHARACTERS", len(every[0].text) + len(every[1].text))
    assert list(sample_blocks(takes)) == every[:2]


def test_runs_say_who_ran_what(made: Layout) -> None:
    """A run has its command, commit, versions, and segments with digests."""
    records = run_records(read_scope(made, "cpu"))
    for take in made.takes("cpu"):
        record = records[str(take)]
        (started,) = [e for e in lines(made, f"{take}.1") if e["type"].endswith("run.started.v1")]
        for name in ("command", "commit", "dirty", "versions", "host_label", "plan_digest"):
            assert record[name] == started["data"][name]
        seal = json.loads(made.seal(take).read_text())
        assert [s["sha256"] for s in record["segments"]] == [s["sha256"] for s in seal["segments"]]


def test_entries_of_the_config_name_their_sources() -> None:
    """A datasheet's facts name the documents that they were read from."""
    entries = config_entries(SHEETS, ["config/models:m@0123"])
    for name, sheet in SHEETS.items():
        assert entries[config_id(name, sheet)] == sheet.sources
    assert "digest" in entries["config/models:m@0123"]["model file"]
