"""Make every take of an order file, one after the other, on a machine without the workflow.

`nearfree plan PLATFORM` prints the file elsewhere; this machine needs only msgspec, torch and, with
a GPU, nvidia-ml-py. Sealed takes are skipped, a failure is reported and the next take follows, and
no take begins after the deadline. Copy the results root back and run `nearfree adopt PLATFORM`
there.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearfree.core.plan import Order
    from nearfree.log.names import Layout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    from nearfree.cli.common import positive

    parser.add_argument("orders", help="the order file, - for standard input")
    parser.add_argument(
        "--deadline", type=positive, metavar="S", help="begin no take after S seconds"
    )
    parser.add_argument(
        "--untested",
        action="store_true",
        help="allow adapters on a GPU on which the log holds no sealed run of theirs",
    )


def run(args: argparse.Namespace) -> int:
    """Make the takes, and return 2 if one of them failed."""
    from nearfree.cli.common import need_torch
    from nearfree.core.plan import read_orders
    from nearfree.errors import NearfreeError
    from nearfree.log.names import Layout

    began = time.monotonic()
    raw = sys.stdin.buffer.read() if args.orders == "-" else Path(args.orders).read_bytes()
    orders = read_orders(raw.decode(errors="replace"), args.orders)
    need_torch()
    failed = 0
    for number, order in enumerate(orders):
        if args.deadline and time.monotonic() - began > args.deadline:
            left = ", ".join(order.stream for order in orders[number:])
            print(f"the deadline of {args.deadline} s is over; left: {left}", flush=True)
            break
        try:
            print(_make(Layout(args.results), order, untested=args.untested), flush=True)
        except NearfreeError as error:
            failed = 2
            print(f"nearfree: error: {order.scope}/{order.stream}: {error}", file=sys.stderr)
        except Exception:  # noqa: BLE001 (a backend that never ran here may raise anything)
            failed = 2
            print(f"nearfree: error: {order.scope}/{order.stream}:", file=sys.stderr)
            traceback.print_exc()
    return failed


def _make(layout: "Layout", order: "Order", *, untested: bool) -> str:
    from nearfree.cli.waiting import Bar
    from nearfree.core.plan import ForetellPlan, ProbePlan
    from nearfree.hardware.probe import probe
    from nearfree.measure.run import measure

    if isinstance(order.plan, ProbePlan):
        seal = probe(layout, order.scope, order.device, order.take, order.plan, names=order.names)
    elif isinstance(order.plan, ForetellPlan):
        from nearfree.preregister.record import foretell

        seal = foretell(layout, order.scope, order.stream, order.take, order.plan)
    else:
        with Bar(f"{order.scope}/{order.stream}") as bar:
            seal = measure(
                layout,
                order.scope,
                order.stream,
                order.take,
                order.plan,
                untested=untested,
                progress=bar,
            )
    return f"{seal.name}: sealed, {sum(part.events for part in seal.segments)} events"
