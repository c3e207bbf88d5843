"""Kill a take at each of its system calls in turn: `crash.py FOLDER [INTERRUPTED]`.

FOLDER/1, FOLDER/2, ... become the logs that a kill at the first, second, ... call leaves, each
beside `N.acks`, the events that were durable by then; the last one is the log of a take that got
through. INTERRUPTED is a log to go on from.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from conftest import latencies, make_latency, make_plan, write_take
from nearfree.log.names import Layout
from nearfree.log.take import OpenTake

PLAN = make_plan(positions=(1, 2), rounds=3)
CALLS = ("mkdir", "open", "write", "fsync", "link", "replace", "unlink")


def arm(fatal: int) -> None:
    """Let the fatal-th call of this process kill it: a write half done, any other not begun."""
    seen = count(1)

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **options: Any) -> Any:
            if next(seen) == fatal:
                if call is write:
                    write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return armed

    write = os.write
    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def attempt(root: Path, fatal: int) -> None:
    """Make sure that the plan is sealed, noting each durable event, with the fatal call armed."""
    acks, write = os.open(root.with_suffix(".acks"), os.O_WRONLY | os.O_CREAT), os.write

    def work(take: OpenTake) -> None:
        for number in range(len(latencies(take)) // 2, 3):
            for n in (1, 2):
                take.append(make_latency(number, n))
                write(acks, f"{number} {n}\n".encode())

    arm(fatal)
    write_take(Layout(root), plan=PLAN, work=work)


def main(folder: Path, interrupted: Path | None) -> None:
    """Leave one log for each call that the take makes."""
    for fatal in count(1):
        root = folder / str(fatal)
        if interrupted:
            shutil.copytree(interrupted, root)
        else:
            root.mkdir(parents=True)
        child = os.fork()
        if not child:
            attempt(root, fatal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        if os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"{root} ended with status {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
