"""The full audit: a sound root passes, and each single fault is named."""

import json
import os
import random
import re
import shutil
import signal
from pathlib import Path

import polars as pl
import pytest
from derive.tables.logs import write_study
from msgspec import structs
from nearfree.derive.jobs import TABLES, Job, job_of, make
from nearfree.derive.tables.store import write_table
from nearfree.errors import EvidenceError, StoppedError
from nearfree.log.document import (
    Manifest,
    manifest_path,
    read_document,
    render,
    replace,
    write_folder_manifest,
)
from nearfree.log.line import sha256
from nearfree.log.names import Layout, parse_take
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit import full_audit
from nearfree.prove.audit.full_audit import audit_all, unmade_files
from nearfree.prove.audit.recompute import jobs, scratch_root
from nearfree.prove.audit.table_index import table_files
from nearfree.show.figures.listing import read_figures
from nearfree.show.page.stage import report_of
from prove.audit.conftest import Made

pytestmark = pytest.mark.slow


def test_everything_of_a_root_is_what_its_log_gives(shared):
    """A sound root has no finding, and the counts are those of the files on disk."""
    audit = audit_all(shared.layout, shared.config)
    files = table_files(shared.layout)
    frames = [pl.read_parquet(path) for path in files]
    assert audit.findings == ()
    assert audit.tables == len(files)
    assert audit.rows == sum(frame.height for frame in frames)
    assert audit.cells == sum(frame.height * frame.width for frame in frames)
    lists = (shared.layout.root / "figures").glob("*/figures.json")
    figures = [figure for path in lists for figure in json.loads(path.read_bytes())["figures"]]
    assert (audit.figures, audit.marks) == (len(figures), sum(len(f["rows"]) for f in figures))


@pytest.fixture(scope="module")
def recomputed(shared, tmp_path_factory) -> Layout:
    """Return a scratch root in which every table was made again."""
    scratch = scratch_root(shared.layout, tmp_path_factory.mktemp("scratch") / "results")
    pipeline = Pipeline(scratch.root, shared.config)
    for job in jobs(pipeline):
        make(pipeline.layout, pipeline.config, job)
    return scratch


def audited(job: Job, made, recomputed: Layout) -> tuple[str, ...]:
    """Return the findings of the audit of one stage."""
    return full_audit._audit_job(
        job, made.layout.root, recomputed.root, made.config, drawn=False
    ).findings


def rewrite(made: Made, name: str, frame: pl.DataFrame) -> None:
    """Replace a table, and write a manifest that fits."""
    manifest = read_document(manifest_path(made.layout.table("cpu", name)), Manifest)
    write_table(made.layout, "cpu", TABLES[name], frame, manifest.made_from)


FILLED = ("latency", "boundaries", "sensitivity", "predictions", "validation", "scores",
          "platforms", "settings", "claims")  # fmt: skip


@pytest.mark.parametrize("name", FILLED)
def test_a_changed_cell_with_a_valid_manifest_is_found(made, recomputed, name):
    """A changed number is found even if its manifest fits, since the log gives another."""
    path = made.layout.table("cpu", name)
    frame, chance = pl.read_parquet(path), random.Random(name)  # noqa: S311
    if frame.is_empty():
        pytest.fail(f"the table {name} is empty, so nothing of it is audited")
    numbers = frame.select(pl.selectors.numeric()).columns or ["platform"]
    column, place = chance.choice(numbers), chance.randrange(frame.height)
    values = frame[column].to_list()
    values[place] = f"{values[place]}x" if column == "platform" else (values[place] or 0) + 1
    rewrite(made, name, frame.with_columns(pl.Series(column, values, dtype=frame.schema[column])))
    (finding,) = audited(job_of("cpu", name), made, recomputed)
    assert finding.startswith(f"{path}: {frame['row_id'][place]} says {column} = ")


