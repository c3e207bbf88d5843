"""What several commands share: number arguments, the config, the platform at hand."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config.files import Config


def add_roots(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """Add the two folders that every command takes; `inner` keeps what was given further left."""
    for name, what in (("results", "results root"), ("config", "config folder")):
        parser.add_argument(
            f"--{name}",
            type=Path,
            default=argparse.SUPPRESS if inner else Path(name),
            help=f"{what} (default: {name})",
        )


def positive(text: str) -> int:
    """Return a whole number from 1 to 999999; argparse turns the error into its own message."""
    number = int(text)
    if not 1 <= number < 1_000_000:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 999999")
    return number


def printable(text: str) -> str:
    """Return a text as one line that no terminal acts on; what cannot be shown is escaped."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


def here(args: argparse.Namespace) -> "tuple[Config, str]":
    """Return the config and the platform that a command names; it must be this machine."""
    from nearfree.config.files import Config
    from nearfree.hardware.platforms import resolve

    config = Config(args.config)
    scope = resolve(config.platforms, args.platform)
    if scope not in config.site.here:
        raise ConfigError(
            f"{scope} is not this machine: config says here is {', '.join(config.site.here)}",
            remedy=f"Add {scope} to `here` in {args.config}/config.yaml if it is",
        )
    return config, scope
