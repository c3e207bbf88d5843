"""What a person may ask the audit about: a row, a table's key, a figure, an event or a take."""

from collections.abc import Iterator

from nearfree.config.files import Config
from nearfree.errors import EvidenceError
from nearfree.log.names import Layout
from nearfree.prove.audit.graph import Graph, Node, Tracer
from nearfree.prove.audit.table_index import ROW_ID, Book
from nearfree.show.figures.listing import Figure, read_figures


def ask(layout: Layout, config: Config, text: str) -> Graph:
    """Return all that one thing rests on.

    Parameters
    ----------
    text
        A row's id; `TABLE:column=value,...`; a figure as SCOPE/NAME, or its name where only one
        scope has it; an event as SEGMENT#LINE; or a take.

    Raises
    ------
    EvidenceError
        It names nothing, or several things, which are listed.
    """
    book = Book(layout)
    tracer = Tracer(book, config)
    if ROW_ID.fullmatch(text) or "#" in text or text.count("/") == 2:
        return tracer.trace(text)
    if ":" in text:
        return tracer.trace(book.by_key(text).row["row_id"])
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
    every = list(listed_figures(layout))
    found = [each for each in every if text in (each[0], each[1].name)]
    if len(found) == 1:
        return found[0]
    close = [name for name, figure in every if text in name] if not found else [n for n, _ in found]
    raise EvidenceError(
        f"{len(found)} figures are named {text!r}{': ' if close else ''}{', '.join(close[:20])}",
        remedy="Name a row (TABLE:DIGEST), TABLE:column=value,..., SCOPE/FIGURE or SEGMENT#LINE",
    )
