"""Figures of simulated platforms say so, wherever those of real ones say `measured`."""

import json
from collections.abc import Iterable, Iterator

import altair as alt
from msgspec import structs

from nearfree.figures.families import Drawing

SIMULATED = "simulated"
_WORDS = {"Measured": "Simulated", "measured": SIMULATED}


def as_simulated(drawn: Iterable[Drawing]) -> Iterator[Drawing]:
    """Yield drawings in which nothing is called measured, and whose titles begin with the origin.

    The word is changed in the whole chart, its data included, so that scales still fit.
    """
    for figure, chart in drawn:
        with alt.data_transformers.disable_max_rows():
            told = json.loads(_told(json.dumps(chart.to_dict(validate=False))))
        told["title"]["text"] = f"{SIMULATED.capitalize()}: {told['title']['text']}"
        caption = f"{SIMULATED.capitalize()}: {_told(figure.caption)}"
        yield (
            structs.replace(figure, name=_told(figure.name), caption=caption),
            alt.FacetChart.from_dict(told, validate=False),
        )


def _told(text: str) -> str:
    for old, new in _WORDS.items():
        text = text.replace(old, new)
    return text
