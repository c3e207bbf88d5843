"""Audit queries: a row, a table's key, a figure, an event or a take."""

from collections.abc import Iterator

from nearfree.config.files import Config
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.prove.audit.graph import Graph, Node, Tracer
from nearfree.prove.audit.table_index import ROW_ID, TableIndex
from nearfree.show.figures.listing import Figure, read_figures


def trace_query(layout: Layout, config: Config, text: str) -> Graph:
    """Return the provenance graph of a row, figure, event or take.

    Parameters
    ----------
    text
        A row's id; `TABLE:column=value,...`; a figure as SCOPE/NAME, or its name where only one
        scope has it; an event as SEGMENT#LINE; or a take.

    Raises
    ------
    EvidenceError
        The text names nothing, or several things, which the message lists.
    """
    index = TableIndex(layout)
    tracer = Tracer(index, config)
    if ROW_ID.fullmatch(text) or "#" in text or text.count("/") == 2:
        return tracer.trace(text)
    if ":" in text:
        return tracer.trace(index.by_key(text).row["row_id"])
    name, figure = _figure(layout, text)
    node = Node(
        id=name,
        kind="figure",
        title=figure.caption,
        values={"marks": len(figure.rows)},
        place=f"figures/{name}.html",
        made_from=figure.rows,
    )
    return tracer.trace(name, first=node)


def listed_figures(layout: Layout) -> Iterator[tuple[str, Figure]]:
    """Yield every drawn figure, as SCOPE/NAME."""
    for folder in sorted((layout.root / "figures").glob("*/")):
        for figure in read_figures(folder).figures:
            yield f"{folder.name}/{figure.name}", figure


def _figure(layout: Layout, text: str) -> tuple[str, Figure]:
    figures = list(listed_figures(layout))
    matching = [entry for entry in figures if text in (entry[0], entry[1].name)]
    if len(matching) == 1:
        return matching[0]
    close = (
        [name for name, figure in figures if text in name]
        if not matching
        else [n for n, _ in matching]
    )
    raise EvidenceError(
        f"{len(matching)} figures are named {text!r}{': ' if close else ''}{', '.join(close[:20])}",
        remedy="Name a row (TABLE:DIGEST), TABLE:column=value,..., SCOPE/FIGURE or SEGMENT#LINE",
    )
