"""Figures on disk against the same figures recomputed from the log and config, mark by mark."""

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
    on_disk: Layout, made: Layout, pipeline: Pipeline, scope: str, *, drawn: bool
) -> tuple[dict[str, int], list[str]]:
    """Return the counts of a scope's figures and marks, and its findings.

    Parameters
    ----------
    on_disk, made
        The root whose figures are audited, and the one with recomputed tables.
    drawn
        Draw the figures again, too, and compare every byte.
    """
    folder, imported = on_disk.root / "figures" / scope, bool(pipeline.imported)
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
        findings += _same(on_disk.root / shared, (made.root / shared).read_bytes())
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


def file_findings(on_disk: Path, made: Path) -> Iterator[str]:
    """Yield a finding for each file that differs between a folder and its recomputed copy."""
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for name in sorted(names):
        yield from _same(on_disk / name, (made / name).read_bytes())
    for path in sorted(on_disk.rglob("*")):
        if not path.is_dir() and path.relative_to(on_disk) not in names:
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
