"""The command line: one module per noun; each command imports only what it needs."""

import argparse
import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise
from typing import Any, NoReturn

from nearfree import __version__
from nearfree.cli.common import COMMANDS, MISTAKE, add_roots
from nearfree.errors import ConfigError, NearfreeError, RefusedError, printable
from nearfree.stopping import STOPPED, STOPPED_CODE, stop_by_exception

MODULES = (
    *("forecast", "schedule_options", "lookup", "rules", "granularity_options"),
    *("tune", "measure", "machine", "fetch", "study"),
    *("audit", "results", "log", "validate", "imports", "calibrate"),
)
"""The modules that declare commands, in the order of the help: to ask, to measure, to check."""
GC_THRESHOLD = 500_000
"""Allocations between garbage collections in a process that prints one answer and exits: nearly all
of its objects live until the end."""
LONGEST_LINE = 4000
"""Characters of a line of an error's message that are printed."""
for _module in MODULES:
    import_module(f"nearfree.cli.{_module}")


ENGINE_OPTION_NAMES = {
    "--enable-expert-parallel": "--ep",
    "--max-model-len": "--context",
    "--max-num-seqs": "--batch",
    "--quantization": "--weights",
}
"""Options of vLLM and SGLang other than sizes of parallelism, with the option here that means the
same but is spelled too differently for a suggestion by similarity."""


class _Paragraphs(argparse.HelpFormatter):
    """A help formatter that keeps the paragraphs of a description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(part, width, indent) for part in text.split("\n\n"))


class _Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError for a wrong call, so that `main` prints one message.

    An OSError while help is written is raised, too, instead of being ignored.
    """

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, remedy=f"`{self.prog} --help` shows the usage")

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file, flush=True)


def make_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or the part of it that a command line needs.

    Parameters
    ----------
    words
        The command line. If it begins with a command, only that command is added. Otherwise all
        commands are added, and only those among the words get their arguments. None adds all.
    """
    named = words[0] if words and words[0] in COMMANDS else None
    parser = _Parser(
        prog="nearfree",
        description="How many decode positions are near-free: measured, predicted, and traced. "
        "Begin with predict (a model on a GPU), schedule (draft lengths for an engine), tune (an "
        "engine on this machine), measure (this machine) or audit (where a number comes from); "
        "`nearfree COMMAND --help` has an example.",
    )
    parser.add_argument("--version", action="version", version=f"nearfree {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if named not in (None, name):
            continue
        text = command.run.__doc__ or ""
        subparser = commands.add_parser(
            name, help=text.split("\n")[0], description=text, formatter_class=_Paragraphs
        )
        if words is not None and name not in words:
            continue
        add_roots(subparser, answers=command.answers, home=command.home)
        for add_arguments in command.arguments:
            add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def refuse_empty(words: Sequence[str]) -> None:
    """Raise ConfigError for an empty argument, which would pass for one that is left out.

    So would `--option=--`, whose value argparse drops.
    """
    for number, (before, word) in enumerate(pairwise(("", *words)), start=1):
        option, is_given, value = word.partition("=")
        if word and not (option.startswith("--") and is_given and value in ("", "--")):
            continue
        named = option or (before if before.startswith("--") else f"argument {number}")
        raise ConfigError(f"{named} is empty", remedy="Give it a value, or leave it out")


@cache
def _options_of(command: str) -> list[str]:
    """Return the options of a command, without those of its actions."""
    options = argparse.ArgumentParser()
    for add_arguments in COMMANDS[command].arguments:
        add_arguments(options)
    return re.findall(r"--[a-z][a-z-]*", options.format_usage())


def _parse_args(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    An unknown option raises ConfigError with the other commands that have it, or else with the most
    similar option.
    """
    refuse_empty(words)
    parser = make_parser(words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        known = _options_of(args.command)
        suggestions: list[str] = []
        elsewhere: list[str] = []
        for word in dict.fromkeys(argument.partition("=")[0] for argument in unknown):
            own_option = _own_option(word)
            owners = [name for name in COMMANDS if word in _options_of(name)]
            if own_option in known:
                suggestions.append(own_option)
            elif owners:
                elsewhere.append(f". {word} is an option of {', '.join(owners)}")
            else:
                suggestions += get_close_matches(word, known, n=1)
        suggestion = (
            f". Perhaps you mean {', '.join(dict.fromkeys(suggestions))}" if suggestions else ""
        )
        raise ConfigError(
            f"unrecognized arguments: {' '.join(unknown)}{''.join(elsewhere)}{suggestion}",
            remedy=f"`nearfree {args.command} --help` lists its options",
        )
    return args


def _own_option(word: str) -> str:
    """Return the option here that means what a differently spelled one of an engine does, or ""."""
    from nearfree.core.parallel import KINDS

    degrees = {
        f"--{spelled}": f"--{name}"
        for name, kind in KINDS.items()
        for spelled in (f"{kind}-parallel-size", f"{name}-size")
    }
    return (ENGINE_OPTION_NAMES | degrees).get(word, "")


def _run(args: argparse.Namespace) -> int:
    """Run a command; where a package is not installed, raise an error that names its extra."""
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:
        from nearfree.cli.extras import missing

        raise missing(error) from error


def _open_streams() -> None:
    """Replace closed standard streams by the null device."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _print_error(text: str) -> None:
    """Print a message on standard error, or drop it if that cannot be written.

    Of a line that is too long, as by a value that it quotes, the middle is left out: what happened
    stands at its begin, and the remedy at its end.
    """
    with suppress(OSError):
        print("\n".join(map(_without_middle, text.split("\n"))), file=sys.stderr, flush=True)


def _without_middle(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def _drop_unwritable() -> None:
    """Flush the standard streams; redirect one that cannot be written to the null device."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; an error prints one message and exits with code 2.

    A command that answers a query writes nothing to disk, so its process exits without tearing down
    the interpreter, which would take a fifth of its time. A keyboard interrupt ends it at once; any
    other command ends after it has reported what is durable. If the reader of a pipe leaves,
    nothing is printed, and the exit code is that of a process killed by SIGPIPE.
    """
    answers = False
    _open_streams()
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal may lack a letter of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if argv is None else argv
        args = _parse_args(words)
        answers = COMMANDS[args.command].answers
        if answers:
            gc.set_threshold(GC_THRESHOLD)
        else:
            stop_by_exception()
        code = _run(args)
        sys.stdout.flush()
    except NearfreeError as error:
        # RefusedError has a line per reason, and has made each printable itself.
        text = str(error) if isinstance(error, RefusedError) else printable(str(error))
        _print_error(f"nearfree: error: {text}")
        code = MISTAKE
    except KeyboardInterrupt:
        _print_error(STOPPED)
        code = STOPPED_CODE
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except MemoryError:
        _print_error(
            "nearfree: error: the memory that this process may take is not enough for the answer. "
            "Ask about less at once, such as fewer deployments or a smaller largest N, or free "
            "memory"
        )
        code = MISTAKE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        problem = error.strerror or str(error) or type(error).__name__
        text = f"{where}{problem}. Check the path, your rights and the space left"
        _print_error(f"nearfree: error: {printable(text)}")
        code = MISTAKE
    _drop_unwritable()
    if answers and argv is None:
        os._exit(code)
    raise SystemExit(code)
