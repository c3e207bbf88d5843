"""What the gallery says of each figure and table of the paper."""

from msgspec import Struct

MEASURED, SIMULATED, IMPORTED = "measured here", "simulated", "imported values only"
PUBLISHED, COMPUTED, EXPLAINED = "published values only", "computed here", "explained here"
READ, CALLED = "read from releases", "launch or call read, kernel not"
MISSING = "not in the log"
STATUSES = (
    *(MEASURED, SIMULATED, IMPORTED, PUBLISHED, COMPUTED),
    *(READ, CALLED, EXPLAINED, MISSING),
)
"""What an entry's `status` can be."""


class Drawn(Struct, frozen=True, kw_only=True):
    """A figure of ours: its caption, the function that drew it and its file, its rows, its files.

    `href` leads to the page and `picture` to the SVG, both from the results root.
    """

    scope: str
    name: str
    caption: str
    rule: str
    source: str
    rows: int
    href: str
    picture: str


class Data(Struct, frozen=True, kw_only=True):
    """A table of ours, how many of its rows are about an entry, and its file from the root."""

    scope: str
    table: str
    rows: int
    href: str


class Fill(Struct, frozen=True, kw_only=True):
    """What would measure an entry: a study, the platform it needs, and the command.

    `set` is the study's; it has to be among the site's `sets`.
    """

    platform: str
    study: str
    set: str
    command: str


class Entry(Struct, frozen=True, kw_only=True):
    """A figure or table of the paper, and what there is of it here.

    `figures` show its own platform or its published values; `alike` are of the same families and
    module on other platforms of the log.
    """

    label: str
    kind: str
    section: str
    title: str
    panels: tuple[str, ...]
    families: tuple[str, ...]
    status: str
    figures: tuple[Drawn, ...]
    alike: tuple[Drawn, ...]
    data: tuple[Data, ...]
    fills: tuple[Fill, ...]
    document: str
