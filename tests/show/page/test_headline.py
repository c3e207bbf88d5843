"""The first screen: the settings of the machine's own studies, and the predictors' record."""

import polars as pl
import pytest
from nearfree.core.modules.registry import KINDS
from nearfree.derive.score.composition import COMPOSITION
from nearfree.derive.score.scores import SCORES
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.store import read_table
from nearfree.log.names import Layout
from nearfree.show.page.headline import answers, predictors, unseen
from nearfree.show.page.sections import n_max

from show.figures.marks import again
from show.figures.measured_models import model_rows

pytestmark = pytest.mark.slow


def test_each_setting_of_a_module_is_a_number(made: Layout) -> None:
    """A module's line shows each setting with its differences, value, interval and row."""
    at = read_table(made, "cpu", BOUNDARIES)
    (line,) = answers(at, read_table(made, "cpu", COMPOSITION), 0.2)
    newest = at.filter("newest", epsilon=0.2).sort("batch").to_dicts()
    assert (line.name, line.about) == ("dense FFN", "torch, float32")
    assert [(c.label, c.value.text, c.value.row) for c in line.chips] == [
        (f"b {row['batch']}", n_max(row), row["row_id"]) for row in newest
    ]


ROW = {"n_max": 32, "next_n": 48, "n_low": 32, "n_high": 32, "verdict": "sharp", "baseline": 1,
       "n_max_from_1": None}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "value", "notes"),
    [
        ({}, "32", ()),
        ({"n_low": 24}, "32", ("24 to 32",)),
        ({"n_low": None, "n_high": None, "verdict": "printed"}, "32", ()),
        ({"verdict": "undecided"}, "32", ("undecided",)),
        ({"next_n": None, "verdict": "censored"}, "≥ 32", ("censored",)),
        ({"baseline": 16, "n_max_from_1": 1}, "32", ("baseline N = 16 (from N = 1: 1)",)),
        ({"baseline": 16}, "32", ("baseline N = 16",)),
        (
            {"baseline": 16, "n_max_from_1": 32, "next_n": None, "verdict": "censored"},
            "≥ 32",
            ("censored", "baseline N = 16 (from N = 1: ≥ 32)"),
        ),
    ],
)
def test_a_boundary_says_what_it_is_not_without(
    made: Layout, changed: dict[str, object], value: str, notes: tuple[str, ...]
) -> None:
    """A wide interval, the grid's end, a loose verdict and a baseline above 1 are named."""
    at = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2).head(1)
    rows = at.with_columns(pl.lit(v).cast(at[k].dtype).alias(k) for k, v in (ROW | changed).items())
    (line,) = answers(rows, read_table(made, "cpu", COMPOSITION), 0.2)
    assert [(c.value.text, c.notes) for c in line.chips] == [(value, notes)]


@pytest.mark.parametrize("verdict", ["sharp", "bracketed", "undecided", "censored"])
def test_an_undecided_boundary_looks_lighter(made: Layout, verdict: str) -> None:
    """A number of which only the interval is known has not the weight of one that is decided."""
    at = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2).head(1)
    rows = at.with_columns(pl.lit(verdict).alias("verdict"))
    (line,) = answers(rows, read_table(made, "cpu", COMPOSITION), 0.2)
    assert [chip.undecided for chip in line.chips] == [verdict == "undecided"]


def test_no_two_settings_of_a_line_have_one_label(made: Layout) -> None:
    """Labels differ by whatever differs, also if one setting lacks that field."""
    at = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2).head(1)
    fixed = at.with_columns(pl.lit(16, pl.Int64).alias("block_size_m"))
    (line,) = answers(pl.concat([at, fixed]), read_table(made, "cpu", COMPOSITION), 0.2)
    assert {chip.label for chip in line.chips} == {"", "block size 16"}


