"""Make a backend's environment from its lock, or check that this interpreter is one.

`make` installs envs/NAME.lock and nearfree into .environments/NAME-DIGEST and prints its
interpreter; it returns at once if that exists. `check` checks the interpreter that runs it, however
it was installed: PYTHON -m nearfree environment check NAME.
"""

import argparse

from nearfree.cli.common import add_roots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("make", "install an environment if it is missing, and print its interpreter"),
        ("check", "compare the installed packages with an environment's lock"),
    ):
        added = actions.add_parser(action, help=text, description=text.capitalize() + ".")
        add_roots(added, inner=True)
        added.add_argument("name", help="the name of a lock under envs/, such as vllm")


def run(args: argparse.Namespace) -> int:
    """Run one of the actions."""
    if args.action == "check":
        from nearfree.backends.environments.lock import lock_path, require

        require(args.name)
        print(f"this interpreter has what {lock_path(args.name)} pins")
        return 0
    from nearfree.backends.environments.lock import Environment
    from nearfree.backends.environments.make import make

    environment = Environment(args.name)
    make(environment, lambda text: print(text, flush=True))
    print(environment.python)
    return 0
