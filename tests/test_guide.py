"""The guide and its scores: what they point to is there, numbers are the code's and the log's."""

import re
import shlex
from pathlib import Path

import nearfree
import pytest
from msgspec import json
from nearfree.cli import main
from nearfree.decoders.stored.quantisation import METHODS
from nearfree.derive import memory
from nearfree.derive.reference.record import newest_kernels
from nearfree.log.names import Layout
from nearfree.public.curve_row import COLUMNS, OPTIONAL

from workflow import ROOT

PACKAGE = Path(nearfree.__file__).parent
INDEX, SCORES = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("guide", "scores"))
CHAPTERS = {path.name: path.read_text() for path in (ROOT / "docs" / "guide").glob("*.md")}
GUIDE = "".join([INDEX, *CHAPTERS.values()])
SECTION = GUIDE.partition("## Where is what")[2].partition("\n## ")[0]
ROWS = [line.split("|")[1:3] for line in SECTION.splitlines() if line.startswith("| ")]
ROOMS = {name for place, _ in ROWS for name in re.findall(r"^ ?`([a-z_]+)/`|, `([a-z_]+)/`", place)}
QUESTIONS = {
    question.strip(): answer for question, answer in ROWS if question.strip().endswith("?")
}


def section(name: str, text: str = GUIDE) -> str:
    """Return a section of the guide or of another text, without its heading."""
    body = text.partition(f"\n## {name}\n")[2]
    assert body, name
    return re.split(r"\n#{2,3} ", body)[0]


