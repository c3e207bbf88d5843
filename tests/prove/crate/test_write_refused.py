"""Crates that are not written: each refusal, and that nothing of a crate is left."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from derive.tables.logs import CONFIG, write_study
from msgspec import structs
from nearfree.errors import WriteError
from nearfree.log.document import (
    Manifest,
    manifest_path,
    read_document,
    render,
    write_folder_manifest,
)
from nearfree.log.ledger import read_chain, write_ledger
from nearfree.log.names import Layout
from nearfree.prove.crate.check import check_crate
from nearfree.prove.crate.graph import crate_layout
from nearfree.prove.crate.write import write_crate
from nearfree.show.figures.listing import LIST, read_figures
from prove.crate.conftest import PROJECT
from prove.crate.written_crates import faults, refused

pytestmark = pytest.mark.slow


def test_tables_of_other_takes_are_refused(root: Layout, tmp_path: Path) -> None:
    """Tables made from takes that the ledger does not list are refused."""
    write_study(root, "cpu", 2)
    write_ledger(root, root.ledgers / "local", CONFIG)
    refusal = refused(root, tmp_path / "out")
    assert "made from other events/cpu than ledger 2 records. Run the workflow" in refusal


def test_tables_of_another_config_are_refused(root: Layout, tmp_path: Path) -> None:
    """Tables made under other tolerances than the ledger's are refused."""
    config = Path(shutil.copytree(CONFIG, tmp_path / "config"))
    text = (config / "config.yaml").read_text()
    (config / "config.yaml").write_text(text.replace("0.15, ", ""))
    refusal = refused(root, tmp_path / "out", config=config)
    assert "config.yaml is other than ledger 1 records" in refusal
    assert "nearfree report --as-of 1" in refusal
    write_ledger(root, root.ledgers / "local", config)
    refusal = refused(root, tmp_path / "out", config=config)
    assert "made from other config/config.yaml:tolerances than ledger 2 records" in refusal


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("platforms", "config/platforms.yaml:cpu"),
        ("sensitivity", "config/config.yaml:epsilon"),
        ("boundaries", "config/config.yaml:tolerances"),
        ("boundaries", "config/models:unknown"),
    ],
)
def test_any_part_of_a_config_is_compared(
    root: Layout, tmp_path: Path, table: str, name: str
) -> None:
    """Each datasheet, tolerance and model in a manifest is compared with the ledger's config."""
    path = manifest_path(root.table("cpu", table))
    manifest = read_document(path, Manifest)
    other = {**manifest.made_from, name: "0" * 12}
    path.write_bytes(render(structs.replace(manifest, made_from=other, hash="")))
    assert f"is made from other {name} than" in refused(root, tmp_path / "out")


def test_tables_of_other_code_are_refused(
    root: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the code changed since the ledger, only tables made again as of it are accepted."""
    monkeypatch.setattr("nearfree.prove.audit.ledgers.package_digest", lambda: "0" * 16)
    assert "other code or libraries installed ('code' was" in refused(root, tmp_path / "out")
    again = root.root / "as_of" / "000001"
    for name in ("tables", "figures"):
        shutil.copytree(root.root / name, again / "results" / name)
    shutil.copytree(CONFIG, again / "config")
    assert write_crate(root, PROJECT, CONFIG, tmp_path / "out").other_code
    (again / "config" / "config.yaml").write_text("here: [h20]\n")
    assert "other code or libraries" in refused(root, tmp_path / "more")


def test_tables_of_other_tables_are_refused(root: Layout, tmp_path: Path) -> None:
    """A table made from another version of an input table is refused."""
    latency = root.table("cpu", "latency")
    for path in (latency, latency.with_name("latency.parquet.manifest.json")):
        path.write_bytes((root.root / "tables" / "public" / path.name).read_bytes())
    assert "is made from other" in refused(root, tmp_path / "out")


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        (True, "figures.json is made from other tables/cpu/"),
        (False, "boundaries.parquet.manifest.json is made from other latency than"),
    ],
)
def test_a_table_that_others_are_made_from_must_be_there(
    root: Layout, tmp_path: Path, *, figures: bool, told: str
) -> None:
    """Tables and figures whose input table is gone are refused, and a crate of them is unsound."""
    write_crate(root, PROJECT, CONFIG, tmp_path / "sound")
    for layout in (root, crate_layout(tmp_path / "sound")):
        latency = layout.table("cpu", "latency")
        if figures:
            shutil.rmtree(latency.parent)
        else:
            for file in (latency, manifest_path(latency)):
                file.unlink()
    assert told in refused(root, tmp_path / "out")
    assert any(told in finding.message for finding in check_crate(tmp_path / "sound"))


def test_figures_of_other_tables_are_refused(root: Layout, tmp_path: Path) -> None:
    """Figures drawn before a table was made again are refused."""
    listed = read_figures(root.root / "figures" / "cpu")
    before = listed.made_from | {"tables/cpu/latency": "0" * 64}
    drawn = render(structs.replace(listed, made_from=before, hash=""))
    (root.root / "figures" / "cpu" / LIST).write_bytes(drawn)
    refusal = refused(root, tmp_path / "out")
    assert "figures.json is made from other tables/cpu/latency" in refusal


def test_a_report_of_other_figures_is_refused(root: Layout, tmp_path: Path) -> None:
    """A report that shows older figures than the root's is refused."""
    report = root.root / "report"
    shutil.copytree(root.root / "figures", report / "figures")
    write_folder_manifest(report)
    write_crate(root, PROJECT, CONFIG, tmp_path / "sound")
    assert faults(tmp_path / "sound") == []
    shown = next((report / "figures").rglob("*.svg"))
    shown.write_text("<svg/>")
    write_folder_manifest(report)
    assert f"shows another {shown.relative_to(report)}" in refused(root, tmp_path / "out")


def _change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"\n\n")


