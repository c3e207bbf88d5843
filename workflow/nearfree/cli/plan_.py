"""Print what is to be measured as JSON, for another environment or another machine.

With a study: its plan, for `nearfree measure --plan -`. Without: the probe and every study of the
platform, a line each, for `nearfree campaign`.
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearfree.config import Config
    from nearfree.orders import Order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of config/platforms.yaml")
    parser.add_argument(
        "study", nargs="?", help="a study of config/studies.yaml (default: all, and the probe)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan, or the orders."""
    from msgspec import json

    from nearfree.config import Config
    from nearfree.hardware.platforms import resolve
    from nearfree.orders import write_orders

    config = Config(args.config)
    scope = resolve(config.platforms, args.platform)
    if args.study:
        print(json.encode(config.measure_plan(scope, args.study)).decode())
    else:
        print(write_orders(_orders(config, scope)), end="")
    return 0


def _orders(config: "Config", scope: str) -> "Iterator[Order]":
    from nearfree.hardware.identity import STREAM
    from nearfree.orders import Order

    device = config.platform(scope).kind
    probe = config.probe_plan(scope)
    take = config.take(scope, STREAM)
    yield Order(scope=scope, stream=STREAM, take=take, device=device, plan=probe)
    for study in config.studied(scope):
        take, plan = config.take(scope, study), config.measure_plan(scope, study)
        yield Order(scope=scope, stream=study, take=take, device=device, plan=plan)
