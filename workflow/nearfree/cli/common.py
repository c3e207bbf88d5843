"""What several commands share: number arguments, the config, the platform at hand."""

import argparse
from typing import TYPE_CHECKING

from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config import Config


def positive(text: str) -> int:
    """Return a whole number of at least 1; argparse turns the error into its own message."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def here(args: argparse.Namespace) -> "tuple[Config, str]":
    """Return the config and the platform that a command names; it must be this machine."""
    from nearfree.config import Config
    from nearfree.hardware.platforms import resolve

    config = Config(args.config)
    scope = resolve(config.platforms, args.platform)
    if scope not in config.site.here:
        raise ConfigError(
            f"{scope} is not this machine: config says here is {', '.join(config.site.here)}",
            remedy=f"Add {scope} to `here` in {args.config}/config.yaml if it is",
        )
    return config, scope
