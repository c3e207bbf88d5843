"""The look of every figure: colours, titles of axes, and the same drawing each time."""

import json
import re
from collections.abc import Iterator

import altair as alt
import pytest
from nearfree.figures.families import Drawing, Rows, drawings
from nearfree.figures.modules import MODULES, DrawnModule
from nearfree.figures.theme import BAND, LAWS, MEASURED, PALETTE, PUBLISHED

OKABE_ITO = {
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
}  # fmt: skip
FAMILIES = {
    "latency_against_n": ("positions N", "T(N), ms"),
    "nmax_against_own": ("{own}", "N_max, positions"),
    "sensitivity": ("tolerance", "{own}", "N_max"),
    "intensity_against_n": ("positions N", "AI, FLOP/byte"),
    "flop_against_n": ("positions N", "C(N), FLOP"),
    "utilization_against_n": ("positions N", "utilisation"),
    "utilization_against_own": ("{own}", "utilisation"),
}
"""The titles of each family's axes."""


def every(rows: Rows) -> Iterator[Drawing]:
    """Yield every figure of all modules."""
    for module in MODULES:
        yield from drawings(rows.of(module.name), 0.2, module)


def spec(chart: alt.FacetChart) -> str:
    """Return a chart's specification; its rows are under a name that is their digest."""
    return json.dumps(chart.to_dict(validate=False) | {"datasets": {}})


@pytest.fixture(scope="module")
def specs(rows: Rows) -> dict[str, str]:
    """Return the specification of every figure by name."""
    return {figure.name: spec(chart) for figure, chart in every(rows)}


def test_the_palette_is_safe_for_colour_blind_readers() -> None:
    """Every colour of a category is of Okabe and Ito's palette, and none stands twice."""
    assert {*PALETTE, *LAWS, MEASURED, PUBLISHED, BAND} <= OKABE_ITO
    assert len(set(PALETTE)) == len(PALETTE)
    assert len(set(LAWS)) == len(LAWS)
    assert not {MEASURED, PUBLISHED} & set(LAWS)


def test_colours_are_of_the_palette(specs: dict[str, str]) -> None:
    """A figure uses the palette, greys, or a scheme that every reader can follow."""
    for text in specs.values():
        used = {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}", text)}
        greys = {colour for colour in used if colour[1:3] == colour[3:5] == colour[5:7]}
        assert used - greys <= OKABE_ITO
        assert set(re.findall(r'"scheme": "(\w+)"', text)) <= {"viridis"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_axes_have_titles(specs: dict[str, str], module: DrawnModule) -> None:
    """Each axis says what it shows, and in which unit."""
    own = f"{module.variable} {module.letter}"
    texts = {
        name.removeprefix(f"{module.name}_").replace(module.own, "own"): text
        for name, text in specs.items()
        if name.startswith(module.name)
    }
    assert len(texts) == (7 if module.padded else 5)
    for name, text in texts.items():
        assert all(f'"title": "{title.format(own=own)}"' in text for title in FAMILIES[name])


def test_a_figure_is_the_same_each_time(specs: dict[str, str], rows: Rows) -> None:
    """A figure of the same rows is the same specification each time, its order of rows too."""
    assert {figure.name: spec(chart) for figure, chart in every(rows)} == specs
