"""The figure of `kernels`: imported curves are marked as imported, one line per platform."""

import polars as pl
import pytest
from derive.reference.kept import SOURCE, Kept, kept_events, kept_kernel, kept_on_two
from nearfree.derive.reference.kernels import KERNELS, kernel_rows
from nearfree.show.figures.boundaries import ORIGINS
from nearfree.show.figures.kernels import imported_curves, kernel_drawings
from nearfree.show.figures.listing import IMPORTED_CURVES
from nearfree.show.figures.stage import specification

from show.figures.drawings import has_titled_axes, says
from show.figures.marks import marks


def table(kernels: list) -> pl.DataFrame:
    """Return the table of some kernels."""
    events = kept_events(*kernels)
    return KERNELS.build(kernel_rows(events, 0.2), [event.event_id for event in events])


@pytest.fixture(scope="module")
def kernels() -> pl.DataFrame:
    """Return the table of three modules on two platforms by two backends."""
    return table(kept_on_two())


def layer_of(kernels: pl.DataFrame, mark: str, **has: object) -> dict:
    """Return the only layer of a mark with the given properties."""
    layers = imported_curves(kernels).to_dict()["spec"]["layer"]
    (layer,) = [
        candidate for candidate in layers
        if candidate["mark"]["type"] == mark
        and all(candidate["mark"].get(name) == value for name, value in has.items())
    ]  # fmt: skip
    return layer


def test_title_and_subtitle_say_where_the_curves_are_from(kernels: pl.DataFrame) -> None:
    """Title, subtitle and caption name the import, its release, licence and copyright."""
    title = imported_curves(kernels).to_dict()["title"]
    assert "imported" in title["text"]
    assert f"Imported, not measured here: {SOURCE}" in " ".join(title["subtitle"])
    ((figure, _),) = kernel_drawings(kernels)
    assert figure.caption.startswith("Imported, not measured here")
    assert SOURCE in figure.caption
    assert "2 GPUs" in figure.caption


def test_a_panel_is_a_module_and_what_it_runs_on(kernels: pl.DataFrame) -> None:
    """A panel's title is its module and backend with the shape, in the usual order."""
    panels = imported_curves(kernels).to_dict()["facet"]["sort"]
    assert [panel.partition(": ")[0] for panel in panels] == [
        f"{title}, {backend}"
        for title in ("matrix product", "MoE FFN", "attention")
        for backend in ("sglang", "vllm")
    ]
    assert panels[0].endswith("d_model 4096, d_ff 8192")


def test_every_point_is_drawn_with_its_row(kernels: pl.DataFrame) -> None:
    """Each mark has N, T(N) / T(baseline) and platform of its row."""
    drawn = {(m["row_id"], m["platform"], m["n"], m["ratio"])
             for m in marks(imported_curves(kernels), "point")}  # fmt: skip
    assert drawn == set(kernels.select("row_id", "platform", "n", "ratio").rows())


def test_n_max_has_the_mark_of_what_is_imported(kernels: pl.DataFrame) -> None:
    """N_max is a triangle with the edge of imported boundaries."""
    shape, edge = ORIGINS["imported"]
    layer = layer_of(kernels, "point", shape=shape)
    assert layer["mark"]["stroke"] == edge
    assert layer["transform"][-1] == {"filter": "datum.n == datum.n_max"}


def test_the_band_is_the_tolerance(kernels: pl.DataFrame) -> None:
    """Each panel's band goes from T(baseline) to 1 + epsilon times it, from the baseline on."""
    bands = marks(imported_curves(kernels), "band")
    assert len(bands) == kernels.select("module", "backend").n_unique()
    drawn = {(b["ratio"], b["limit"], b["n"], b["n2"]) for b in bands}
    assert drawn == {(1.0, 1.2, n, 16) for n in kernels["baseline"].unique()}


def test_axes_have_titles_and_n_is_in_octaves(kernels: pl.DataFrame) -> None:
    """Both axes have titles, and N is on a scale of powers of two."""
    ((_, chart),) = kernel_drawings(kernels)
    spec = specification(chart)
    assert has_titled_axes(spec)
    assert {"positions N", "T(N) / T(baseline)"} <= {*says(spec)}
    x = layer_of(kernels, "line")["encoding"]["x"]["scale"]
    assert (x["type"], x["base"]) == ("log", 2)


def test_platforms_look_unlike_each_other() -> None:
    """No two platforms share colour and dash."""
    named = [f"gpu{number}" for number in range(16)]
    shape = {"d_model": 4096, "d_ff": 8192}
    many = table([kept_kernel(Kept(shape=shape), platform=name) for name in named])
    line = layer_of(many, "line")["encoding"]
    looks = list(
        zip(
            line["color"]["scale"]["range"],
            map(tuple, line["strokeDash"]["scale"]["range"]),
            strict=True,
        )
    )
    assert line["color"]["scale"]["domain"] == sorted(named)
    assert len(set(looks)) == len(named)


def test_the_figure_lists_its_rows_and_nothing_draws_nothing(kernels: pl.DataFrame) -> None:
    """The figure lists the table's rows; an empty table gives no figure."""
    ((figure, _),) = kernel_drawings(kernels)
    assert set(figure.rows) == set(kernels["row_id"])
    assert figure.about == IMPORTED_CURVES
    assert not list(kernel_drawings(kernels.clear()))
