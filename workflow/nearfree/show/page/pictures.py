"""A scope's figures for the page: their captions, their drawings, and copies to open beside it."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from nearfree.errors import TableError
from nearfree.log.document import replace
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.reader import read_bytes
from nearfree.show.figures.listing import Figure, FigureList, read_figures
from nearfree.show.page.blocks import Block, block
from nearfree.show.page.svg import safe_svg

_SIZE = re.compile(r'width="(\d+(?:\.\d+)?)" height="(\d+(?:\.\d+)?)"')


class Picture(Struct, frozen=True):
    """A figure of the page; its drawing is in a block until somebody scrolls near."""

    scope: str
    figure: Figure
    drawing: Block
    width: str
    height: str

    @property
    def anchor(self) -> str:
        """The figure's id in the page."""
        return f"figure-{self.scope}-{self.figure.name}"

    @property
    def href(self) -> str:
        """The interactive figure, beside the page."""
        return f"figures/{self.scope}/{self.figure.name}.html"


def pictures(layout: Layout, scope: str) -> Iterator[Picture]:
    """Yield the figures of a scope.

    Raises
    ------
    DamageError, TableError
        A file is missing, is not as it was written, or is more than a drawing.
    """
    folder = layout.root / "figures" / scope
    listed = read_figures(folder)
    for figure in listed.figures:
        path = folder / f"{figure.name}.svg"
        raw = _believed(folder, listed, path.name)
        text = safe_svg(path, raw)
        size = _SIZE.search(text[:400])
        yield Picture(
            scope=scope,
            figure=figure,
            drawing=block(f"svg:{scope}/{figure.name}", text.encode()),
            width=size[1] if size else "640",
            height=size[2] if size else "400",
        )


def copy_figures(layout: Layout, scopes: Iterable[str], into: Path) -> None:
    """Put the interactive figures of scopes beside the page, and nothing else there."""
    wanted: dict[Path, bytes] = {}
    for scope in scopes:
        folder = layout.root / "figures" / scope
        listed = read_figures(folder)
        for name in listed.files:
            if name.endswith((".html", ".js")):
                wanted[(into / scope / name).resolve()] = _believed(folder, listed, name)
    for path in sorted(into.rglob("*")):
        if path.is_file() and path.resolve() not in wanted:
            path.unlink()
    for path, raw in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, raw)


def _believed(folder: Path, listed: FigureList, name: str) -> bytes:
    raw = read_bytes(folder / name)
    if listed.files.get(name) != sha256(raw):
        raise TableError(
            f"{folder / name} is not what the list of figures says", remedy="Draw the figures again"
        )
    return raw
