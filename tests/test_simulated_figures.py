"""Every family of the paper's figures, drawn by the workflow from a simulated log."""

import shutil
from pathlib import Path

import pytest
from nearfree.log.names import Layout
from nearfree.show.figures.gallery import (
    COMPUTED,
    MISSING,
    SIMULATED,
    Entry,
    read_gallery,
    read_paper,
)
from nearfree.show.figures.listing import Figure, read_figures
from once import made_once
from show.figures.drawings import has_titled_axes, read_spec, says

from workflow import ROOT, make_project

pytestmark = pytest.mark.slow
RECORDED = ("public/constants", "sources/vllm_0_33_0", "sources/flash_attn_2_8_3")
CURVES, RESULTS = "simulated/curves", "simulated/results"
ROOTED = ("--config", f"results={RESULTS}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root of its own, in which a simulated H20 has run every module and a model."""

    def make(folder: Path) -> None:
        project = make_project(folder, "families")
        for name in RECORDED:
            recorded = ROOT / "results" / "events" / name
            shutil.copytree(recorded, project / f"{RESULTS}/events" / name)
        project.nearfree("predict", "--curves", CURVES, "--results", RESULTS)
        project.snakemake("h20", f"{RESULTS}/figures/public/figures.json", *ROOTED)
        assert "0 damaged, 0 notices" in project.nearfree("verify", "--results", RESULTS)
        assert not (project / "results").exists()

    return made_once(tmp_path_factory, "families", make) / RESULTS


@pytest.fixture(scope="module")
def entries(root: Path) -> dict[str, Entry]:
    """Return the gallery's entries by label."""
    return {entry.label: entry for entry in read_gallery(Layout(root), ROOT / "config", SCOPES)}


SCOPES = ("h20", "public")


def listed(root: Path, scope: str) -> tuple[Figure, ...]:
    """Return the figures of a scope."""
    return read_figures(root / "figures" / scope).figures


def test_every_family_of_the_paper_is_drawn(root: Path) -> None:
    """Each panel of each figure and table of the paper has its family among the figures."""
    families = {
        f for panels in read_paper(ROOT / "config").panels.values() for f in panels.values()
    }
    drawn = {figure.family for scope in SCOPES for figure in listed(root, scope)}
    assert families <= drawn


def test_each_figure_has_axes_with_titles_and_says_simulated(root: Path) -> None:
    """Every axis that is drawn says what it shows, and no simulated number is called measured."""
    for figure in listed(root, "h20"):
        spec = read_spec(root / f"figures/h20/{figure.name}.html")
        assert has_titled_axes(spec), figure.name
        assert not any("measured" in text.lower() for text in says(spec)), figure.name
        assert spec["title"]["text"].startswith("Simulated: ")


@pytest.mark.parametrize(
    ("label", "figures"),
    [
        ("fig:dense-ffn-h20", 4),
        ("fig:moe-upper-vllm-h20", 4),
        ("fig:moe-lower-vllm-h20", 4),
        ("fig:attention-flashatten-h20", 4),
        ("tab:sensitivity-moe-upper-vllm", 1),
    ],
)
def test_what_was_simulated_is_in_the_gallery(
    entries: dict[str, Entry], root: Path, label: str, figures: int
) -> None:
    """An entry of the simulated platform says so, and each of its families has its file."""
    entry = entries[label]
    assert entry.status == SIMULATED
    shown = [figure for figure in entry.figures if figure.scope == "h20"]
    assert len(shown) == figures
    for figure in shown:
        stem = root / "figures" / figure.scope / figure.name
        assert stem.with_suffix(".html").is_file()
        assert stem.with_suffix(".svg").is_file()


def test_what_was_not_simulated_is_missing_or_computed(entries: dict[str, Entry]) -> None:
    """Another platform's figure is missing, with its likes and its command; the trend is there."""
    entry = entries["fig:dense-ffn-a800"]
    assert entry.status == MISSING
    assert entry.figures == ()
    assert entry.fills == ("snakemake a800/dense_ffn_paper",)
    assert {alike.scope for alike in entry.alike} == {"h20"}
    assert entries["fig:hardware-implication"].status == COMPUTED
