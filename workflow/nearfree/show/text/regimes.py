"""Scores of regimes as text: data, the curves left out, and one line per group."""

from collections.abc import Iterator, Sequence

from nearfree.derive.truth.truth import Truth
from nearfree.show.text.scores import HIT, TRUTH, Row, table

LEFT_OUT = {
    "R0": "a GPU and its siblings",
    "R1": "a GPU",
    "R2m": "a model, everywhere: d_model, experts and top_k; of products K, of attention its "
    "heads, of attention layers d_model with a rank's heads",
    "R2s": "a shape, everywhere",
    "R3": "a release, of kernels measured in another one",
}
"""The curves that each regime leaves out."""


def lines(
    source: str, known: Truth, epsilons: Sequence[float], rows: Sequence[Row], by: Sequence[str]
) -> Iterator[str]:
    """Yield the definitions of the scores, and one line per group of `by`."""
    yield f"data        {source}: {known.settings.height} curves"
    yield f"tolerance   {', '.join(f'{epsilon:g}' for epsilon in epsilons)}"
    yield f"truth       {TRUTH}"
    yield f"hit         {HIT}"
    for name, text in LEFT_OUT.items():
        yield f"{name:11} leaves out {text}"
    yield "bands       calibrated on one half of the models, scored on the other"
    yield "forms       chosen on these same tables (docs/history.md, Regimes)"
    yield ""
    yield from table(rows, by)
