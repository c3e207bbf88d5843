"""The gallery: each figure and table of the paper with its status and the command to fill it."""

import re
import shutil
from pathlib import Path

import msgspec
import nearfree
import polars as pl
import pytest
from derive.tables.logs import CONFIG, make_tables, write_probe, write_study
from nearfree.config.files import Config
from nearfree.errors import ConfigError, TableError
from nearfree.log.names import Layout
from nearfree.show.figures.gallery import (
    CALLED,
    COMPUTED,
    EXPLAINED,
    FILE,
    IMPORTED,
    MEASURED,
    MISSING,
    PUBLISHED,
    READ,
    SIMULATED,
    STATUSES,
    Entry,
    Paper,
    Results,
    gallery,
    read_gallery,
    read_paper,
)
from nearfree.show.figures.stage import draw

SCOPES = ("h20", "public")
PAGE = Path(nearfree.__file__).parent / "show" / "page" / "assets"


@pytest.fixture(scope="module")
def paper() -> Paper:
    """Return the shipped list of the paper's figures and tables."""
    return read_paper(CONFIG)


@pytest.fixture(scope="module")
def root(made: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a copy of the log and tables with a measured H20, and its figures."""
    layout = Layout(tmp_path_factory.mktemp("gallery") / "results")
    for name in ("events", "tables"):
        shutil.copytree(made.root / name, layout.root / name)
    write_probe(layout, "h20")
    write_study(layout, "h20")
    make_tables(layout, "h20")
    for scope in SCOPES:
        draw(layout, scope, 0.2)
    return layout


@pytest.fixture(scope="module")
def entries(root: Layout) -> dict[str, Entry]:
    """Return the root's gallery by label."""
    return {entry.label: entry for entry in read_gallery(root, CONFIG, SCOPES)}


def test_the_paper_is_listed_whole(paper: Paper) -> None:
    """38 figures, 4 in the main text, and 24 tables are listed once with all panels."""
    labels = [item.label for item in (*paper.figures, *paper.tables)]
    assert (len(paper.figures), len(paper.tables)) == (38, 24)
    assert len(set(labels)) == len(labels)
    assert sum(figure.section.startswith("sec.") for figure in paper.figures) == 4
    panels = {figure.label: len(paper.of(figure)) for figure in paper.figures}
    assert panels["fig:dense-ffn-h800"] == 8
    assert panels["fig:moe-lower-sglang-a800"] == 8
    assert panels["fig:attention-flashinfer-h20"] == 12
    assert panels["fig:moe-upper-ar-ling2-h800"] == 4
    assert all(
        re.fullmatch(r"(sec\. [1-9]|app\. [A-J])", figure.section) for figure in paper.figures
    )


def test_each_study_measures_what_its_entry_shows(paper: Paper) -> None:
    """An entry's study exists, measures its module and runs on its platform."""
    studies = Config(CONFIG).studies
    measured = [item for item in (*paper.figures, *paper.tables) if item.module]
    assert len(measured) == 37 + 7
    for shown in measured:
        assert shown.studies, shown.label
        for name in shown.studies:
            study = studies[name]
            fields = msgspec.to_builtins(study)
            assert fields["module"] == shown.module
            assert shown.platform in study.platforms
            assert fields["backend"].startswith(shown.backend)
            assert not shown.routing or shown.routing in fields["routing"]
            assert not shown.model or fields["model"] == shown.model


def test_what_was_measured_says_so(entries: dict[str, Entry]) -> None:
    """A measured platform's entry has a figure of each family, its rows, and no command."""
    entry = entries["fig:dense-ffn-h20"]
    assert (entry.status, entry.fills) == (MEASURED, ())
    assert {figure.name for figure in entry.figures} == {
        "dense_ffn_latency_against_n",
        "dense_ffn_nmax_against_batch",
    }, "no work was counted, so there is no utilisation"
    assert {(source.scope, source.table, source.rows) for source in entry.data} == {
        ("h20", "boundaries", 8),
        ("public", "boundaries", 24),
    }


def test_what_was_only_published_is_drawn_and_not_called_measured(
    entries: dict[str, Entry],
) -> None:
    """A table that was only published says so, with the command that measures it."""
    entry = entries["tab:sensitivity-moe-lower-sglang"]
    assert entry.status == PUBLISHED
    assert [source.rows for source in entry.data] == [32]
    assert entry.fills == ("snakemake h20/moe_sglang",)


def test_what_is_not_there_names_what_is_alike(entries: dict[str, Entry]) -> None:
    """An unmeasured platform's entry names the same families of other platforms."""
    entry = entries["fig:dense-ffn-h800"]
    assert (entry.status, entry.figures, entry.data) == (MISSING, (), ())
    assert {alike.scope for alike in entry.alike} == {"h20"}
    assert entry.fills == ("snakemake h800/dense_ffn_paper",)
    assert entries["fig:model_valid_h20_main"].status == MISSING


def test_what_needs_no_gpu_is_computed_or_explained(
    entries: dict[str, Entry], root: Layout
) -> None:
    """Trend, lookup and platforms are computed; letters name their document."""
    for label in ("fig:hardware-implication", "tab:practical_lookup", "tab:hardware_platforms"):
        assert entries[label].status == COMPUTED
        assert all(
            root.table(source.scope, source.table).is_file() for source in entries[label].data
        )
    assert [figure.name for figure in entries["fig:hardware-implication"].figures] == ["trend"]
    assert entries["tab:notation"].status == EXPLAINED
    page, _, place = entries["tab:notation"].document.partition("#")
    assert page == "report/index.html"
    pages = (PAGE / name for name in sorted(path.name for path in PAGE.glob("*.html")))
    assert any(f'id="{place}"' in page.read_text() for page in pages), "the page explains them"
    assert entries["tab:fa3-kblockm"].status == PUBLISHED, "no release was read into this root"


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        (["measured", "published"], MEASURED),
        (["simulated", "published"], SIMULATED),
        (["imported", "published"], IMPORTED),
        (["published"], PUBLISHED),
        ([], MISSING),
    ],
)
def test_the_best_origin_is_the_status(paper: Paper, origins: list[str], status: str) -> None:
    """An entry's status is its rows' best origin; only measured rows make it measured."""
    rows = pl.DataFrame(
        {
            "row_id": [f"boundaries:{number}" for number in range(len(origins))],
            "origin": origins,
        },
        schema={"row_id": pl.String, "origin": pl.String},
    ).with_columns(
        newest=pl.lit(value=True),
        platform=pl.lit("h20"),
        module=pl.lit("moe_ffn"),
        backend=pl.lit("vllm_0_9_1"),
        routing=pl.lit("skewed"),
        model=pl.lit(None, dtype=pl.String),
    )
    results = Results(listed={}, boundaries={"h20": rows}, granularity={}, counts={})
    statuses = {entry.label: entry.status for entry in gallery(paper, results)}
    assert statuses["fig:moe-lower-vllm-h20"] == status
    assert statuses["fig:moe-upper-vllm-h20"] == MISSING
    assert statuses["fig:moe-lower-sglang-h20"] == MISSING
    assert set(statuses.values()) <= {*STATUSES}


