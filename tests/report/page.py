"""Reading a page as a browser would: elements, their attributes and the text of cells."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The ids, links and tables of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.tables: list[list[list[Cell]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if tag == "a" and name == "href":
                self.links.append(value or "")
                if self._open:
                    self.tables[-1][-1][-1].href = value or ""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(Cell())
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close a cell."""
        if tag in ("td", "th"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data
        if self._open:
            self.tables[-1][-1][-1].text += data


class Cell:
    """One cell of a table: its text, and where it links to."""

    def __init__(self) -> None:
        self.text = ""
        self.href = ""
