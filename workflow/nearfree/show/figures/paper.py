"""The paper's exhibits: what each figure and table shows, and what draws or holds the same here."""

from pathlib import Path

from msgspec import Struct

from nearfree.config.yaml_file import read_file
from nearfree.core.modules.model import MODEL
from nearfree.core.modules.registry import MAIN
from nearfree.errors import ConfigError

FILE = "published/figures.yaml"
_MODULES: dict[str, str] = {module.name: module.title for module in (*MAIN, MODEL)}


class Exhibit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    """The package whose rules it prints."""
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
    def subject(self) -> str:
        """What it is of, in words."""
        named = _MODULES.get(self.module, self.title)
        routed = f"{self.routing} routing" if self.routing else ""
        parts = (named, self.model, routed, self.backend, self.platform)
        return ", ".join(part for part in parts if part)


class Paper(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All exhibits, and the sets of panels by name: what a panel shows, and its family."""

    panels: dict[str, dict[str, str]]
    figures: tuple[Exhibit, ...]
    tables: tuple[Exhibit, ...]

    def of(self, exhibit: Exhibit) -> dict[str, str]:
        """Return the panels of a figure or table, each with its family."""
        return self.panels[exhibit.panels] if exhibit.panels else {}


def read_paper(config: Path) -> Paper:
    """Return the list that a config folder holds; ConfigError if it names panels it lacks."""
    paper = read_file(config / FILE, Paper)
    for exhibit in (*paper.figures, *paper.tables):
        if exhibit.panels and exhibit.panels not in paper.panels:
            raise ConfigError(
                f"{config / FILE}: {exhibit.label} has the unknown panels {exhibit.panels!r:.80}",
                remedy=f"Use one of {', '.join(paper.panels)}",
            )
    return paper
