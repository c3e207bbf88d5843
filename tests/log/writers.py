"""Many processes on one folder: `writers.py ROOT CONFIG WRITERS TAKES`.

Each writer seals takes of its own and tries one that all of them want; meanwhile two processes make
ledgers, again and again, and check every take that a new one lists.
"""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from conftest import make_latency, make_plan, make_started
from nearfree.errors import BusyError
from nearfree.log.document import read_document
from nearfree.log.ledger import Ledger, write_ledger
from nearfree.log.names import Layout, parse_take
from nearfree.log.seal import check_sealed, read_seal
from nearfree.log.take import OpenTake, ensure_take, take_name
from nearfree.measure.rounds import whole_rounds

LEDGERS = 2
SHARED = 1
"""The take that every writer tries."""
PLAN = make_plan(positions=(1, 2), rounds=3)


def seal(layout: Layout, stream: str, take: int) -> None:
    """Make sure that one take is sealed."""

    def work(open_take: OpenTake) -> float:
        for number in range(3):
            open_take.append(make_latency(number, 1), sync=False)
            open_take.append(make_latency(number, 2))
        return 0.5

    name = take_name("cpu", stream, take, PLAN)
    ensure_take(
        layout, name, PLAN, lambda attempt: make_started(PLAN, attempt), work, keep=whole_rounds
    )


def write(layout: Layout, writer: int, takes: int) -> None:
    """Seal takes of a stream that several writers share."""
    with suppress(BusyError):
        seal(layout, "shared", SHARED)
    for number in range(takes):
        seal(layout, f"study_{writer % 8}", 1 + writer * takes + number)


def keep(layout: Layout, config: Path, done: Path) -> None:
    """Make ledgers until all writers are done, and check what each adds to the one before."""
    known: set[str] = set()
    while not done.exists():
        ledger = read_document(write_ledger(layout, layout.ledgers / "local", config), Ledger)
        for name in ledger.seals.keys() - known:
            check_sealed(layout, read_seal(layout, parse_take(name)))
        known |= ledger.seals.keys()


def start(work: Callable[..., None], *args: object) -> int:
    """Run a function in a new process; return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(*args)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def wait(children: list[int]) -> int:
    """Return how many of some processes failed."""
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    layout, config = Layout(Path(sys.argv[1])), Path(sys.argv[2])
    writers, takes = map(int, sys.argv[3:])
    done = config / "done"
    keepers = [start(keep, layout, config, done) for _ in range(LEDGERS)]
    failed = wait([start(write, layout, writer, takes) for writer in range(writers)])
    done.touch()
    sys.exit(failed + wait(keepers))
