"""Help: every command has its text, and shows it without doing anything."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nearfree.cli
import pytest
from nearfree import __version__
from nearfree.cli import MODULES, make_parser
from nearfree.cli.common import COMMANDS
from nearfree.cli.deployment_options import conditions
from nearfree.core.precision import FORMATS

from cli.conftest import Call


def parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of every command and action below one, with its name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name, below
                yield from parsers(below)


PARSERS = list(parsers(make_parser()))


@pytest.mark.parametrize(
    "argv",
    [[], *([name] for name in COMMANDS), *(["log", a] for a in ("show", "recover", "retract"))],
    ids=" ".join,
)
def test_help_is_printed_with_exit_code_0(call: Call, argv: list[str]) -> None:
    """Help is printed on standard output, with the usage, and exit code 0."""
    code, out, err = call(*argv, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(" ".join(["usage: nearfree", *argv]))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_documentation(call: Call, name: str) -> None:
    """Each command is described by its first sentence, in its own help and in the list."""
    sentence = (COMMANDS[name].run.__doc__ or "").split("\n")[0]
    assert len(sentence) > 20
    assert " ".join(sentence.split()) in " ".join(call(name, "--help")[1].split())
    assert " ".join(sentence.split()) in " ".join(call("--help")[1].split())


@pytest.mark.parametrize(("name", "parser"), PARSERS, ids=[name for name, _ in PARSERS])
def test_an_argument_has_documentation(name: str, parser: argparse.ArgumentParser) -> None:
    """Each argument of each command says what it is."""
    for action in parser._actions:
        assert action.help or isinstance(action, argparse._SubParsersAction)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_can_be_parsed(call: Call, name: str) -> None:
    """The last paragraph of a command's help is a call of it, which its parser accepts."""
    *_, epilog = call(name, "--help")[1].partition("\n\nExample: ")
    example = " ".join(epilog.partition("\n\n")[0].split())
    program, *arguments = shlex.split(example.partition(" > ")[0])
    assert (program, arguments[0]) == ("nearfree", name)
    assert make_parser(arguments).parse_args(arguments).command == name


NOT_ALWAYS = {"loads", "gpus"}
"""Conditions that stand for another option, so that they have no default of their own."""


@pytest.mark.parametrize("command", ["predict", "lookup", "surface", "schedule"])
def test_each_condition_of_a_deployment_says_its_default(command: str) -> None:
    """Whoever leaves an option out reads what is asked in its place."""
    said = {a.dest: a.help or "" for a in dict(PARSERS)[command]._actions if a.option_strings}
    own = said.keys() & {*conditions()} - NOT_ALWAYS
    assert len(own) >= len(conditions()) - len(NOT_ALWAYS) - (command == "schedule")
    assert {name for name in own if "(default: " not in said[name]} == set()


@pytest.mark.parametrize("command", ["predict", "lookup", "surface", "schedule"])
def test_formats_are_listed_once(call: Call, command: str) -> None:
    """Four options take one list of formats, which stands with the first of them."""
    words = call(command, "--help")[1].replace(",", " ").split()
    assert [words.count(name) for name in FORMATS] == [1] * len(FORMATS)


def test_a_description_keeps_its_paragraphs(call: Call) -> None:
    """A blank line of a docstring is a blank line of the help."""
    help_text = call("predict", "--help")[1]
    paragraphs = [" ".join(paragraph.split()) for paragraph in help_text.split("\n\n")]
    text = COMMANDS["predict"].run.__doc__ or ""
    assert [" ".join(paragraph.split()) for paragraph in text.split("\n\n")] == paragraphs[1:5]


def test_the_list_of_commands_is_complete() -> None:
    """Every module that declares a command is in the list."""
    files = Path(nearfree.cli.__file__).parent.glob("[a-z]*.py")
    declaring = {path.stem for path in files if "\n@command(" in path.read_text()}
    assert declaring == set(MODULES)


def test_the_version(call: Call) -> None:
    """The version is the package's."""
    assert call("--version")[:2] == (0, f"nearfree {__version__}\n")


def test_the_module_runs_as_a_program() -> None:
    """`python -m nearfree` is the same command line."""
    process = subprocess.run(
        [sys.executable, "-m", "nearfree", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])},
    )
    assert process.stdout == f"nearfree {__version__}\n"