def rows(name: str, text: str = GUIDE) -> list[list[str]]:
    """Return the rows of a section's tables, without their heads."""
    lines = [line for line in section(name, text).splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    heads = {at - 1 for at, row in enumerate(cells) if row[0] == "---"}
    return [row for at, row in enumerate(cells) if at not in heads and row[0] != "---"]


def test_the_index_has_every_chapter() -> None:
    """The list before the first section links to each chapter once."""
    linked = re.findall(r"\]\(guide/([\w-]+\.md)\)", INDEX.partition("\n## ")[0])
    assert sorted(linked) == sorted(CHAPTERS)


def test_every_room_has_its_row() -> None:
    """The list of rooms names each folder of the package and no other."""
    named = {name for pair in ROOMS for name in pair if name}
    assert named == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_twenty_questions_have_an_answer() -> None:
    """The guide answers at least twenty different questions of a newcomer."""
    assert len(QUESTIONS) >= 20


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_names_files_that_are_there(question: str) -> None:
    """Each answer names an existing file; a bare name is in the folder of the file before."""
    folder = PACKAGE
    names = re.findall(r"`([a-z0-9_/]+(?:\.py|/))`", QUESTIONS[question])
    assert names
    for name in (name.removeprefix("workflow/nearfree/") for name in names):
        path = PACKAGE / name if "/" in name else folder / name
        assert path.exists(), name
        folder = path.parent if path.suffix else path


PRECISION = GUIDE.partition("\n## Precision and memory\n")[2].partition("\n## ")[0]


def test_the_guide_names_every_option_of_precision() -> None:
    """The table of options has those that ask for formats, kernels and memory."""
    named = set(re.findall(r"^\| `(--[a-z-]+)`", PRECISION, re.MULTILINE))
    options = {"--weights", "--activations", "--kv-dtype", "--dtype"}
    assert named == options | {"--dense", "--moe-backend", "--ignore-memory"}


def test_the_guide_has_the_constants_of_memory() -> None:
    """What is assumed is what is computed with."""
    prose = " ".join(PRECISION.split())
    assert f"pages of {memory.PAGE_POSITIONS}" in prose
    assert f"{memory.PROMPT_TOKENS} prompt tokens" in prose
    assert f"{memory.ENGINE_BYTES / 1e9} GB a GPU" in prose


def test_the_guide_names_every_method_of_quantisation() -> None:
    """What is read of a model's own file is said to be read, by its name there."""
    methods = PRECISION.partition("Methods that are read: ")[2].partition("\n\n")[0]
    assert {name for name in METHODS if not re.search(rf"\b{name}\b", methods)} == {"modelopt_fp4"}


def test_the_guide_lists_the_columns_of_a_curve_file() -> None:
    """The list has those that a file needs, and of the others the kernel; the rest is named."""
    text = section("Public data and your own")
    listed = text.partition("with the columns\n\n`")[2].partition("`")[0]
    assert {*re.split(r",\s+", listed)} == {*COLUMNS} - OPTIONAL | {"kernel"}
    others = OPTIONAL - {"kernel", "tp", "dp", "ep", "pp", "threads"}
    assert {name for name in others if f"`{name}`" not in text} == set()


KINDS = {
    "MoE FFN, balanced": ("moe_ffn", "balanced"),
    "MoE FFN, power law": ("moe_ffn", "power_law"),
    "products of 64 MB or more": ("gemm", ""),
    "attention without a cache": ("attention", ""),
    "latent attention": ("mla", ""),
    "attention layers that select positions, over a cache": ("attention_layer", ""),
}
"""What the table of scores calls modules and routings."""


def test_how_good_predictions_are_is_what_is_on_record() -> None:
    """Hits and shares within x2 are those that the log has beside its constants, by regime."""
    _, events = newest_kernels(Layout(ROOT / "results"))
    scores = {
        (of.module, of.routing, of.formats, of.regime): of
        for event in {event.event_id: event for event in events.values()}.values()
        for of in event.data.bands
    }
    guide_rows = rows("How good the predictions are")
    assert {kind for kind, *_ in guide_rows} == KINDS.keys()
    for kind, formats, curves, *cells in guide_rows:
        recorded = [scores.get((*KINDS[kind], formats, f"R{number}")) for number in range(4)]
        assert recorded[0]
        assert curves == f"{recorded[0].curves:,}"
        assert cells == [
            f"{of.hit:.2f}, {of.within_x2:.2f}".replace("0.", ".") if of else "" for of in recorded
        ]


def test_the_paper_s_settings_are_scored_as_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hits of 54 and of 270, the share within x2 and that of intervals are the command's."""
    monkeypatch.chdir(ROOT)
    shown = {row[0].partition(" (R0")[0]: row[1:] for row in rows("What they are", SCORES)}
    command = ["validate", "--offline", "--by", "predictor", "--format", "json"]
    by_run: list[dict[str, dict[str, float]]] = []
    for more in ([], ["--epsilon", "all"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, *more])
        assert not ended.value.code
        document = json.decode(capsys.readouterr().out)
        by_run.append({score["predictor"]: score for score in document})
    for name, row in (("principle, principle_resolved", "principle"), ("work_model",) * 2):
        few, many = (of[row] for of in by_run)
        near, met = (
            "" if share is None else f"{share:.2f}".lstrip("0")
            for share in (few["within_2"], many["interval_coverage"])
        )
        assert shown[name] == [str(few["hits"]), near, str(many["hits"]), met]


def test_the_guide_names_what_an_answer_holds() -> None:
    """The table has the keys of an entry of `nearfree predict --format json`."""
    table = GUIDE.partition("\n### The answer as data\n")[2].partition("\n### ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    (document,) = nearfree.predict(ROOT / "config/models/qwen3_8b.json", "h200", largest=4)
    assert {*named} == document.keys()
    assert document["schema"] in table
    for key in ("answer", "basis", "memory", "deployment"):
        (holds,) = re.findall(rf"^\| `{key}` \| (.*) \|$", table, re.MULTILINE)
        assert {*re.findall(r"`(\w+)`", holds)} <= document[key].keys()


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
    output = capsys.readouterr()
    printed = (output.out + output.err).splitlines()
    for line in lines.splitlines():
        if line.endswith("..."):
            assert any(
                printed_line.startswith(line.removesuffix("...")) for printed_line in printed
            ), line
        else:
            assert line in printed