def _home(layout: Layout) -> None:
    config = layout.root.parent / "config"
    config.mkdir()
    (config / "config.yaml").write_text(f"python: {{vllm: {Path.home()}/bin/python}}\n")
    write_ledger(layout, layout.ledgers / "local", config)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda root: shutil.rmtree(root.ledgers), "holds no ledger"),
        (
            lambda root: _change(root.ledgers / "local" / "000001.json"),
            "does not match its own hash",
        ),
        (
            lambda root: _change(next(root.events.rglob("*.seal.json"))),
            "does not match its own hash",
        ),
        (lambda root: next(root.events.rglob("*.jsonl")).unlink(), "cannot be read"),
        (lambda root: _change(root.table("cpu", "latency")), "not what its manifest says"),
        (lambda root: next(root.root.rglob("*.svg")).unlink(), ".svg"),
        (_home, "home folder"),
    ],
)
def test_what_is_not_sound_is_refused(
    root: Layout,
    tmp_path: Path,
    harm: Callable[[Layout], None],
    message: str,
) -> None:
    """A missing ledger, damage, or private text is refused."""
    harm(root)
    assert message in refused(root, tmp_path / "out")


def test_a_folder_with_something_in_it_is_refused(made: Layout, tmp_path: Path) -> None:
    """A folder that is not empty is refused; an empty one is filled."""
    (tmp_path / "out").mkdir()
    write_crate(made, PROJECT, CONFIG, tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "inside").symlink_to(made.root)
    for path in (made.root / "crate", made.root, tmp_path / "inside" / "report"):
        with pytest.raises(WriteError, match=r"is (in|not empty)"):
            write_crate(made, PROJECT, CONFIG, path)
        assert not (made.root / "crate").exists()
    for name in ("out", "link"):
        assert "is not empty" in refused(made, tmp_path / name)


def test_a_ledger_that_is_not_there_is_refused(made: Layout, tmp_path: Path) -> None:
    """A number without a ledger, and text that names no ledger, are refused."""
    assert "there is no ledger 2" in refused(made, tmp_path / "out", name="2")
    for name in ("../1", ""):
        assert "names no ledger" in refused(made, tmp_path / "out", name=name)


@pytest.mark.parametrize("derived", [True, False])
def test_a_config_file_never_leaves_its_folder(
    root: Layout, tmp_path: Path, *, derived: bool
) -> None:
    """A ledger whose config would be written elsewhere is refused, with or without tables."""
    for name in () if derived else ("tables", "figures"):
        shutil.rmtree(root.root / name)
    (ledger,) = read_chain(root.ledgers / "local")
    config = {**ledger.config, "../more.yaml": "a: 1\n"}
    path = root.ledgers / "local" / "000001.json"
    path.write_bytes(render(structs.replace(ledger, config=config, hash="")))
    assert "no name of a config file" in refused(root, tmp_path / "out")
    assert not (tmp_path / "more.yaml").exists()


def test_the_workflow_must_be_here(made: Layout, tmp_path: Path) -> None:
    """Outside the project's folder the command says that the Snakefile is missing."""
    assert "Snakefile is not here" in refused(made, tmp_path / "out", project=tmp_path)
