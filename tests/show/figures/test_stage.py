"""The stage `figures`: reproducible files, and the list that the report reads."""

import re
import shutil
from importlib import import_module
from pathlib import Path

import altair as alt
import msgspec
import polars as pl
import pytest
from derive.tables.logs import CONFIG, make_tables, write_probe
from nearfree.config.files import Config
from nearfree.derive.outlook.outlook import write_outlook
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.store import read_table, table_digest
from nearfree.derive.tables.work import WORK
from nearfree.errors import DamageError, NearfreeError
from nearfree.log.document import render
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.show.figures import page
from nearfree.show.figures.listing import LIST, OUTLOOK, Figure, read_figures
from nearfree.show.figures.page import BUNDLE, write_bundle
from nearfree.show.figures.stage import charts, draw, save, specification

from show.figures.drawings import read_spec
from show.figures.studies import write_module_study

pytestmark = pytest.mark.slow

NAMES = [
    "dense_ffn_latency_against_n",
    "dense_ffn_nmax_against_batch",
    "dense_ffn_sensitivity",
    "dense_ffn_utilization_against_batch",
    "dense_ffn_utilization_against_n",
    "accuracy_predicted_against_measured",
    "accuracy_shares",
    "accuracy_error_by_backend",
]
MODELS = [
    "boundary_over_batch",
    "boundary_over_batch_paper_baseline",
    "boundary_over_context",
    "boundary_over_context_paper_baseline",
    "trend",
]
"""Without rules and constants T(N) is not known, and nothing changes between releases."""


@pytest.fixture(scope="module")
def made(published: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a root with a probe, a dense study, the paper's values, and tables."""
    layout = Layout(tmp_path_factory.mktemp("small") / "results")
    shutil.copytree(published.root, layout.root)
    write_probe(layout)
    write_module_study(layout, "dense_ffn")
    make_tables(layout, "cpu")
    return layout


@pytest.fixture(scope="module")
def drawn(made: Layout) -> Path:
    """Draw a platform's figures and return their folder."""
    draw(made, "cpu", 0.2)
    return made.root / "figures" / "cpu"


@pytest.fixture
def copy(made: Layout, tmp_path: Path) -> Layout:
    """Return a copy of the results, which a test may change."""
    return Layout(Path(shutil.copytree(made.root, tmp_path / "results")))


def listed(folder: Path) -> list[Figure]:
    """Return the listed figures."""
    return list(read_figures(folder).figures)


def test_every_figure_is_drawn_twice(drawn: Path) -> None:
    """Each figure is an SVG and a page, and the list names both."""
    expected = [f"{name}.{kind}" for name in NAMES for kind in ("html", "svg")]
    assert sorted(path.name for path in drawn.iterdir()) == sorted(["figures.json", *expected])
    assert [figure.name for figure in listed(drawn)] == NAMES
    assert all(figure.caption for figure in listed(drawn))


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("dense_ffn_latency_against_n", ["positions N", "T(N), ms", "Latency against N"]),
        ("dense_ffn_nmax_against_batch", ["batch b", "N_max, positions", "N_max against batch"]),
        ("dense_ffn_sensitivity", ["tolerance", "batch b", "N_max by batch and tolerance"]),
        ("dense_ffn_utilization_against_n", ["positions N", "utilisation", "Utilisation against"]),
    ],
)
def test_titles_are_in_the_picture(drawn: Path, name: str, titles: list[str]) -> None:
    """The picture shows its title and its axes with units."""
    text = (drawn / f"{name}.svg").read_text()
    assert text.startswith("<svg")
    assert all(f">{title}" in text for title in titles)


def test_the_list_names_the_rows_that_are_shown(made: Layout, drawn: Path) -> None:
    """Each figure lists its marks' rows, which exist in the tables."""
    rows = {
        row
        for scope in ("cpu", "public")
        for kind in (LATENCY, WORK, BOUNDARIES, PREDICTIONS, VALIDATION)
        for row in read_table(made, scope, kind)["row_id"]
    }
    for figure in listed(drawn):
        assert figure.rows
        assert set(figure.rows) <= rows
        assert len(set(figure.rows)) == len(figure.rows)


def test_drawing_again_gives_the_same_bytes(made: Layout, drawn: Path) -> None:
    """The same tables give the same files, and files of older versions are removed."""
    before = {path: path.read_bytes() for path in drawn.parent.rglob("*.*")}
    (drawn / "older.svg").write_text("<svg/>")
    (drawn.parent / BUNDLE).write_bytes(b"older")
    draw(made, "cpu", 0.2)
    assert {path: path.read_bytes() for path in drawn.parent.rglob("*.*")} == before


@pytest.mark.parametrize("at", [5, -5])
def test_a_changed_script_is_made_again(drawn: Path, tmp_path: Path, at: int) -> None:
    """If any byte of the shared script is missing, it is made again."""
    script = (drawn.parent / BUNDLE).read_bytes()
    raw = bytearray(script)
    del raw[at]
    (tmp_path / BUNDLE).write_bytes(raw)
    assert write_bundle(tmp_path).read_bytes() == script