def test_a_valid_id_of_another_row_is_found(made, recomputed):
    """A row whose ids name existing rows, but not those it was made from, is found."""
    frame = pl.read_parquet(made.layout.table("cpu", "boundaries"))
    ids = frame["from_ids"].to_list()
    swapped = frame.with_columns(pl.Series("from_ids", [*ids[1:], ids[0]]))
    rewrite(made, "boundaries", swapped)
    findings = audited(Job("boundaries", "cpu"), made, recomputed)
    assert all("says from_ids = " in finding for finding in findings)
    assert findings


def test_a_changed_byte_of_a_table_is_found(made, recomputed):
    """A table that differs from its manifest is reported and not compared."""
    path = made.layout.table("cpu", "latency")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    findings = audited(Job("project", "cpu"), made, recomputed)
    assert any("latency.parquet" in finding and "manifest" in finding for finding in findings)


def test_a_removed_segment_fails_the_audit(made):
    """A missing segment is named, and rows made from it are not recomputed."""
    take = parse_take(next(str(t) for t in made.layout.takes("cpu") if t.stream == "dense_ffn"))
    made.layout.segment(take, 1).unlink()
    findings = audit_all(made.layout, made.config).findings
    (first, *others) = findings
    assert first.startswith("project of cpu cannot be recomputed: ")
    assert str(made.layout.segment(take, 1)) in first
    rests = {finding.partition(" needs a table ")[0] for finding in others}
    rest = ("boundaries", "engine_steps", "predictions", "validation", "claims", "figures")
    assert rests == {f"{stage} of cpu" for stage in rest}


def killed(root: Path) -> None:
    """End this process as the system ends one when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_process_is_one_message(made, monkeypatch):
    """If a process of the audit is killed, the root is named, and what to do."""
    monkeypatch.setattr(full_audit, "_audit_ids", killed)
    with pytest.raises(StoppedError, match=rf"tables of {made.layout.root} was killed"):
        audit_all(made.layout, made.config)


def test_a_root_without_a_table_is_refused(made):
    """As in a fresh clone: nothing was reported, so nothing can differ."""
    shutil.rmtree(made.layout.root / "tables")
    with pytest.raises(EvidenceError, match="no number was reported from its log yet"):
        audit_all(made.layout, made.config)


def test_a_removed_take_is_found(made, tmp_path):
    """If a take's seal and segment are gone, rows made from it are reported."""
    take = next(t for t in made.layout.takes("cpu") if t.take == 2)
    made.layout.segment(take, 1).unlink()
    made.layout.seal(take).unlink()
    findings = audited(Job("project", "cpu"), made, scratch_root(made.layout, tmp_path / "scratch"))
    assert any(
        "latency.parquet: latency:" in finding and "does not give" in finding
        for finding in findings
    )


def test_a_take_that_came_later_is_found(made, tmp_path):
    """Tables older than the newest take are reported, with a limited list of differences."""
    write_study(made.layout, take=3, slower=1.3)
    findings = audited(Job("project", "cpu"), made, scratch_root(made.layout, tmp_path / "scratch"))
    assert any("latency.parquet" in finding and "is missing" in finding for finding in findings)
    assert any(
        re.fullmatch(r".*/tables/cpu/latency.parquet: and \d+ more", finding)
        for finding in findings
    )


def test_a_table_that_no_stage_makes_is_found(made):
    """A table that no stage makes is named."""
    path = made.layout.table("cpu", "boundaries")
    path.with_name("more.parquet").write_bytes(path.read_bytes())
    findings = list(unmade_files(made.layout, Pipeline(made.layout.root, made.config)))
    odd = path.with_name("more.parquet")
    assert findings == [f"{odd}: no stage makes this table from this log and config"]


def test_forged_inputs_are_found(made, recomputed):
    """A manifest that lists other inputs than the table was made from is found."""
    path = manifest_path(made.layout.table("cpu", "boundaries"))
    manifest = read_document(path, Manifest)
    replace(path, render(structs.replace(manifest, made_from={"events/evil": "0" * 64})))
    (finding,) = audited(Job("boundaries", "cpu"), made, recomputed)
    assert "its manifest names other inputs" in finding


