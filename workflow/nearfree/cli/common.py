"""Arguments and checks that several commands share: numbers, folders, the local platform, torch."""

import argparse
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nearfree.errors import ConfigError, HardwareError

if TYPE_CHECKING:
    from nearfree.config.files import Config


def add_roots(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """Add the two folders that every command takes; `inner` keeps values of the outer parser."""
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
    """Return a text as one line without control characters; unprintable ones are escaped."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def here(args: argparse.Namespace) -> "tuple[Config, str]":
    """Return the config and the scope of `--platform`; ConfigError if it is not this machine."""
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


def need_torch() -> None:
    """Raise HardwareError where torch, which only measuring needs, is not installed."""
    if find_spec("torch") is None:
        raise HardwareError(
            "torch is not installed in this environment",
            remedy="Run `make install`, or install envs/cpu.lock",
        )


def epsilon(text: str) -> float | None:
    """Return a tolerance, None for `all`."""
    if text == "all":
        return None
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1, nor `all`")
    return value


def size(text: str) -> float:
    """Return a size in MB, not negative."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no size: give a number of MB, 0 or more")
    return value


def tokens(text: str) -> float:
    """Return a number of tokens a forward, above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of tokens above 0")
    return value


def count(text: str) -> int:
    """Return a number of positions N, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no N: give a whole number, 1 or more")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
