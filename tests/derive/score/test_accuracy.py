"""Tables `accuracy` and `drift`: scores of imported curves by group, with a noise ceiling."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from conftest import write_payloads
from nearfree.config.files import Config
from nearfree.core.plan import ImportPlan
from nearfree.core.setting import Setting
from nearfree.derive.score.accuracy import ACCURACY, DRIFT, write_accuracy
from nearfree.derive.tables.store import read_table
from nearfree.derive.work_model.samples import LEAST_MB
from nearfree.errors import EvidenceError
from nearfree.log.events import LatencyImported
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.show.figures.predicted import imported_drawings

from derive.tables.logs import CONFIG

CONSTANTS = Path(__file__).parents[3] / "results/events/public/constants"
GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def curve(platform: str, version: str, knee: int, **changes: object) -> LatencyImported:
    """Return a made-up curve that is constant up to the knee and then rises."""
    fields = {"d_model": 8192, "d_ff": 8192, "dtype": "bfloat16"} | changes
    return LatencyImported(
        source="made up", member="gemm.parquet", member_sha256="0" * 64, platform=platform,
        setting=Setting(module="gemm", backend="vllm", **fields),  # type: ignore[arg-type]
        backend_version=version, n=GRID, latency_us=tuple(50.0 * max(1.0, n / knee) for n in GRID),
    )  # fmt: skip


CURVES = (
    curve("a100", "0.14.0", 128),
    curve("a100", "0.19.0", 128),
    curve("l40s", "0.14.0", 128),
    curve("l40s", "0.19.0", 256),
    curve("l40s", "0.19.0", 64, dtype="float8"),
    curve("l40s", "0.19.0", 64, d_model=64),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a log of made-up curves and adopted constants, with both tables."""
    layout = Layout(tmp_path_factory.mktemp("imported"))
    plan = ImportPlan(files={"made_up.whl": "0" * 64})
    name = take_name("imported", "aiconfigurator_core_0_0_1", 1, plan)
    write_payloads(layout, name, plan, *CURVES)
    shutil.copytree(CONSTANTS, layout.events / "public" / "constants")
    write_accuracy(layout, "imported", Config(CONFIG))
    return layout


@pytest.fixture(scope="module")
def accuracy(made: Layout) -> pl.DataFrame:
    """Return the table of scores."""
    return read_table(made, "imported", ACCURACY)


def test_groups_are_of_16_bit_products_with_heavy_weights(accuracy: pl.DataFrame) -> None:
    """Other element types, and weights that fit in a cache, are in no group."""
    assert LEAST_MB == 64.0
    by = accuracy.filter(predictor="principle", grouping="platform")
    assert dict(by.select("platform", "settings").rows()) == {"a100": 2, "l40s": 2}


def test_calibrated_platforms_stand_apart(accuracy: pl.DataFrame) -> None:
    """Calibrated platforms and unseen GPUs are never in one group."""
    by = accuracy.filter(grouping="platform").select("platform", "seen").unique()
    assert dict(by.rows()) == {"a100": True, "l40s": False}


def test_another_version_is_the_ceiling(accuracy: pl.DataFrame) -> None:
    """Another version's curve is a prediction, exact where nothing changed."""
    twin = accuracy.filter(predictor="twin_version", grouping="platform")
    hits = {row["platform"]: (row["settings"], row["hits"]) for row in twin.to_dicts()}
    assert hits == {"a100": (2, 2), "l40s": (2, 0)}


def test_the_work_model_answers_and_says_how_far_its_curve_is_off(accuracy: pl.DataFrame) -> None:
    """A GPU with facts has an answer with an interval and an error of T(N)."""
    (row,) = accuracy.filter(predictor="work_model", grouping="module", seen=False).to_dicts()
    assert (row["settings"], row["answered"], row["undecided"]) == (2, 2, 0)
    assert row["t_ratio_error"] > 0
    assert row["interval_width"] >= 1


def test_a_platform_is_left_out_of_its_own_constants(accuracy: pl.DataFrame) -> None:
    """Each platform is predicted by the others' constants, in its own group."""
    left_out = accuracy.filter(predictor="work_model_left_out", grouping="platform")
    assert dict(left_out.select("platform", "answered").rows()) == {"a100": 2, "l40s": 2}


def test_a_group_names_its_evidence(made: Layout, accuracy: pl.DataFrame) -> None:
    """A row's ids are the import's run and the constants' events."""
    for identifier in accuracy["from_ids"].explode().unique():
        segment, _, number = identifier.partition("#")
        line = (made.events / f"{segment}.jsonl").read_text().splitlines()[int(number) - 1]
        imported = segment.startswith("imported/")
        kind = "run.started.v1" if imported else "constants.calibrated.v2"
        assert f'"nearfree.{kind}"' in line


def test_drift_counts_what_moved(made: Layout) -> None:
    """Each pair of versions has both N_max, and the number of settings by direction."""
    moved = read_table(made, "imported", DRIFT)
    pairs = moved.select("platform", "backend_version", "other_version", "other_n_max", "n_max")
    assert set(pairs.rows()) == {
        ("a100", "0.14.0", "0.19.0", 128, 128),
        ("a100", "0.19.0", "0.14.0", 128, 128),
        ("l40s", "0.14.0", "0.19.0", 256, 128),
        ("l40s", "0.19.0", "0.14.0", 128, 256),
    }
    assert moved["settings"].to_list() == [1] * 4


def test_the_same_log_gives_the_same_bytes(made: Layout) -> None:
    """Making the tables again changes no byte."""
    paths = [made.table("imported", table.name) for table in (ACCURACY, DRIFT)]
    before = [path.read_bytes() for path in paths]
    write_accuracy(made, "imported", Config(CONFIG))
    assert [path.read_bytes() for path in paths] == before


def test_figures_show_the_rows_that_they_list(made: Layout, accuracy: pl.DataFrame) -> None:
    """Shares, errors by version and drift are drawn from rows of both tables."""
    drift = read_table(made, "imported", DRIFT)
    drawn = {figure.name: (figure, chart) for figure, chart in imported_drawings(accuracy, drift)}
    assert list(drawn) == ["imported_shares", "imported_error_by_version", "imported_drift_gemm"]
    known = {*accuracy["row_id"], *drift["row_id"]}
    for figure, chart in drawn.values():
        assert set(figure.rows) <= known
        assert chart.to_dict()["datasets"]
    (data,) = drawn["imported_drift_gemm"][1].to_dict()["datasets"].values()
    assert {row["row_id"] for row in data if row["kind"] == "pair"} == set(drift["row_id"])
    (data,) = drawn["imported_shares"][1].to_dict()["datasets"].values()
    assert {row["panel"] for row in data} == {"gemm: unseen GPUs"}


def test_without_an_import_there_is_no_table(tmp_path: Path) -> None:
    """Without an import the stage says what to run and writes nothing."""
    layout = Layout(tmp_path)
    with pytest.raises(EvidenceError, match="no curve of AIConfigurator"):
        write_accuracy(layout, "imported", Config(CONFIG))
    assert not layout.table("imported", "accuracy").exists()
