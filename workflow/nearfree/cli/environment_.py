"""Make a backend's environment from its lock, or check that this interpreter is one.

`make` installs envs/NAME.lock and nearfree into .environments/NAME-DIGEST and prints the
interpreter there; it returns at once where that was done. `check` is about the interpreter that
runs it, whoever installed it: PYTHON -m nearfree environment check NAME.
"""

import argparse

from nearfree.cli.common import add_roots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("make", "make sure that an environment is there, and print its interpreter"),
        ("check", "compare what is installed here with what an environment's lock pins"),
    ):
        added = actions.add_parser(action, help=text, description=text.capitalize() + ".")
        add_roots(added, inner=True)
        added.add_argument("name", help="the name of a lock under envs/, such as vllm")


def run(args: argparse.Namespace) -> int:
    """Do one of the actions."""
    if args.action == "check":
        from nearfree.backends.environments.lock import lock_path, require

        require(args.name)
        print(f"this interpreter has what {lock_path(args.name)} pins")
        return 0
    from nearfree.backends.environments.environment import Environment
    from nearfree.backends.environments.make import make

    environment = Environment(args.name)
    make(environment, lambda text: print(text, flush=True))
    print(environment.python)
    return 0
