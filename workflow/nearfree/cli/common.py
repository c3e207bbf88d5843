"""Shared parts of commands: declaration, common arguments and checks, folders, printing."""

import argparse
import math
import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nearfree.errors import ConfigError, HardwareError, printable_json
from nearfree.shipped import folder

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.hardware.platforms import Platform
    from nearfree.log.names import Layout
    from nearfree.log.seal import Seal
    from nearfree.sources.fetching.cache import Cache

LARGEST_N = 999_999
"""The largest N, in positions, that can be asked."""
MISTAKE = 2
"""The exit code of every mistake, fault or finding that the user can act on."""
AddArguments = Callable[[argparse.ArgumentParser], object]
Run = Callable[[argparse.Namespace], int]


class Command(NamedTuple):
    """A command: functions that add its arguments, and the function that runs it.

    The docstring of `run` is the command's help.
    """

    arguments: tuple[AddArguments, ...]
    run: Run
    answers: bool
    """Whether it reads the config and log of the package in a folder that has no project."""
    home: bool
    """Whether its results lie in the user's data folder, wherever it is called."""


COMMANDS: dict[str, Command] = {}
"""The commands by name, in the order in which they are declared."""


def command(
    name: str, *arguments: AddArguments, answers: bool = False, home: bool = False
) -> Callable[[Run], Run]:
    """Declare a function as the command of a name, with its arguments.

    Parameters
    ----------
    answers, home
        As in `Command`; a command at `home` falls back to the package's config, too.
    """

    def declare(run: Run) -> Run:
        COMMANDS[name] = Command(arguments, run, answers, home)
        return run

    return declare


def argument(*names: str, **options: Any) -> AddArguments:
    """Return a function that adds an argument to a parser; parameters as in `add_argument`."""
    return lambda parser: parser.add_argument(*names, **options)


def flag(name: str, text: str, **options: Any) -> AddArguments:
    """Return a function that adds an option without a value."""
    return argument(name, action="store_true", help=text, **options)


def output_format(*choices: str, default: str = "", note: str = "") -> AddArguments:
    """Return a function that adds `--format`; the first choice is the default, if none is given."""
    default = default or choices[0]
    text = f"output format{note} (default: {default})"
    return argument("--format", choices=choices, default=default, help=text)


def in_one_thread() -> None:
    """Let OpenBLAS use one thread unless the user sets another number; call before importing numpy.

    The linear systems are small: on a busy machine several threads took fifty times as long.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def home_results() -> Path:
    """Return the results root in $NEARFREE_HOME, else in the user's data folder."""
    nearfree_home = os.environ.get("NEARFREE_HOME")
    home = os.environ.get("HOME", ".")
    data_home = Path(os.environ.get("XDG_DATA_HOME") or f"{home}/.local/share")
    return (Path(nearfree_home) if nearfree_home else data_home / "nearfree") / "results"


def add_roots(
    parser: argparse.ArgumentParser,
    *,
    inner: bool = False,
    answers: bool = False,
    home: bool = False,
) -> None:
    """Add `--results` and `--config`, which every command takes.

    Parameters
    ----------
    inner
        Whether the parser is that of an action, which keeps the values of its command's parser.
    answers, home
        As in `Command`.
    """
    meanings = {"results": "results root", "config": "config folder"}
    if home:
        parser.add_argument(
            "--results",
            type=Path,
            default=home_results(),
            help=f"{meanings.pop('results')} (default: results in $NEARFREE_HOME, or in nearfree "
            "in the user's data folder)",
        )
    shipped = answers or home
    note = ", or the package's own in a folder with neither config nor results" if shipped else ""
    for name, meaning in meanings.items():
        parser.add_argument(
            f"--{name}",
            type=_existing if answers and name == "results" else Path,
            default=argparse.SUPPRESS if inner else folder(name) if shipped else Path(name),
            help=f"{meaning} (default: {name}{note})",
        )


def _existing(text: str) -> Path:
    """Return the path of an existing results root; ConfigError if the folder does not exist."""
    if not Path(text).is_dir():
        raise ConfigError(
            f"there is no folder {text:.200}",
            remedy="Leave --results out, or name an existing results root",
        )
    return Path(text)


def add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    """Return the parser of a command's action, with `--results` and `--config`."""
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_roots(parser, inner=True)
    return parser


def positive(text: str) -> int:
    """Return a whole number from 1 to 999999; argparse turns the error into its own message."""
    return _bounded_int(text, LARGEST_N)


def positions(text: str) -> int:
    """Return a number of cached positions, from 1 to 99999999: some models hold ten million."""
    return _bounded_int(text, 99_999_999)


def _bounded_int(text: str, largest: int) -> int:
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    number = int(text)
    if not 1 <= number <= largest:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {largest}")
    return number


