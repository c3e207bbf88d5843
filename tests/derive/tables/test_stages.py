"""The stages: the same log gives the same bytes, and rows of removed events disappear."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from conftest import read_sealed
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.claims.judge import CLAIMS
from nearfree.derive.outlook.lookup import PUBLISHED_LOOKUP
from nearfree.derive.outlook.trend import TREND
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.score.scores import SCORES
from nearfree.derive.score.validation import VALIDATION
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY, write_boundaries
from nearfree.derive.tables.granularity import GRANULARITY
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.project import project
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.settings import SETTINGS
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.derive.tables.work import WORK
from nearfree.derive.truth.datasets import load_published
from nearfree.errors import EvidenceError, TableError
from nearfree.log.document import Manifest, manifest_path, read_document
from nearfree.log.events import LatencyMeasured
from nearfree.log.names import Layout
from nearfree.log.retract import retract

from derive.tables.logs import make_tables, write_probe, write_study

pytestmark = pytest.mark.slow

EVERY: tuple[Table, ...] = (
    PLATFORMS,
    SETTINGS,
    LATENCY,
    WORK,
    TIME_SHARES,
    GRANULARITY,
    BOUNDARIES,
    SENSITIVITY,
    PREDICTIONS,
    VALIDATION,
    COMPOSITION,
    SCORES,
    CLAIMS,
)
WRITERS = (
    write_probe,
    lambda layout: write_probe(layout, take=2, peak=90.0),
    write_study,
    lambda layout: write_study(layout, take=2, slower=1.2),
    lambda layout: write_study(layout, batches=(2, 1, 4)),
    lambda layout: write_study(layout, stream="wide", d_ff=9216),
)


def digest(layout: Layout) -> dict[str, bytes]:
    """Return the bytes of every file below `tables/`."""
    folder = layout.root / "tables"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the bytes of the tables of all takes, written in the order of the list."""
    layout = Layout(tmp_path_factory.mktemp("reference"))
    for write in WRITERS:
        write(layout)
    make_tables(layout, "cpu")
    return digest(layout)


@given(st.permutations(range(len(WRITERS))), st.booleans())
@settings(deadline=None, max_examples=6)
def test_the_same_log_gives_the_same_bytes(
    reference: dict[str, bytes],
    order: list[int],
    copied: bool,  # noqa: FBT001 (drawn)
) -> None:
    """Tables and manifests have the same bytes for any order and folder of the takes."""
    with TemporaryDirectory() as name:
        layout = Layout(Path(name) / "results")
        for number in order:
            WRITERS[number](layout)
        if copied:
            shutil.copytree(layout.root, Path(name) / "a b")
            layout = Layout(Path(name) / "a b")
        make_tables(layout, "cpu")
        assert digest(layout) == reference


def test_a_second_run_gives_the_same_bytes(made: Layout, tmp_path: Path) -> None:
    """Tables that are made again, over those that there are, are the same bytes."""
    layout = Layout(Path(shutil.copytree(made.root, tmp_path / "results")))
    before = digest(layout)
    make_tables(layout, "cpu")
    assert digest(layout) == before


@pytest.mark.parametrize("scope", ["cpu", "public"])
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_every_table_fits_its_schema(made: Layout, kind: Table, scope: str) -> None:
    """Each written table passes its schema, with unique ids."""
    frame = read_table(made, scope, kind)
    assert kind.check(frame).height == frame.height
    assert frame.columns == list(kind.columns)
    assert frame["row_id"].is_unique().all()
    assert frame["row_id"].str.starts_with(f"{kind.name}:").all()
    bare = pl.col("checked") == 0 if kind is CLAIMS else pl.lit(value=False)
    assert frame.select(((pl.col("from_ids").list.len() == 0) == bare).all()).item()


@pytest.mark.parametrize("scope", ["cpu", "public"])
def test_every_row_names_what_there_is(made: Layout, scope: str) -> None:
    """An id in `from_ids` is that of an event, of a row of another table, or of a datasheet."""
    frames = [read_table(made, scope, kind) for kind in EVERY]
    more = [
        read_table(made, scope, kind) for kind in (TREND, PUBLISHED_LOOKUP) if scope == "public"
    ]
    rows = {identifier for frame in [*frames, *more] for identifier in frame["row_id"]}
    for frame in frames:
        for identifier in frame["from_ids"].explode().drop_nulls().unique():
            segment, event, _ = identifier.partition("#")
            assert (
                identifier in rows
                or (event and (made.events / f"{segment}.jsonl").exists())
                or identifier.startswith("config/platforms.yaml:")
            )


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_a_manifest_says_what_the_table_was_made_from(made: Layout, kind: Table) -> None:
    """A manifest names the table, its rows and its inputs, each with a digest."""
    path = made.table("cpu", kind.name)
    manifest = read_document(manifest_path(path), Manifest)
    assert manifest.table == kind.name
    assert manifest.rows == read_table(made, "cpu", kind).height
    assert manifest.made_from
    assert all(len(digest) >= 12 for digest in manifest.made_from.values())


def test_other_evidence_or_tolerances_show_in_the_manifest(empty: Layout) -> None:
    """A new take or other tolerances change a manifest's inputs."""
    seen = set()
    write_probe(empty)
    write_study(empty)
    for tolerances in ((0.2,), (0.2, 0.3)):
        project(empty, "cpu", {})
        write_boundaries(empty, "cpu", tolerances=tolerances, epsilon=0.2)
        seen.add(manifest_path(empty.table("cpu", "boundaries")).read_bytes())
    write_study(empty, take=2)
    project(empty, "cpu", {})
    write_boundaries(empty, "cpu", tolerances=(0.2, 0.3), epsilon=0.2)
    seen.add(manifest_path(empty.table("cpu", "boundaries")).read_bytes())
    assert len(seen) == 3