def rule(package: str, name: str, place: str, origin: str = "extracted") -> dict[str, str]:
    """Return a row of a rule read from a file or printed in a table."""
    row = f"granularity:{package}.{name}.{place}"
    return {"row_id": row, "origin": origin, "package": package, "path": name, "place": place}


@pytest.mark.parametrize(
    ("label", "read", "status", "rows"),
    [
        ("tab:flashattn-query-tile-kernel", ("flash-attn", "mechanism_grid"), CALLED, 1),
        ("tab:flashattn-query-tile-launch", ("flash-attn", "mechanism_grid"), READ, 1),
        ("tab:flashinfer-query-tile-kernel", ("flashinfer-python", "mechanism_tiles"), CALLED, 1),
        ("tab:flashinfer-query-tile-scheduler", ("flashinfer-python", "packed_length"), READ, 1),
        ("tab:vllm-moe-align-block-size", ("vllm", "mechanism_alignment"), CALLED, 1),
        ("tab:sglang-moe-align-block-size", ("sglang", "mechanism_alignment"), CALLED, 1),
        ("tab:vllm-moe-align-block-size", ("vllm", "block_size_m"), MISSING, 0),
        ("tab:fa3-kblockm", ("xformers", "tile"), READ, 2),
        ("tab:fa3-kblockm", ("flash-attn", "tile"), PUBLISHED, 1),
        ("tab:fa2-kblockm", ("flash-attn", "tile"), READ, 1),
    ],
)
def test_a_table_of_rules_says_what_of_it_was_read(
    paper: Paper, label: str, read: tuple[str, str], status: str, rows: int
) -> None:
    """Each entry has the rules of its own code only."""
    printed = rule("flash-attn", "SM90", "tab:fa3-kblockm", "published")
    granularity = pl.DataFrame([rule(*read, "a.py"), rule(*read, "none"), printed])
    results = Results(listed={}, boundaries={}, granularity={"sources": granularity}, counts={})
    (entry,) = (entry for entry in gallery(paper, results) if entry.label == label)
    assert (entry.status, sum(source.rows for source in entry.data)) == (status, rows)


def test_studies_of_models_are_a_set_of_their_own(paper: Paper) -> None:
    """The page names the set of studies that measures whole models."""
    studies = Config(CONFIG).studies
    sets = {
        studies[name].set for figure in paper.figures if figure.model for name in figure.studies
    }
    assert sets == {"paper_models"}
    assert (
        "for whole models that is\n<code>paper_models</code>" in (PAGE / "gallery.html").read_text()
    )


def test_a_damaged_table_is_named(root: Layout, tmp_path: Path) -> None:
    """A table whose rows are counted is checked by its hash first."""
    layout = Layout(tmp_path / "results")
    shutil.copytree(root.root, layout.root)
    path = layout.table("public", "platforms")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TableError, match=r"platforms\.parquet is not what its manifest says"):
        read_gallery(layout, CONFIG, SCOPES)


def test_unknown_panels_are_refused(tmp_path: Path) -> None:
    """A list with an unknown panel is refused by the entry's label."""
    path = tmp_path / FILE
    path.parent.mkdir()
    path.write_text(
        "panels: {}\nfigures: [{label: fig:a, section: app. A, panels: gone}]\ntables: []\n"
    )
    with pytest.raises(ConfigError, match=r"fig:a has the unknown panels 'gone'"):
        read_paper(tmp_path)