def refuse_leading_zero(parts: Sequence[str]) -> None:
    """Refuse several numbers of which one begins with 0, as in 4,096; argparse prints the error."""
    text = ",".join(parts)
    joined = re.sub(r",(?=0\d\d(?:,|$))", "", text)
    plain = re.sub(r"\b0+(?=\d)", "", joined)
    if len(parts) > 1 and plain != text:
        raise argparse.ArgumentTypeError(
            f"{text!r:.200} lists several numbers, of which one begins with 0: write {plain:.200}"
        )


TAKE = argument(
    "--take", type=positive, help="the take's number (default: that of config/takes.yaml)"
)
PLAN_FILE = argument(
    "--plan",
    metavar="FILE",
    help="a plan printed by `nearfree plan`, - for standard input; config/ is not read, and only "
    "msgspec and torch are needed",
)
NEW_TAKE = argument("--take", type=positive, default=1, help="the take's number (default: 1)")
UNTESTED = flag(
    "--untested",
    "allow adapters on a GPU for which the log holds no sealed run of them",
    default=None,
)
OFFLINE = flag("--offline", "do not use the network")
TABLE_OR_JSON = output_format("table", "json")
TEXT_OR_JSON = output_format("text", "json")


def json_text(data: object) -> str:
    """Return data as indented JSON."""
    import msgspec

    return printable_json(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())


def print_seal(seal: "Seal") -> None:
    """Print a sealed take with its number of events and attempts."""
    events = sum(segment.events for segment in seal.segments)
    print(f"{seal.name}: sealed, {events} events in {len(seal.segments)} attempt(s)")


def layout_of(args: argparse.Namespace) -> "Layout":
    """Return the results root of `--results`."""
    from nearfree.log.names import Layout

    return Layout(args.results)


def log_of(args: argparse.Namespace) -> "Layout":
    """Return the results root of `--results`; LogError if it holds no log."""
    from nearfree.log.names import require_log

    return require_log(layout_of(args))


def config_of(args: argparse.Namespace) -> "Config":
    """Return the config of `--config`."""
    from nearfree.config.files import Config

    return Config(args.config)


def source_cache() -> "Cache":
    """Return the cache of fetched sources."""
    from nearfree.sources.fetching.cache import Cache, default_cache

    return Cache(default_cache())


def platform_of(config: "Config", device: str) -> "Platform | None":
    """Return the platform of a device, by the name that its driver reports; None if unknown."""
    from nearfree.hardware.platforms import as_alias, resolve

    platforms = config.platforms  # outside of `try`: a missing or broken config is an error
    try:
        return platforms[resolve(platforms, as_alias(device))]
    except ConfigError:
        return None


def local_scope(args: argparse.Namespace) -> "tuple[Config, str]":
    """Return the config and the scope of `platform`; ConfigError if it is not this machine."""
    from nearfree.hardware.platforms import resolve

    config = config_of(args)
    scope = resolve(config.platforms, args.platform)
    if scope not in config.site.here:
        raise ConfigError(
            f"{scope} is not this machine: `here` of the config is {', '.join(config.site.here)}",
            remedy=f"Add {scope} to `here` in {args.config}/config.yaml if it is this machine",
        )
    return config, scope


def need_torch() -> None:
    """Raise HardwareError if torch is not installed; only measuring needs it."""
    if find_spec("torch") is None:
        raise HardwareError(
            "torch is not installed in this environment",
            remedy="Install nearfree with its extra `measure`, or run `make install` in a clone",
        )


def tolerance(text: str) -> float:
    """Return a tolerance, between 0 and 1."""
    value = number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not between 0 and 1")
    return value


def temperature(text: str) -> float:
    """Return a sampling temperature, from 0 to HOTTEST."""
    from nearfree.core.sampling import HOTTEST

    value = number(text)
    if not 0 <= value <= HOTTEST:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not between 0 and {HOTTEST:g}")
    return value


def tolerance_or_all(text: str) -> float | None:
    """Return a tolerance, None for `all`."""
    return None if text == "all" else tolerance(text)


def size(text: str) -> float:
    """Return a size in MB, 0 or more."""
    value = number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a size: give a number of MB, 0 or more")
    return value


def tokens(text: str) -> float:
    """Return a number of tokens per forward, from 1 to LARGEST_N."""
    value = number(text)
    if not 1 <= value <= LARGEST_N:
        raise argparse.ArgumentTypeError(
            f"{text:.80} is not a number of tokens per forward, which is from 1 (a forward without "
            f"an accepted draft gives one, too) to {LARGEST_N}; `nearfree schedule --acceptance` "
            "takes a rate"
        )
    return value


def number(text: str) -> float:
    """Return a number; argparse prints the error."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
