"""Print plans as JSON, for another environment or another machine.

With a study it prints the plan, for `nearfree measure --plan -`; without one the orders of the
platform's probe and all its studies, a line each, for `nearfree campaign`.
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.core.plan import Order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of config/platforms.yaml")
    parser.add_argument(
        "study", nargs="?", help="a study of config/studies.yaml (default: all, and the probe)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan, or the orders."""
    from msgspec import json

    from nearfree.config.files import Config
    from nearfree.config.plans import Plans
    from nearfree.core.plan import write_orders
    from nearfree.hardware.platforms import resolve

    config = Config(args.config)
    scope = resolve(config.platforms, args.platform)
    if args.study:
        print(json.encode(Plans(config, scope).measure(args.study)).decode())
    else:
        print(write_orders(_orders(config, scope)), end="")
    return 0


def _orders(config: "Config", scope: str) -> "Iterator[Order]":
    from nearfree.config.plans import Plans
    from nearfree.core.plan import Order
    from nearfree.hardware.platforms import driver_names

    platform = config.platform(scope)
    device, names = platform.kind, driver_names(scope, platform)
    for stream, plan in Plans(config, scope).all().items():
        take = config.take(scope, stream)
        yield Order(scope=scope, stream=stream, take=take, device=device, plan=plan, names=names)
