"""The documents written by hand: files, commands and options that they name are there."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nearfree
import pytest
import yaml
from nearfree.backends.environments.lock import WORKFLOW_ENVIRONMENT
from nearfree.cli import make_parser
from nearfree.config.files import Config
from nearfree.config.plans import Plans

from workflow import ROOT

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{name}.md" for name in ("guide", "scores", "history", "cluster", "crate")),
    *sorted(f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md")),
)
TOP = "docs|config|rules|tests|envs|benchmarks|profiles|workflow"
ROOMS = "|".join(path.parent.name for path in (ROOT / "workflow/nearfree").glob("*/__init__.py"))
each_document = pytest.mark.parametrize("name", DOCUMENTS)


@each_document
def test_every_file_that_a_document_names_is_there(name: str) -> None:
    """Paths in back quotes that begin with a folder of the clone, and files of rooms, exist."""
    text, package = (ROOT / name).read_text(), ROOT / "workflow" / "nearfree"
    named = {ROOT / path for path in re.findall(rf"`((?:{TOP})/[\w/.-]*)`", text)}
    named |= {package / path for path in re.findall(rf"`((?:{ROOMS})/[\w/]+\.py)`", text)}
    assert named or name == "docs/guide.md"
    assert {path for path in named if not path.exists()} == set()


def headings(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@each_document
def test_every_link_of_a_document_leads_somewhere(name: str) -> None:
    """Its relative links name files that exist, and headings that these have."""
    path = ROOT / name
    links = re.findall(r"\[[^]\n]*\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text())
    for file, anchor in links:
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in headings(target), (file, anchor)


class Words(NamedTuple):
    """A command of a document: its words, and whether it is complete as printed."""

    words: list[str]
    whole: bool


def commands(name: str) -> Iterator[Words]:
    """Yield the `nearfree` commands of a document: lines of blocks, and those in back quotes."""
    text = re.sub(r"\\\n *", "", (ROOT / name).read_text())
    for line in re.findall(r"^ *(?:\$ )?(?:\.venv/bin/)?nearfree (.+)$", text, re.MULTILINE):
        if "`" not in line:
            # A comment stands behind `#`, behind `>` a file, and in tables behind two blanks.
            typed = re.split(r" [#>] |  ", line)[0]
            yield Words(shlex.split(typed), whole=True)
    for quoted in re.findall(r"`nearfree ([^`]+)`", text):
        yield Words(re.sub(r"[][]|…", "", quoted).split(), whole=False)


PARSER = make_parser()


def command_of(words: list[str]) -> argparse.ArgumentParser:
    """Return the parser of what words call; a KeyError names one that is no command."""
    parser = PARSER
    for word in words:
        below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not below:
            break
        parser = below[0].choices[word]
    return parser


@each_document
def test_every_command_of_a_document_is_there(name: str) -> None:
    """A line of a block is taken by the command line; in a sentence it is one, with its options."""
    command_lines = list(commands(name))
    assert command_lines or name in ("CONTRIBUTING.md", "docs/history.md")
    for command_line in command_lines:
        if command_line.whole:
            PARSER.parse_args(command_line.words)
        known = {flag for a in command_of(command_line.words)._actions for flag in a.option_strings}
        assert {word for word in command_line.words if word.startswith("-")} <= known, (
            command_line.words
        )


def test_the_package_says_where_its_forms_are_told() -> None:
    """What the API's text calls by a form is in the document that it names."""
    mention = re.search(
        r"`(nearfree\.predict\.v\d+)` \((docs/[\w/]+\.md)\)", nearfree.predict.__doc__
    )
    assert mention
    assert f"`{mention[1]}`" in (ROOT / mention[2]).read_text()


CLUSTER, CONFIG = (ROOT / "docs/cluster.md").read_text(), Config(ROOT / "config")


def test_a_cluster_s_first_run_leaves_out_what_needs_a_backend() -> None:
    """The page's list has the studies that need an environment of their own, and no other."""
    listed = re.search(r"^ +(without: .*?\])$", CLUSTER, re.MULTILINE | re.DOTALL)
    assert listed
    plans = Plans(CONFIG, "h200").all()
    apart = {
        name
        for name, plan in plans.items()
        if getattr(plan, "environment", WORKFLOW_ENVIRONMENT) != WORKFLOW_ENVIRONMENT
    }
    assert {*yaml.safe_load(listed[1])["without"]} == apart


def test_a_cluster_s_page_names_the_gpus_that_studies_are_of() -> None:
    """Whoever has another GPU reads that no study names it."""
    page = " ".join(CLUSTER.split())
    listed = page.partition("(`platforms` in `config/studies.yaml`):")[2].partition(".")[0]
    platforms = {name for study in CONFIG.studies.values() for name in study.platforms}
    assert {*re.findall(r"`(\w+)`", listed)} == platforms - {"cpu"}
