"""The paper's figures and tables, their captions in the gallery, and what reproduces them here."""

from pathlib import Path

from msgspec import Struct

from nearfree.config.yaml_file import read_file
from nearfree.core.modules.model import MODEL
from nearfree.core.modules.registry import MAIN
from nearfree.errors import ConfigError

MEASURED, SIMULATED, IMPORTED = "measured here", "simulated", "imported values only"
PUBLISHED, COMPUTED, EXPLAINED = "published values only", "computed here", "explained here"
READ, CALLED = "read from releases", "launch or call read, kernel not"
MISSING = "not in the log"
STATUSES = (
    *(MEASURED, SIMULATED, IMPORTED, PUBLISHED, COMPUTED),
    *(READ, CALLED, EXPLAINED, MISSING),
)
"""What an entry's `status` can be."""
FILE = "published/figures.yaml"
_MODULES: dict[str, str] = {module.name: module.title for module in (*MAIN, MODEL)}


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


class Shown(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure or table of the paper: where it stands, and what it is of."""

    label: str
    section: str
    title: str = ""
    """What it is of, where no module is."""
    panels: str = ""
    """The set of panels; none where a table holds what no figure of ours does."""
    platform: str = ""
    module: str = ""
    backend: str = ""
    routing: str = ""
    model: str = ""
    studies: tuple[str, ...] = ()
    """The studies that measure it on its platform."""
    table: str = ""
    """The table that holds it, as SCOPE/NAME."""
    package: str = ""
    """The package whose rules it tells."""
    rules: tuple[str, ...] = ()
    """Which of them, by name."""
    only_called: bool = False
    """Whether those rules are what launches or calls the code that it prints, not that code."""
    document: str = ""
    """The document that explains what it lists."""

    @property
    def kind(self) -> str:
        """Whether it is a figure or a table there."""
        return "table" if self.label.startswith("tab:") else "figure"

    @property
    def said(self) -> str:
        """What it is of, in words."""
        named = _MODULES.get(self.module, self.title)
        routed = f"{self.routing} routing" if self.routing else ""
        parts = (named, self.model, routed, self.backend, self.platform)
        return ", ".join(part for part in parts if part)


class Paper(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them, and the sets of panels by name: what a panel shows, and the family it is of."""

    panels: dict[str, dict[str, str]]
    figures: tuple[Shown, ...]
    tables: tuple[Shown, ...]

    def of(self, shown: Shown) -> dict[str, str]:
        """Return the panels of a figure or table, each with its family."""
        return self.panels[shown.panels] if shown.panels else {}


def read_paper(config: Path) -> Paper:
    """Return the list that a config folder holds; ConfigError if it names panels it lacks."""
    paper = read_file(config / FILE, Paper)
    for shown in (*paper.figures, *paper.tables):
        if shown.panels and shown.panels not in paper.panels:
            raise ConfigError(
                f"{config / FILE}: {shown.label} has the unknown panels {shown.panels!r:.80}",
                remedy=f"Use one of {', '.join(paper.panels)}",
            )
    return paper
