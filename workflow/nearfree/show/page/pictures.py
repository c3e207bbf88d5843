"""A scope's figures for the page: captions, static drawings, and copies beside the page."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from msgspec import Struct

from nearfree.errors import TableError
from nearfree.log.document import replace
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.reader import read_bytes
from nearfree.show.figures.listing import Figure, FigureList, read_figures
from nearfree.show.page.inline import Block, block

_ELEMENTS = frozenset(
    {
        *("svg", "g", "path", "rect", "line", "circle", "text", "tspan", "title", "desc"),
        *("defs", "clipPath", "linearGradient", "stop", "symbol", "use"),
    }
)
_NAMESPACE = "{http://www.w3.org/2000/svg}"  # an identifier, not an address to load
_OUTER_URL = re.compile(r"url\((?!\s*['\"]?\s*#)", re.IGNORECASE)
"""Matches a reference to something outside the drawing, anywhere in a value."""
_SIZE = re.compile(r'width="(\d+(?:\.\d+)?)" height="(\d+(?:\.\d+)?)"')


def safe_svg(path: Path, raw: bytes) -> str:
    """Return the text of a drawing; TableError if it has active or external content."""
    try:
        text = raw.decode()
        if "<!" in text or "<?" in text:
            raise _refused(path, "holds a declaration")
        root = ET.fromstring(text)  # noqa: S314
    except (UnicodeDecodeError, ET.ParseError) as error:
        raise _refused(path, f"is not a drawing: {error}") from error
    for element in root.iter():
        if element.tag.removeprefix(_NAMESPACE) not in _ELEMENTS:
            raise _refused(path, f"holds the element {element.tag[:80]}")
        for name, value in element.attrib.items():
            _check_attribute(path, name.rpartition("}")[2].lower(), value)
    return text


def _check_attribute(path: Path, name: str, value: str) -> None:
    outside = _OUTER_URL.search(value) or (name == "href" and not value.startswith("#"))
    if name.startswith("on") or outside:
        raise _refused(path, f"holds the attribute {name}={value[:80]!r}")


def _refused(path: Path, problem: str) -> TableError:
    return TableError(f"{path} {problem}", remedy="Draw the figures again")


class Picture(Struct, frozen=True):
    """A figure of the page; its drawing stays in a block until the reader scrolls near."""

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
        """The link to the interactive figure beside the page."""
        return f"figures/{self.scope}/{self.figure.name}.html"


def pictures(layout: Layout, scope: str) -> Iterator[Picture]:
    """Yield the figures of a scope.

    Raises
    ------
    DamageError, TableError
        A file is missing, was changed, or has active or external content.
    """
    folder = layout.root / "figures" / scope
    listing = read_figures(folder)
    for figure in listing.figures:
        path = folder / f"{figure.name}.svg"
        raw = _verified(folder, listing, path.name)
        text = safe_svg(path, raw)
        size = _SIZE.search(text[:400])
        yield Picture(
            scope=scope,
            figure=figure,
            drawing=block(f"svg:{scope}/{figure.name}", text.encode()),
            width=size[1] if size else "640",
            height=size[2] if size else "400",
        )


def copy_figures(layout: Layout, scopes: Iterable[str], destination: Path) -> None:
    """Copy the interactive figures of scopes beside the page, and remove all other files there."""
    contents: dict[Path, bytes] = {}
    for scope in scopes:
        folder = layout.root / "figures" / scope
        listing = read_figures(folder)
        for name in listing.files:
            if name.endswith((".html", ".js")):
                contents[(destination / scope / name).resolve()] = _verified(folder, listing, name)
    for path in sorted(destination.rglob("*")):
        if path.is_file() and path.resolve() not in contents:
            path.unlink()
    for path, raw in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, raw)


def _verified(folder: Path, listing: FigureList, name: str) -> bytes:
    raw = read_bytes(folder / name)
    if listing.files.get(name) != sha256(raw):
        raise TableError(
            f"{folder / name} differs from the list of figures", remedy="Draw the figures again"
        )
    return raw
