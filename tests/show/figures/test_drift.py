"""The figure of `version_drift`: each answer is a point at its version, in release order."""

import polars as pl
import pytest
from derive.questions import LOG, RESOLVER
from derive.sheeted import ANSWERER, CONFIG, SHEETS, sheet_table
from nearfree.derive.outlook.drift import STUDIES, VERSION_DRIFT, version_drift
from nearfree.derive.predict.answers import calibration_ids
from nearfree.show.figures.trend import VERSION_LAWS, drift_drawings, nmax_over_versions

from show.figures.marks import marks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    """Return the table for one layer and one call on two platforms."""
    table = sheet_table()
    studied = (STUDIES[2], STUDIES[-1])
    drift = version_drift(
        studied, CONFIG.releases, SHEETS, table,
        answerer=ANSWERER, resolver=RESOLVER, epsilon=0.2, platform_names=("h20", "h200"),
    )  # fmt: skip
    events = calibration_ids(LOG)
    return VERSION_DRIFT.build(drift, {*table["row_id"], *events})


def several(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of packages that have several versions."""
    return rows.filter(pl.col("version").n_unique().over("package") > 1)


def test_the_figure_says_that_it_is_predicted(rows: pl.DataFrame) -> None:
    """Drawing and caption say that the values are predicted."""
    ((figure, chart),) = drift_drawings(rows)
    subtitle = " ".join(chart.to_dict()["title"]["subtitle"])
    assert all("Predicted, not measured." in text for text in (figure.caption, subtitle))


def test_every_answer_of_several_versions_is_a_point(rows: pl.DataFrame) -> None:
    """Each N_max is a point by predictor and platform; refusals have none."""
    refused = pl.when(pl.col("version") == "0.5.23").then(None).otherwise("n_max_work")
    partly_refused = rows.with_columns(refused.alias("n_max_work"))
    drawn = {
        (m["row_id"], m["predictor"], m["n_max"]) for m in marks(nmax_over_versions(partly_refused))
    }
    shown = several(partly_refused)
    expected = {
        (row["row_id"], predictor, row[column])
        for row in shown.to_dicts()
        for column, predictor in VERSION_LAWS.items()
        if row[column] is not None
    }
    assert drawn == expected
    assert shown["n_max_work"].null_count() > 0


def test_a_panel_is_a_setting_and_a_package(rows: pl.DataFrame) -> None:
    """Each package has its own panels; one with a single version has none."""
    assert {m["panel"] for m in marks(nmax_over_versions(rows))} == {
        "Ling-2.0-mini, E = 256, k = 8, balanced: vllm",
        "Ling-2.0-mini, E = 256, k = 8, balanced: sglang",
        "Ling-2.0-mini, 16 / 4 heads: flash-attn",
        "Ling-2.0-mini, 16 / 4 heads: flashinfer-python",
        "Ling-2.0-mini, 16 / 4 heads: vllm-fa3",
        "Ling-2.0-mini, 16 / 4 heads: vllm-triton",
    }


def test_versions_are_in_release_order(rows: pl.DataFrame) -> None:
    """The axis goes from the oldest version to the newest: 0.5.9 before 0.5.10."""
    layers = nmax_over_versions(rows).to_dict()["spec"]["layer"]
    for layer in layers:
        order = layer["encoding"]["x"]["sort"]
        for package in ("vllm", "sglang", "flashinfer-python"):
            mine = rows.filter(package=package).sort("place")["version"].unique(maintain_order=True)
            assert [version for version in order if version in mine.to_list()] == mine.to_list()


def test_platforms_stay_in_sight(rows: pl.DataFrame) -> None:
    """Marks of platforms with equal N_max are shifted by less than an octave."""
    for mark in marks(nmax_over_versions(rows)):
        assert 1 <= mark["y"] / mark["n_max"] < 2
    pairs = {(m["platform"], m["y"] / m["n_max"]) for m in marks(nmax_over_versions(rows))}
    assert len({round(ratio, 6) for _, ratio in pairs}) == 2


def test_a_mark_says_its_rule_and_its_change(rows: pl.DataFrame) -> None:
    """Each mark's tooltip names the rule's place and the change."""
    triples = {(m["row_id"], m["rule"], m["change"]) for m in marks(nmax_over_versions(rows))}
    assert triples == set(
        several(rows)
        .filter(pl.any_horizontal(pl.col(list(VERSION_LAWS)).is_not_null()))
        .select("row_id", "rule", "change")
        .rows()
    )


def test_one_version_makes_no_figure(rows: pl.DataFrame) -> None:
    """Packages with one version each give no figure."""
    ((figure, _),) = drift_drawings(rows)
    assert figure.name == "version_drift"
    assert len(set(figure.rows)) == len(figure.rows)
    assert not list(drift_drawings(rows.filter(place=1)))
