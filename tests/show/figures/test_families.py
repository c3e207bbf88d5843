"""The families of figures: which ones a module's rows give, and which rows each one lists."""

import polars as pl
import pytest
from msgspec.structs import asdict, replace
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.registry import MAIN
from nearfree.show.figures.families import Rows, drawings

from show.figures.marks import DENSE, marks

pytestmark = pytest.mark.slow

EACH = ["latency_against_n", "nmax_against_{own}", "sensitivity"]
STAIRCASES = ["intensity_against_n", "flop_against_n"]
UTILIZATION = ["utilization_against_{own}", "utilization_against_n"]


def listed(rows: Rows, module: ModuleKind) -> list[str]:
    """Return the names of a module's figures without the module."""
    figures = [figure.name for figure, _ in drawings(rows.of(module.name), 0.2, module)]
    assert all(name.startswith(f"{module.name}_") for name in figures)
    return [name.removeprefix(f"{module.name}_") for name in figures]


@pytest.mark.parametrize("module", MAIN, ids=lambda module: module.name)
def test_every_family_is_drawn(rows: Rows, module: ModuleKind) -> None:
    """A module has each family under its own name, staircases only if its kernels pad."""
    families = [*EACH, *(STAIRCASES if module.granular else []), *UTILIZATION]
    assert listed(rows, module) == [name.format(own=module.own) for name in families]


@pytest.mark.parametrize("module", MAIN, ids=lambda module: module.name)
def test_a_figure_lists_the_rows_behind_its_marks(rows: Rows, module: ModuleKind) -> None:
    """A figure lists each row of its marks once."""
    for figure, chart in drawings(rows.of(module.name), 0.2, module):
        drawn = {mark["row_id"] for mark in marks(chart)}
        assert drawn <= set(figure.rows)
        assert len(set(figure.rows)) == len(figure.rows)
        assert figure.caption


def test_what_was_not_measured_is_not_drawn(dense: Rows) -> None:
    """A module without measured latencies has no figures, even with published values."""
    unmeasured = replace(dense, latency=dense.latency.clear())
    assert list(drawings(unmeasured, 0.2, DENSE)) == []


def test_without_work_there_are_no_figures_of_it(attention: Rows) -> None:
    """Latency without work gives three families."""
    plain = replace(attention, work=attention.work.clear())
    assert listed(plain, MAIN[2]) == [name.format(own="context") for name in EACH]


def test_without_bytes_there_is_no_intensity(moe: Rows) -> None:
    """Without known bytes, FLOPs are drawn but intensity is not."""
    unweighed = moe.work.with_columns(pl.lit(None, dtype=pl.Float64).alias("bytes"))
    names = listed(replace(moe, work=unweighed), MAIN[1])
    assert "flop_against_n" in names
    assert "intensity_against_n" not in names


def test_utilisation_needs_a_peak(dense: Rows) -> None:
    """Without a known peak or a profile, utilisation is not drawn."""
    unknown = dense.work.with_columns(
        pl.lit(None, dtype=pl.Float64).alias(f"{resource}_utilization")
        for resource in ("compute", "bandwidth")
    )
    assert listed(replace(dense, work=unknown), DENSE) == [n.format(own="batch") for n in EACH]


def test_without_n_1_the_rest_is_drawn(dense: Rows) -> None:
    """A grid without N = 1 gives no figure at N = 1, but one against N."""
    above = replace(dense, work=dense.work.filter(pl.col("n") > 1))
    assert listed(above, DENSE)[3:] == ["utilization_against_n"]


def test_captions_name_the_module(rows: Rows) -> None:
    """A caption says which module the figure is of."""
    captions = [
        figure.caption
        for module in MAIN
        for figure, _ in drawings(rows.of(module.name), 0.2, module)
    ]
    assert {caption.partition(":")[0] for caption in captions} == {
        "Dense FFN", "MoE FFN", "Attention",
    }  # fmt: skip


def test_captions_say_what_is_there(dense: Rows) -> None:
    """A caption mentions published or predicted values if there are any."""
    unprinted = dense.boundaries.filter(pl.col("origin") != "published")
    printed = unprinted.with_columns(platform=pl.lit("a800"), origin=pl.lit("published"))
    nothing = dense.predictions.clear()
    for boundaries, predictions, ending in (
        (unprinted, nothing, "measured here."),
        (unprinted, dense.predictions, "measured here and predicted."),
        (pl.concat([unprinted, printed]), dense.predictions,
         "measured here, published for A800, and predicted."),
    ):  # fmt: skip
        rows = replace(dense, boundaries=boundaries, predictions=predictions)
        captions = {figure.name: figure.caption for figure, _ in drawings(rows, 0.2, DENSE)}
        assert captions["dense_ffn_nmax_against_batch"] == f"Dense FFN: N_max against b: {ending}"


@pytest.mark.parametrize("stream", ["wedlm_modules", "wedlm_modules_profile"])
def test_modules_of_models_stay_out(rows: Rows, stream: str) -> None:
    """Modules measured or profiled for a model are in no figure of the module."""
    before = rows.of("dense_ffn")
    more = {name: pl.concat([frame, _apart(frame, stream)]) for name, frame in asdict(rows).items()}
    after = Rows(**more).of("dense_ffn")
    assert all(asdict(after)[name].equals(frame) for name, frame in asdict(before).items())


def _apart(frame: pl.DataFrame, stream: str) -> pl.DataFrame:
    """Return the rows as those of other settings in a stream."""
    named = [pl.lit(stream).alias("stream")] if "stream" in frame.columns else []
    return frame.with_columns(*named, pl.format("{}-apart", "setting_key").alias("setting_key"))
