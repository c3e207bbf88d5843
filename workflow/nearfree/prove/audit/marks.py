"""Figures on disk against the same figures made again from remade tables, mark by mark."""

from collections.abc import Iterator
from pathlib import Path

from nearfree.errors import NearfreeError
from nearfree.log.names import Layout
from nearfree.log.reader import read_bytes
from nearfree.pipeline.pipeline import Pipeline
from nearfree.show.figures.listing import FigureList, read_figures
from nearfree.show.figures.page import page
from nearfree.show.figures.stage import Chart, charts, draw

_OTHER = "is not what the log and config give"


def figure_findings(
    said: Layout, made: Layout, pipeline: Pipeline, scope: str, *, drawn: bool
) -> tuple[dict[str, int], list[str]]:
    """Return how many figures and marks a scope has, and what is not as log and config give it.

    Parameters
    ----------
    said, made
        The root whose figures lie on disk, and the one with tables that were made again.
    drawn
        Whether they are drawn again, too, so that every byte is compared.
    """
    folder, imported = said.root / "figures" / scope, bool(pipeline.imported)
    try:
        listed = read_figures(folder)
    except NearfreeError as error:
        return {}, [str(error)]
    again = charts(made, scope, pipeline.site.epsilon, imported=imported)
    counts = {"figures": len(again), "marks": sum(len(figure.rows) for figure, _ in again)}
    findings = list(_entries(folder, listed, again))
    if drawn:
        draw(made, scope, pipeline.site.epsilon, imported=imported)
        findings += file_findings(folder, made.root / "figures" / scope)
        shared = "figures/vega.js"
        findings += _same(said.root / shared, (made.root / shared).read_bytes())
    return counts, list(dict.fromkeys(findings))


def _entries(folder: Path, listed: FigureList, again: list[Chart]) -> Iterator[str]:
    known = {figure.name: figure for figure in listed.figures}
    names = [figure.name for figure, _ in again]
    for name in known:
        if name not in names:
            yield f"{folder}/{name}: no stage draws this figure from this log and config"
    for figure, spec in again:
        if figure.name not in known:
            yield f"{folder}/{figure.name}: is missing, and the log gives it"
            continue
        if known[figure.name] != figure:
            yield f"{folder}/{figure.name}: its entry in figures.json {_OTHER}"
        yield from _same(folder / f"{figure.name}.html", page(spec, figure.name))


def file_findings(said: Path, made: Path) -> Iterator[str]:
    """Yield the files of a folder that are not those of the same folder when made again."""
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for name in sorted(names):
        yield from _same(said / name, (made / name).read_bytes())
    for path in sorted(said.rglob("*")):
        if not path.is_dir() and path.relative_to(said) not in names:
            yield f"{path}: nothing makes this file from this log and config"


def _same(path: Path, made: bytes) -> Iterator[str]:
    try:
        if read_bytes(path) != made:
            yield f"{path}: {_OTHER}"
    except NearfreeError as error:
        yield str(error)


def odd_figures(layout: Layout, pipeline: Pipeline) -> list[str]:
    """Return the folders of figures that no stage draws."""
    return [
        f"{path}: no stage draws figures of {path.name} from this log and config"
        for path in sorted((layout.root / "figures").glob("*/"))
        if path.name not in pipeline.scopes
    ]
