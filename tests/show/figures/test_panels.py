"""Panels: one per setting of a study, named by what differs."""

import altair as alt
import polars as pl
from nearfree.show.figures.families import Rows
from nearfree.show.figures.panels import in_grid, with_panels, with_variants

from show.figures.marks import ATTENTION, DENSE, MOE, again, wider


def panels(frame: pl.DataFrame) -> list[str]:
    """Return the panels of a frame in their order."""
    return frame["panel"].unique(maintain_order=True).to_list()


def layout(frame: pl.DataFrame) -> tuple[list[str], int]:
    """Return the panels in layout order, and their number per row."""
    chart = in_grid(alt.layer(alt.Chart().mark_point(), data=frame), frame).to_dict()
    return chart["facet"]["sort"], chart["columns"]


def test_a_study_of_one_variable_is_named_by_it(dense: Rows) -> None:
    """If settings differ in one variable only, panels are named by it, in its order."""
    assert panels(with_panels(dense.latency, DENSE)) == ["b = 1", "b = 2", "b = 4"]


def test_routing_and_backend_tell_panels_apart(moe: Rows) -> None:
    """Panels name routing first, so that the control is beside the padded backend."""
    drawn = with_panels(moe.latency, MOE)
    assert panels(drawn)[:4] == [
        "k = 2: balanced, torch_grouped",
        "k = 2: balanced, torch_padded",
        "k = 2: skewed, torch_grouped",
        "k = 2: skewed, torch_padded",
    ]
    assert len(panels(drawn)) == 8


def test_other_widths_tell_panels_apart(dense: Rows) -> None:
    """A second setting at one batch size has its own panel, named by its width."""
    drawn = with_panels(wider(dense.latency, d_ff=64), DENSE)
    assert panels(drawn)[:2] == ["b = 1: d_ff 1024", "b = 1: d_ff 64"]


def test_an_unset_field_is_not_said(dense: Rows) -> None:
    """A field that some settings lack is named where it is set; a flag by its name."""
    flagged = with_panels(wider(dense.latency, cuda_graph=True), DENSE)
    assert panels(flagged)[:2] == ["b = 1", "b = 1: cuda_graph"]
    blocked = with_panels(wider(dense.latency, block_size_m=16), DENSE)
    assert panels(blocked)[:2] == ["b = 1", "b = 1: block_size_m 16"]


def test_studies_of_one_setting_are_told_apart(dense: Rows) -> None:
    """If two studies hold one setting, panels name the study."""
    drawn = with_panels(again(dense.latency), DENSE)
    assert panels(drawn)[:2] == ["b = 1: dense_ffn", "b = 1: dense_ffn_slowly"]


def test_a_profile_stands_with_its_study(attention: Rows) -> None:
    """A profile from its own stream is in the panels of its study."""
    apart = attention.work.with_columns(
        pl.when(pl.col("source") == "profiled")
        .then(pl.format("{}_profile", "stream"))
        .otherwise("stream")
        .alias("stream")
    )
    assert panels(with_panels(apart, ATTENTION)) == ["L = 256", "L = 1024", "L = 4096"]


def test_platforms_do_not_name_each_others_differences(moe: Rows) -> None:
    """Differences between platforms are not named, since the platform's name shows them."""
    named = with_variants(moe.boundaries, MOE)
    published = named.filter(pl.col("origin") == "published")["variant"].unique().to_list()
    assert sorted(published) == [
        f"{routing}, {backend}"
        for routing in ("balanced", "skewed")
        for backend in ("sglang_0_5_9", "vllm_0_9_1")
    ]


def test_a_value_of_k_is_a_row(moe: Rows) -> None:
    """If every variant has every k, a row holds all variants of one k."""
    drawn = with_panels(moe.latency, MOE)
    assert layout(drawn) == (panels(drawn), 4)


def test_variants_with_gaps_come_last(moe: Rows) -> None:
    """A variant without some k does not shift the rows of the others."""
    gap = (pl.col("routing") == "balanced") & (pl.col("backend") == "torch_padded")
    drawn = with_panels(moe.latency.filter(~(gap & (pl.col("top_k") == 2))), MOE)
    ordered, columns = layout(drawn)
    assert columns == 3
    assert [panel.partition(":")[0] for panel in ordered] == [*["k = 2"] * 3, *["k = 4"] * 4]
    assert ordered[-1] == "k = 4: balanced, torch_padded"