def fit(folder: Path) -> None:
    """Update the list of a scope's figures to what its files now hold."""
    listed = read_figures(folder)
    files = {name: sha256((folder / name).read_bytes()) for name in listed.files}
    replace(folder / "figures.json", render(structs.replace(listed, files=files)))


def test_a_changed_mark_is_found(made, recomputed):
    """A figure's page with changed data is found."""
    folder = made.layout.root / "figures/cpu"
    path = next(folder.glob("*latency_against_n.html"))
    text = re.sub(r'"latency_ms": [\d.]+', '"latency_ms": 1e-3', path.read_text(), count=1)
    assert text != path.read_text()
    path.write_text(text)
    fit(folder)
    (finding,) = audited(Job("figures", "cpu"), made, recomputed)
    assert finding == f"{path}: is not what the log and config give"


def test_another_specification_in_a_page_is_found(made, recomputed):
    """A page that draws another specification than the listed one is found."""
    folder = made.layout.root / "figures/cpu"
    path = next(folder.glob("*latency_against_n.html"))
    path.write_text(path.read_text().replace("<div", '<script id="spec">{}</script><div', 1))
    fit(folder)
    (finding,) = audited(Job("figures", "cpu"), made, recomputed)
    assert finding == f"{path}: is not what the log and config give"


def test_figures_of_a_scope_that_nothing_draws_are_found(made):
    """A folder of figures of a scope that no stage draws is found."""
    folder = made.layout.root / "figures"
    shutil.copytree(folder / "cpu", folder / "h100")
    pipeline = Pipeline(made.layout.root, made.config)
    (finding,) = unmade_files(made.layout, pipeline)
    assert finding.startswith(f"{folder}/h100: no stage draws figures of h100")


@pytest.fixture(scope="module")
def whole_root(shared, tmp_path_factory) -> Made:
    """Return a root that has a report, too."""
    root = tmp_path_factory.mktemp("whole") / "results"
    shutil.copytree(shared.layout.root, root)
    report_of(Pipeline(root, shared.config))
    return Made(Layout(root), shared.config)


DRAWN = (
    ("figures/cpu/dense_ffn_latency_against_n.svg", b"</svg>", b"<text>N_max = 9</text></svg>"),
    ("figures/vega.js", b"const n=", b"const  n="),
    ("report/index.html", b"How many positions", b"How few positions"),
    ("report/figures/cpu/dense_ffn_latency_against_n.html", b"</body>", b"9</body>"),
)
"""Files that are drawn, each with a text of it and what stands in its place."""


@pytest.mark.slow
def test_every_changed_drawing_and_page_is_found(whole_root, tmp_path):
    """With --drawn, each changed file is found although the manifests fit, and no other."""
    root = Path(shutil.copytree(whole_root.layout.root, tmp_path / "results"))
    for file, old, new in DRAWN:
        raw = (root / file).read_bytes()
        assert old in raw
        (root / file).write_bytes(raw.replace(old, new, 1))
    scopes = ("cpu", "h20", "public")
    for scope in scopes:
        fit(root / "figures" / scope)
    write_folder_manifest(root / "report")
    findings = set(audit_all(Layout(root), whole_root.config, drawn=True).findings)
    lists = ("report/manifest.json", *(f"figures/{scope}/figures.json" for scope in scopes))
    drawn_findings, list_findings = (
        {f"{root}/{file}: is not what the log and config give" for file in files}
        for files in ([file for file, _, _ in DRAWN], lists)
    )
    assert drawn_findings <= findings <= drawn_findings | list_findings


@pytest.mark.slow
def test_an_unchanged_report_is_what_the_log_gives(whole_root):
    """Figures and report drawn again are the same byte for byte."""
    assert audit_all(whole_root.layout, whole_root.config, drawn=True).findings == ()
