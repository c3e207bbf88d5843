"""Write this machine's ledger: every seal, the config and the code, chained to the one before."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Write the next ledger if anything changed, and print its number."""
    from nearfree.log.document import read_document, replace
    from nearfree.log.ledger import Ledger, write_ledger
    from nearfree.log.names import Layout, require_log

    layout = require_log(Layout(args.results))
    path = write_ledger(layout, layout.ledgers / "local", args.config)
    replace(layout.state / "ledger.json", path.read_bytes())
    ledger = read_document(path, Ledger)
    print(f"ledger {ledger.number}: {len(ledger.seals)} seals, root {ledger.root[:16]}")
    return 0
