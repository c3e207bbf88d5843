"""Figures on disk against the same figures drawn again from remade tables, mark by mark."""

from nearfree.audit.book import Book
from nearfree.audit.resolve import row_ids
from nearfree.errors import NearfreeError
from nearfree.events.names import Layout
from nearfree.figures.listing import read_figures
from nearfree.figures.page import read_spec
from nearfree.figures.stage import charts
from nearfree.pipeline import Pipeline


def figure_findings(
    said: Layout, made: Layout, pipeline: Pipeline, scope: str
) -> tuple[dict[str, int], list[str]]:
    """Return how many figures and marks a scope has, and what is not as the log gives it.

    Parameters
    ----------
    said, made
        The root whose figures lie on disk, and the one with tables that were made again.
    """
    folder = said.root / "figures" / scope
    counts = {"figures": 0, "marks": 0}
    try:
        listed = {figure.name: figure for figure in read_figures(folder).figures}
    except NearfreeError as error:
        return counts, [str(error)]
    known = set(row_ids(Book(said)))
    drawn = charts(made, scope, pipeline.site.epsilon, imported=bool(pipeline.imported))
    findings = [
        f"{folder}/{name}: no stage draws this figure from this log and config"
        for name in sorted(listed.keys() - {figure.name for figure, _ in drawn})
    ]
    for figure, spec in drawn:
        place = f"{folder}/{figure.name}"
        counts["figures"] += 1
        counts["marks"] += len(figure.rows)
        if figure.name not in listed:
            findings.append(f"{place}: is missing, and the log gives it")
            continue
        odd = [row for row in listed[figure.name].rows if row not in known]
        findings += [f"{place}: a mark stands for {odd[0]}, which no table has"] if odd else []
        try:
            same = (
                listed[figure.name] == figure and read_spec(folder / f"{figure.name}.html") == spec
            )
        except NearfreeError as error:
            findings.append(str(error))
            continue
        if not same:
            findings.append(f"{place}: shows other marks or words than the log gives")
    return counts, findings
