"""Read and correct the event log: show, recover, retract."""

import argparse

from nearfree.cli.common import add_roots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="list the takes, a take's events, or print one event")
    show.add_argument(
        "what", nargs="?", help="a scope, a take (scope/stream/take-plan8) or an event (...#17)"
    )
    recover = actions.add_parser(
        "recover", help="list interrupted takes, or seal what one of them holds"
    )
    recover.add_argument("take", nargs="?", help="the take to seal with its whole rounds")
    retract = actions.add_parser("retract", help="declare an event or a take invalid, for good")
    retract.add_argument("id", help="an event (scope/stream/take-plan8.attempt#17) or a take")
    retract.add_argument("--reason", required=True, help="why; it stays on record")
    for action in (show, recover, retract):
        add_roots(action, inner=True)


def run(args: argparse.Namespace) -> int:
    """Run one of the actions."""
    from nearfree.log.names import Layout

    layout = Layout(args.results)
    if args.action == "show":
        from nearfree.log.show import show

        lines = show(layout, args.what)
    elif args.action == "recover":
        from nearfree.measure.rounds import interrupted, recover

        lines = recover(layout, args.take) if args.take else interrupted(layout)
    else:
        from nearfree.log.retract import retract

        lines = iter([f"{retract(layout, args.id, args.reason).name}: retracts {args.id}"])
    for line in lines:
        print(line)
    return 0
