"""The guide: what it points to is there, and what it says of memory is what is computed with."""

import re
import shlex
from pathlib import Path

import nearfree
import pytest
from nearfree.cli import main
from nearfree.derive import memory

from workflow import ROOT

PACKAGE = Path(nearfree.__file__).parent
GUIDE = (Path(__file__).parents[1] / "docs" / "guide.md").read_text()
SECTION = GUIDE.partition("## Where is what")[2].partition("\n## ")[0]
ROWS = [line.split("|")[1:3] for line in SECTION.splitlines() if line.startswith("| ")]
ROOMS = {name for place, _ in ROWS for name in re.findall(r"^ ?`([a-z_]+)/`|, `([a-z_]+)/`", place)}
QUESTIONS = {
    question.strip(): answer for question, answer in ROWS if question.strip().endswith("?")
}


def test_every_room_has_its_row() -> None:
    """The list of rooms names each folder of the package, and none that is gone."""
    named = {name for pair in ROOMS for name in pair if name}
    assert named == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_twenty_questions_have_an_answer() -> None:
    """A newcomer's questions are twenty at least, each asked once."""
    assert len(QUESTIONS) >= 20


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_names_files_that_are_there(question: str) -> None:
    """Each answer names a file; one without a folder lies beside the file before it."""
    folder = PACKAGE
    names = re.findall(r"`([a-z0-9_/]+(?:\.py|/))`", QUESTIONS[question])
    assert names
    for name in (name.removeprefix("workflow/nearfree/") for name in names):
        path = PACKAGE / name if "/" in name else folder / name
        assert path.exists(), name
        folder = path.parent if path.suffix else path


PRECISION = GUIDE.partition("## Precision and memory\n")[2].partition("\n## ")[0]


def test_the_guide_names_every_option_of_precision() -> None:
    """The table of options has those that ask for formats, kernels and memory."""
    named = set(re.findall(r"^\| `(--[a-z-]+)`", PRECISION, re.MULTILINE))
    asked = {"--weights", "--activations", "--kv-dtype", "--dtype"}
    assert named == asked | {"--dense", "--moe-backend", "--ignore-memory"}


def test_the_guide_has_the_constants_of_memory() -> None:
    """What is assumed is what is computed with."""
    assert f"pages of {memory.PAGE_POSITIONS}" in PRECISION
    assert f"{memory.PROMPT_TOKENS} prompt tokens" in PRECISION
    assert f"{memory.ENGINE_BYTES / 1e9} GB a GPU" in PRECISION


SHOWN = re.findall(r"^```\n\$ nearfree (.*?[^\\])\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
"""Commands of the guide with what stands below them."""


def test_five_questions_are_shown() -> None:
    """Each thread's question has a command."""
    assert len(SHOWN) == 5


@pytest.mark.slow
@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=lambda text: text[:24])
def test_the_guide_shows_what_commands_print(
    command: str, lines: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line below a command is one that it prints; `...` at an end stands for the rest."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command.replace("\\\n", " ")))
    assert not ended.value.code
    told = capsys.readouterr()
    printed = (told.out + told.err).splitlines()
    for line in lines.splitlines():
        if line.endswith("..."):
            assert any(each.startswith(line.removesuffix("...")) for each in printed), line
        else:
            assert line in printed
