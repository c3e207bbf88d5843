"""A page read like a browser does: elements, attributes and cells."""

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """The ids, links and tables of a page, its text, and what its blocks hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.tables: list[list[list[Cell]]] = []
        self.rows: list[str] = []
        self.blocks: dict[str, str] = {}
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._told: list[str] = []
        self._open: list[str] = []
        self._inside = ""
        self._block = ""
        self.feed(text)
        self.close()
        self.text = "".join(self._told)
        self._read: dict[str, Any] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name == "data-row":
                self.rows.append(value or "")
            if tag == "a" and name == "href":
                self.links.append(value or "")
                if self._open:
                    self.tables[-1][-1][-1].href = value or ""
        if tag in ("script", "style"):
            self._inside = tag
            self._block = dict(attrs).get("data-name") or ""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(Cell())
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """End a cell, a script or a style."""
        if tag == self._inside:
            self._inside = ""
        if tag in ("td", "th"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        """Record text, or the content of a block, a script or a style."""
        if self._inside == "script" and self._block:
            self.blocks[self._block] = self.blocks.get(self._block, "") + data
            return
        if self._inside:
            (self.scripts if self._inside == "script" else self.styles).append(data)
            return
        self._told.append(data)
        if self._open:
            self.tables[-1][-1][-1].text += data

    def block(self, name: str) -> Any:
        """Return the content of a block."""
        if name not in self._read:
            packed = base64.b64decode(self.blocks[name])
            self._read[name] = json.loads(gzip.decompress(packed))
        return self._read[name]

    def ids_of(self, table: str) -> set[str]:
        """Return the ids of the rows of a table that are in the page."""
        return {f"{table}:{digest}" for digest in self.block(f"table:{table}")["ids"]}


class Cell:
    """One cell of a table: its text, and where it links to."""

    def __init__(self) -> None:
        self.text = ""
        self.href = ""