def test_a_whole_script_is_not_made_again(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script with the right versions and digest is kept."""
    shutil.copy(drawn.parent / BUNDLE, tmp_path)
    monkeypatch.setattr(page, "bundle", None)
    assert write_bundle(tmp_path).read_bytes() == (drawn.parent / BUNDLE).read_bytes()


def test_pages_load_the_shared_script_alone(drawn: Path) -> None:
    """A page is small, loads the script beside it, and may load nothing else."""
    for name in NAMES:
        text = (drawn / f"{name}.html").read_text()
        assert re.findall(r'<script[^>]*\ssrc="([^"]*)"', text) == [f"../{BUNDLE}"]
        assert "<link" not in text
        assert "default-src 'none'; script-src 'self' file:;" in text
        assert "unsafe-eval" not in text
        assert len(text) < 200_000
    assert (drawn.parent / BUNDLE).stat().st_size < 1_500_000


def test_the_list_names_every_file_by_digest(made: Layout, drawn: Path) -> None:
    """The list holds the digest of each file and of each input table."""
    listed = read_figures(drawn)
    every = [f"../{BUNDLE}", *(path.name for path in drawn.iterdir() if path.name != LIST)]
    assert listed.files == {name: sha256((drawn / name).read_bytes()) for name in every}
    assert listed.made_from["tables/public/boundaries"] == table_digest(made, "public", BOUNDARIES)
    assert {name.split("/")[1] for name in listed.made_from} == {"cpu", "public"}


@pytest.mark.parametrize("change", [{"files": {}}, {"figures": ({"name": "x"},)}, {"more": 1}])
def test_a_forged_list_is_refused(copy: Layout, drawn: Path, change: dict[str, object]) -> None:
    """A list with unknown fields is refused, even if its hash is right."""
    path = copy.root / "figures.json"
    fields = msgspec.to_builtins(read_figures(drawn)) | change
    if change == {"files": {}}:
        fields.pop("made_from")
    path.write_bytes(render(msgspec.defstruct("Forged", list(fields))(**fields)))
    with pytest.raises(DamageError, match=r"figures.json is not a figurelist"):
        read_figures(copy.root)


def test_each_figure_says_which_function_drew_it(drawn: Path) -> None:
    """A figure names the existing function that drew it; its family is the last part."""
    for figure in listed(drawn):
        module, _, name = figure.rule.rpartition(".")
        assert callable(getattr(import_module(module), name))
        assert figure.family == name


def test_pages_draw_what_is_recomputed(made: Layout, drawn: Path) -> None:
    """Each page's specification is that of its tables, which is known without drawing."""
    before = {path: path.stat().st_mtime_ns for path in drawn.iterdir()}
    again = charts(made, "cpu", 0.2)
    assert [figure for figure, _ in again] == listed(drawn)
    for figure, spec in again:
        assert read_spec(drawn / f"{figure.name}.html") == spec
    assert {path: path.stat().st_mtime_ns for path in drawn.iterdir()} == before


def test_what_was_only_published_is_drawn_against_its_predictions(copy: Layout) -> None:
    """A scope without curves has the figures of predictions only, models apart."""
    write_outlook(copy, "public", Config(CONFIG))
    draw(copy, "public", 0.2)
    figures = listed(copy.root / "figures" / "public")
    scores = [figure.name for figure in figures if figure.about == ""]
    assert scores == [name for name in NAMES if name.startswith("accuracy_")]
    assert [figure.name for figure in figures if figure.about == OUTLOOK] == MODELS


def test_no_text_of_the_data_ends_a_script(tmp_path: Path) -> None:
    """Text that looks like markup stays text inside a page's script, and in its title."""
    frame = pl.DataFrame({"a": ["</script><b>"]})
    chart = alt.Chart(frame, title=alt.TitleParams("</title><b>")).mark_point().encode(x="a:N")
    spec = specification(chart)
    save(spec, tmp_path / "hostile")
    text = (tmp_path / "hostile.html").read_text()
    assert "</script><b>" not in text
    assert "</title><b>" not in text
    assert "u003c/script>" in text
    assert read_spec(tmp_path / "hostile.html") == spec


def test_imported_curves_are_drawn_only_where_they_are_asked_for(copy: Layout) -> None:
    """Without their tables imported curves are refused if asked for, else left out."""
    with pytest.raises(NearfreeError, match="accuracy"):
        draw(copy, "public", 0.2, imported=True)


def test_a_scope_without_tables_leaves_nothing(copy: Layout) -> None:
    """A missing scope is refused, and no folder is made."""
    with pytest.raises(NearfreeError, match="mars"):
        draw(copy, "mars", 0.2)
    assert not (copy.root / "figures" / "mars").exists()


def test_a_damaged_table_leaves_the_old_figures(copy: Layout, drawn: Path) -> None:
    """If a table is damaged, the earlier figures stay."""
    folder = copy.root / "figures" / "cpu"
    if not folder.exists():
        shutil.copytree(drawn, folder)
    before = sorted(path.name for path in folder.iterdir())
    path = copy.table("cpu", "boundaries")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(NearfreeError, match="boundaries"):
        draw(copy, "cpu", 0.2)
    assert sorted(path.name for path in folder.iterdir()) == before