def test_the_newest_take_wins_and_the_older_stays(made: Layout) -> None:
    """Of two takes of one setting both have rows; the newer is marked."""
    for kind in (LATENCY, BOUNDARIES):
        frame = read_table(made, "cpu", kind)
        marks = frame.select("take", "newest").unique().sort("take").rows()
        assert marks == [(1, False), (2, True)]


def test_a_setting_comes_from_its_newest_take(made: Layout) -> None:
    """A prediction uses the release of the take that the boundary is from."""
    settings = read_table(made, "cpu", SETTINGS).filter(pl.col("origin") == "measured")
    assert settings.height
    assert {setting.split("/")[2][:2] for (setting,) in settings["from_ids"]} == {"2-"}


def test_a_take_with_an_added_batch_hides_only_what_it_repeats(empty: Layout) -> None:
    """A newer plan wins where it holds a setting again, and the other settings stay newest."""
    write_study(empty, batches=(1, 2))
    write_study(empty, take=2, batches=(2, 4))
    project(empty, "cpu", {})
    frame = read_table(empty, "cpu", LATENCY).filter("newest")
    assert frame.select("batch", "take").unique().sort("batch").rows() == [(1, 1), (2, 2), (4, 2)]


def test_a_retracted_take_disappears(empty: Layout) -> None:
    """After the retraction of the newest take its rows are gone and the older take's are newest."""
    write_study(empty)
    newer = write_study(empty, take=2)
    retract(empty, str(newer.name), "the fan had stopped")
    make_tables_without_probe(empty)
    frame = read_table(empty, "cpu", LATENCY)
    assert frame.select("take", "newest").unique().rows() == [(1, True)]
    assert set(read_table(empty, "cpu", BOUNDARIES)["take"]) == {1}


def test_a_retracted_event_disappears(empty: Layout) -> None:
    """After the retraction of a visit no row is made from it, and its round does not count."""
    seal = write_study(empty, batches=(1,))
    visit = next(
        event
        for event in read_sealed(empty, seal)
        if isinstance(event.data, LatencyMeasured) and event.data.n == 4
    )
    retract(empty, visit.event_id, "a backup ran")
    make_tables_without_probe(empty)
    frame = read_table(empty, "cpu", LATENCY)
    assert visit.event_id not in set(frame["from_ids"].explode())
    assert frame.select("n", "rounds").sort("n").rows()[:3] == [(1, 8), (2, 8), (4, 7)]


def test_a_retracted_baseline_leaves_the_older_take_newest(empty: Layout) -> None:
    """A newer take that holds no curve any more does not hide the older one."""
    write_study(empty, batches=(1,))
    seal = write_study(empty, take=2, batches=(1,))
    for event in read_sealed(empty, seal):
        if isinstance(event.data, LatencyMeasured) and event.data.n == 1:
            retract(empty, event.event_id, "a backup ran")
    make_tables_without_probe(empty)
    frame = read_table(empty, "cpu", LATENCY)
    assert frame.select("take", "newest").unique().rows() == [(1, True)]


def test_a_retracted_probe_disappears(empty: Layout) -> None:
    """After the retraction of a probe its facts are gone."""
    write_probe(empty)
    newer = write_probe(empty, take=2, peak=160.0)
    retract(empty, str(newer.name), "another job ran")
    write_study(empty)
    make_tables(empty, "cpu")
    assert set(read_table(empty, "cpu", PLATFORMS)["take"]) == {1}
    assert read_table(empty, "cpu", PREDICTIONS)["balance_flop_per_byte"].max() == 16.0


def test_a_scope_without_evidence_is_refused(empty: Layout) -> None:
    """A scope without sealed takes is refused by name, and nothing is written."""
    with pytest.raises(EvidenceError, match="nothing sealed for mars"):
        project(empty, "mars", {})
    with pytest.raises(TableError, match=r"mars/latency.parquet is missing"):
        write_boundaries(empty, "mars", tolerances=(0.2,), epsilon=0.2)
    assert not (empty.root / "tables").exists()


def test_a_retracted_everything_is_refused(empty: Layout) -> None:
    """A scope whose only take was retracted gives empty tables."""
    seal = write_study(empty)
    retract(empty, str(seal.name), "the wrong machine")
    make_tables_without_probe(empty)
    assert read_table(empty, "cpu", LATENCY).is_empty()
    assert read_table(empty, "cpu", BOUNDARIES).schema == pl.Schema(BOUNDARIES.dtypes)


def make_tables_without_probe(layout: Layout) -> None:
    """Run the stages that need no facts of the hardware."""
    project(layout, "cpu", {})
    write_boundaries(layout, "cpu", tolerances=(0.1, 0.2), epsilon=0.2)


def test_a_setting_knows_the_grid_of_its_curve(made: Layout) -> None:
    """The grid is what was measured, or what the printed value names, from the baseline up."""
    measured = read_table(made, "cpu", SETTINGS).filter(origin="measured")
    points = read_table(made, "cpu", LATENCY).filter("newest", pl.col("n") >= pl.col("baseline"))
    grids = points.group_by("setting_key").agg(pl.col("n").unique().sort())
    assert dict(measured.select("setting_key", "grid").rows()) == dict(grids.rows())
    published = read_table(made, "public", SETTINGS)
    _, known = load_published(made, [0.2])
    assert dict(published.select("setting_key", "grid").rows()) == dict(
        known.settings.select("setting_key", "grid").rows()
    )
