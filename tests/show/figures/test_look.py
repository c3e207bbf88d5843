"""The look of every figure: colours, titles of axes, and the same drawing each time."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations

import altair as alt
import polars as pl
import pytest
from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.registry import MAIN
from nearfree.show.figures.boundaries import ORIGINS
from nearfree.show.figures.families import Rows, drawings
from nearfree.show.figures.listing import Drawing
from nearfree.show.figures.theme import (
    BAND,
    LAWS,
    MEASURED,
    PALETTE,
    PREDICTORS,
    PUBLISHED,
    ROLES,
    in_order,
    keyed,
    lines_of,
    roles,
)

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

VISIONS = {
    "common": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""How readers see linear RGB (Machado, Oliveira and Fernandes 2009, at full severity)."""
XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))
"""Linear sRGB to XYZ over that of white."""
APART = 20.0
"""Distance in CIELAB at which marks of a few pixels are told apart."""


def every(rows: Rows) -> Iterator[Drawing]:
    """Yield every figure of all modules."""
    for module in MAIN:
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


@pytest.mark.slow
@pytest.mark.parametrize("module", MAIN, ids=lambda module: module.name)
def test_axes_have_titles(specs: dict[str, str], module: ModuleKind) -> None:
    """Each axis says what it shows, and in which unit."""
    own = f"{module.variable} {module.letter}"
    texts = {
        name.removeprefix(f"{module.name}_").replace(module.own, "own"): text
        for name, text in specs.items()
        if name.startswith(module.name)
    }
    assert len(texts) == (7 if module.granular else 5)
    for name, text in texts.items():
        assert all(f'"title": "{title.format(own=own)}"' in text for title in FAMILIES[name])


def test_a_figure_is_the_same_each_time(specs: dict[str, str], rows: Rows) -> None:
    """A figure of the same rows is the same specification each time, its order of rows too."""
    assert {figure.name: spec(chart) for figure, chart in every(rows)} == specs


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the product of two vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def seen(colour: str, vision: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """Return a colour in CIELAB as someone sees it whose eyes mix linear RGB so."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    mixed = [min(1.0, max(0.0, dot(row, linear))) for row in vision]
    x, y, z = (
        math.cbrt(value) if value > 0.008856 else 7.787 * value + 16 / 116
        for value in (dot(row, mixed) for row in XYZ)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", VISIONS)
def test_ways_of_composing_look_unlike_all_other_predictors(vision: str) -> None:
    """To no reader does the colour of the sum, the minimum or the counted law look like another."""
    own = {"modules_sum", "modules_minimum", "principle_counted"}
    colours = {name: seen(colour, VISIONS[vision]) for name, (colour, _) in PREDICTORS.items()}
    colours["measured"] = seen("#000000", VISIONS[vision])
    pairs = [pair for pair in combinations(colours, 2) if own & {*pair}]
    assert min(math.dist(colours[a], colours[b]) for a, b in pairs) > APART


TOGETHER = {
    "predictors": {name: colour for name, (colour, _) in PREDICTORS.items()}
    | {"measured": "#000000"},
    "modules of a forward": ROLES,
    "lines": dict(enumerate(PALETTE)),
    "laws": dict(enumerate(LAWS)),
    "boundaries by origin": {name: colour for name, (_, colour) in ORIGINS.items()},
}
"""Colours that stand in one figure."""
LEAST = 16.0
"""Distance in CIELAB that the nearest two of Okabe and Ito's colours keep for every reader."""


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("colours", TOGETHER.values(), ids=TOGETHER)
def test_colours_of_one_figure_are_told_apart(colours: dict[object, str], vision: str) -> None:
    """To no reader are two colours of a figure nearer than the palette's own nearest two."""
    pairs = combinations([seen(colour, VISIONS[vision]) for colour in colours.values()], 2)
    assert min(math.dist(a, b) for a, b in pairs) >= LEAST


def test_grey_between_two_colours_would_be_found() -> None:
    """A middle grey looks like the palette's green to readers with deuteranopia."""
    grey, green = (seen(colour, VISIONS["deuteranopia"]) for colour in ("#777777", "#009e73"))
    assert math.dist(grey, green) < LEAST


def test_kinds_of_a_role_are_told_apart() -> None:
    """Kinds of attention have colours of one hue, each darker; roles keep a forward's order."""
    near, far = (f"attention, {kind}, 3 of 6 layers" for kind in ("window 8", "all positions"))
    names = in_order(["LM head", near, "what is new", "MoE FFN", far])
    assert names == [far, near, "MoE FFN", "LM head", "what is new"]
    colours = roles("module:N", names).to_dict()["scale"]["range"]
    assert colours[0] == ROLES["attention"]
    assert len({*colours}) == len(names)
    lights = [int(colour[1:3], 16) + int(colour[5:7], 16) for colour in colours[:2]]
    assert lights[1] < lights[0]


def test_no_two_modules_of_a_forward_look_the_same() -> None:
    """Modules of latent attention have a hue each, and what has none is another grey."""
    latent = ("between", "latent projection", "query projection", "key absorption")
    names = [*latent, "latent attention", "value release", "attention all-reduce"]
    colours = dict(zip(names, roles("role:N", names).to_dict()["scale"]["range"], strict=True))
    assert len({*colours.values()}) == len(names)
    assert colours["latent projection"] == ROLES["qkv projection"]
    assert colours["key absorption"] == ROLES["attention"]
    grey = colours["attention all-reduce"]
    assert grey[1:3] == grey[3:5] == grey[5:7]


def test_text_is_as_wide_for_readers_as_it_was_measured(specs: dict[str, str]) -> None:
    """A drawing names fonts of the width that it is laid out by before whatever a reader has."""
    fonts = ["Liberation Sans", "Arial", "Helvetica", "DejaVu Sans Condensed", "sans-serif"]
    for text in specs.values():
        assert json.loads(text)["config"]["font"].split(", ") == fonts


def test_a_long_subtitle_has_several_lines(rows: Rows) -> None:
    """None is longer than the narrowest drawing is in a wide font."""
    for _, chart in every(rows):
        lines = chart.to_dict(validate=False)["title"]["subtitle"]
        assert isinstance(lines, list)
        assert max(map(len, lines)) <= 80


def test_a_channel_without_series_has_no_legend() -> None:
    """An empty legend has no size, and its whole drawing none with it."""
    assert keyed(alt.Color, "x:N", {}).to_dict()["legend"] is None
    assert keyed(alt.Color, "x:N", {"a": PALETTE[0]}).to_dict()["legend"]["orient"] == "bottom"


def test_more_lines_than_colours_are_told_apart() -> None:
    """A colour that comes again has another dash."""
    names = pl.Series([f"line {number}" for number in range(3 * len(PALETTE))])
    looks = [(colour, *dash) for colour, dash in lines_of(names).values()]
    assert len(looks) == names.len() == len(set(looks))
