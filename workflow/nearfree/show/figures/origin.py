"""Figures of simulated platforms say so, wherever those of real ones say `measured`."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import altair as alt
from msgspec import structs

from nearfree.show.figures.families import Drawing
from nearfree.show.figures.listing import Figure

SIMULATED = "simulated"
_WORDS = {"Measured": "Simulated", "measured": SIMULATED}


class Told:
    """A chart of which only what it draws is left, as Vega-Lite."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec

    def to_dict(self, **_: object) -> dict[str, Any]:
        """Return the specification."""
        return self._spec


def as_simulated(drawn: Iterable[Drawing]) -> Iterator[tuple[Figure, Told]]:
    """Yield drawings in which nothing is called measured, and whose titles begin with the origin.

    The word is changed in the whole chart, its data included, so that scales still fit.
    """
    for figure, chart in drawn:
        with alt.data_transformers.disable_max_rows():
            spec = json.loads(_told(json.dumps(chart.to_dict(context={"pre_transform": False}))))
        spec["title"]["text"] = f"{SIMULATED.capitalize()}: {spec['title']['text']}"
        caption = f"{SIMULATED.capitalize()}: {_told(figure.caption)}"
        yield structs.replace(figure, name=_told(figure.name), caption=caption), Told(spec)


def _told(text: str) -> str:
    for old, new in _WORDS.items():
        text = text.replace(old, new)
    return text
