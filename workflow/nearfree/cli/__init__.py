"""The command line: a module a noun, whose commands import only what they need."""

import argparse
import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

from nearfree import __version__
from nearfree.cli.common import COMMANDS, MISTAKE, add_roots
from nearfree.errors import ConfigError, NearfreeError, RefusedError, printable
from nearfree.stopping import STOPPED, STOPPED_CODE, stop_by_exception

ROOMS = (
    *(
        "machine",
        "fetch",
        "study",
        "measure",
        "tune",
        "imports",
        "rules",
        "granularity",
        "forecast",
        "lookup",
        "schedule",
    ),
    *("calibrate", "validate", "results", "audit", "log"),
)
"""The modules that declare commands, in the order of the help."""
_SELDOM = 500_000
"""New objects after which cycles are looked for, where a process answers and ends: nearly all that
it makes lives to the end."""
for _room in ROOMS:
    import_module(f"nearfree.cli.{_room}")


_ENGINES_WORDS = {
    "--tensor-parallel-size": "--tp",
    "--tp-size": "--tp",
    "--data-parallel-size": "--dp",
    "--dp-size": "--dp",
    "--enable-expert-parallel": "--ep",
    "--ep-size": "--ep",
    "--pipeline-parallel-size": "--pp",
    "--pp-size": "--pp",
    "--max-model-len": "--context",
    "--max-num-seqs": "--batch",
    "--quantization": "--weights",
}
"""What vLLM and SGLang call what an option here says, where the words are too far apart to tell."""


class _Paragraphs(argparse.HelpFormatter):
    """Help whose description keeps its paragraphs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(part, width, indent) for part in text.split("\n\n"))


class _Parser(argparse.ArgumentParser):
    """A parser to which a wrong call is a mistake like any other: one message, no usage.

    Help that cannot be written is a fault of the system like any other, too.
    """

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, remedy=f"`{self.prog} --help` says how it is called")

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file, flush=True)


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or what words on the command line need of it.

    That is the command that they begin with; or else all of them, with the arguments of those that
    are among the words.
    """
    first = words[0] if words and words[0] in COMMANDS else None
    parser = _Parser(
        prog="nearfree",
        description="How many decode positions are near-free: measured, predicted, and traced.",
    )
    parser.add_argument("--version", action="version", version=f"nearfree {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if first not in (None, name):
            continue
        text = command.run.__doc__ or ""
        added = commands.add_parser(
            name, help=text.split("\n")[0], description=text, formatter_class=_Paragraphs
        )
        if words is not None and name not in words:
            continue
        add_roots(added, answers=command.answers, home=command.home)
        for add in command.arguments:
            add(added)
        added.set_defaults(run=command.run)
    return parser


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the words of the command line; what no option is ends with those that may be meant."""
    parser = make_parser(words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        options = argparse.ArgumentParser()
        for add in COMMANDS[args.command].arguments:
            add(options)
        known = re.findall(r"--[a-z][a-z-]*", options.format_usage())
        near: list[str] = []
        for word in (text.partition("=")[0] for text in unknown):
            named = _ENGINES_WORDS.get(word, "")
            near += [named] if named in known else get_close_matches(word, known, n=1)
        meant = f". Perhaps you mean {', '.join(dict.fromkeys(near))}" if near else ""
        raise ConfigError(
            f"unrecognized arguments: {' '.join(unknown)}{meant}",
            remedy=f"`nearfree {args.command} --help` lists what it takes",
        )
    return args


def _run(args: argparse.Namespace) -> int:
    """Run a command; one whose package is not installed says which extra brings it."""
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:
        from nearfree.cli.extras import missing

        raise missing(error) from error


def _open_streams() -> None:
    """Let a standard stream that is closed be an empty one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _tell(text: str) -> None:
    """Print a line on standard error, if that can be written."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _leave_streams() -> None:
    """Let what a stream cannot write, of which the exit code has told, go nowhere."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; a mistake ends in one message and exit code 2.

    A process that was started for an answer ends at once, as nothing is left to write: to take the
    interpreter down object by object would be a fifth of its time. A stop by hand ends it at once,
    too, and any other command where it has told what is durable. A reader that leaves is told
    nothing, and the code is that of programs which its signal ends.
    """
    answers = False
    _open_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal may lack a letter of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if argv is None else argv
        args = _parsed(words)
        answers = COMMANDS[args.command].answers
        if answers:
            gc.set_threshold(_SELDOM)
        else:
            stop_by_exception()
        code = _run(args)
        sys.stdout.flush()
    except NearfreeError as error:
        # One with several reasons has a line for each, of which it has made printable ones.
        text = str(error) if isinstance(error, RefusedError) else printable(str(error))
        _tell(f"nearfree: error: {text}")
        code = MISTAKE
    except KeyboardInterrupt:
        _tell(STOPPED)
        code = STOPPED_CODE
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        what = error.strerror or str(error) or type(error).__name__
        text = f"{where}{what}. Check the path, your rights and the space left"
        _tell(f"nearfree: error: {printable(text)}")
        code = MISTAKE
    _leave_streams()
    if answers and argv is None:
        os._exit(code)
    raise SystemExit(code)
