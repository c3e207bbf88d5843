"""Adopt recordings: add a scope's sealed takes to git, with a line in the tracked ledger."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("scope", help="a platform, or public")
    parser.add_argument("stream", nargs="?", help="one stream of it (default: all)")


def run(args: argparse.Namespace) -> int:
    """Adopt, and say what to commit."""
    from nearfree.log.adopt import adopt
    from nearfree.log.names import Layout

    new = adopt(Layout(args.results), args.config, args.scope, args.stream)
    for take in new:
        print(f"{take}: added to git's index")
    print(f"{len(new)} new take(s); commit to keep them" if new else "nothing new to adopt")
    return 0
