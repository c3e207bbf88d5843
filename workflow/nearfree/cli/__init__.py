"""The command line: one file a command, each importing only what its command needs."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from nearfree import __version__
from nearfree.cli.common import add_roots, printable
from nearfree.errors import NearfreeError

COMMANDS = (
    "probe",
    "plan",
    "measure",
    "foretell",
    "profile",
    "campaign",
    "retake",
    "cluster",
    "environment",
    "import",
    "rules",
    "granularity",
    "predict",
    "lookup",
    "surface",
    "schedule",
    "calibrate",
    "validate",
    "tables",
    "figures",
    "report",
    "audit",
    "diff",
    "ledger",
    "verify",
    "log",
    "adopt",
    "crate",
)
MISTAKE = 2
"""The exit code of every mistake, fault or finding that the user can act on."""


def _module(command: str) -> ModuleType:
    return import_module(f"nearfree.cli.{command}_")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="nearfree",
        description="How many decode positions are near-free: measured, predicted, and traced.",
    )
    parser.add_argument("--version", action="version", version=f"nearfree {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = _module(name)
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=text.split("\n")[0], description=text)
        add_roots(command)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; a mistake ends in one message and exit code 2."""
    args = make_parser().parse_args(argv)
    try:
        code = args.run(args)
        sys.stdout.flush()
    except NearfreeError as error:
        print(f"nearfree: error: {printable(str(error))}", file=sys.stderr)
        code = MISTAKE
    except KeyboardInterrupt:
        print("nearfree: stopped; what was durable is kept", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror}. Check the path, your rights and the space left"
        print(f"nearfree: error: {printable(text)}", file=sys.stderr)
        code = MISTAKE
    raise SystemExit(code)