def test_two_studies_of_one_setting_are_told_apart(made: Layout) -> None:
    """If two studies hold one setting, each number names its study."""
    at = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2, batch=1)
    (line,) = answers(again(at), read_table(made, "cpu", COMPOSITION), 0.2)
    assert {chip.label for chip in line.chips} == {
        "b 1, dense_ffn",
        "b 1, dense_ffn_slowly",
    }


def test_stored_weights_are_a_line_of_their_own(made: Layout) -> None:
    """A line's name has the weights' format beside the element type."""
    at = read_table(made, "cpu", BOUNDARIES).filter("newest", epsilon=0.2).head(1)
    packed = at.with_columns(pl.lit("int8").alias("weights"))
    lines = answers(pl.concat([at, packed]), read_table(made, "cpu", COMPOSITION), 0.2)
    assert {line.about for line in lines} == {"torch, float32", "torch, float32, weights int8"}


def test_each_model_is_told_with_its_limiter() -> None:
    """A model's settings are in one line, each with the module that grew most."""
    models = model_rows()
    lines = answers(models["boundaries"], models["composition"], 0.2)
    assert {line.name for line in lines} == {*models["boundaries"]["model"]}
    shown = {chip.value.row: chip for line in lines for chip in line.chips}
    assert shown.keys() == {*models["boundaries"].filter(epsilon=0.2)["row_id"]}
    limiters = {chip.limiter for chip in shown.values()}
    assert limiters == {*models["composition"].filter(epsilon=0.2)["measured_limiter"]}
    labels = [chip.label for line in lines if line.name == "qwen3_8b_cpu" for chip in line.chips]
    assert labels == ["L 512", "L 2048", "L 4096"]


def test_modules_measured_for_a_model_s_sake_are_no_answer(made: Layout) -> None:
    """Modules that were measured for a model are not on the first screen."""
    at = read_table(made, "cpu", BOUNDARIES)
    other = at.with_columns(pl.lit("attention").alias("module"))
    assert answers(pl.concat([at, other]), read_table(made, "cpu", COMPOSITION), 0.2) == []


@pytest.mark.parametrize("predictor", ["idle compute", "principle", "work model"])
def test_the_record_of_each_predictor_is_there(made: Layout, predictor: str) -> None:
    """Each predictor's hits on each platform are those of the scores, or it refused."""
    scores = pl.concat(read_table(made, scope, SCORES) for scope in ("cpu", "public"))
    rows = {row["row_id"]: row for row in scores.to_dicts()}
    records = predictors(scores, 0.2)
    assert [record.platform for record in records] == ["cpu", "h20"]
    for record in records:
        (line,) = [score for score in record.scores if score.predictor == predictor]
        for module, hits in zip(record.modules, line.hits, strict=True):
            row = rows[hits.share.row]
            assert (KINDS[row["module"]].title, row["epsilon"]) == (module, 0.2)
            if row["answered"]:
                assert hits.share.text == f"{round(100 * row['hits'] / row['settings'])} %"
                assert hits.count == f"{row['hits']} of {row['settings']}"
            else:
                assert hits.share.text == "refused"


def test_unseen_gpus_are_told_by_module_and_routing() -> None:
    """Imported curves count only GPUs on which nothing was calibrated."""
    row = {"predictor": "work_model", "module": "moe_ffn", "routing": "balanced", "seen": False,
           "settings": 10, "answered": 8, "hits": 4, "row_id": "accuracy:a"}  # fmt: skip
    other = {"module": "gemm", "routing": None, "answered": 0, "row_id": "accuracy:b"}
    rows = [row, row | other, row | {"seen": True, "hits": 9, "row_id": "accuracy:c"}]
    (sentence,) = unseen(pl.DataFrame(rows))
    assert sentence.modules == ("matrix product", "MoE FFN balanced")
    (score,) = sentence.scores
    assert [(h.share.text, h.count, h.share.row) for h in score.hits] == [
        ("refused", "all 10", "accuracy:b"),
        ("40 %", "4 of 10", "accuracy:a"),
    ]
    assert unseen(pl.DataFrame(rows).filter("seen")) == []
