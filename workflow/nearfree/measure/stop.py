"""Being told to stop: a batch system sends SIGTERM before it takes a job away."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nearfree.errors import StoppedError
from nearfree.measure.visits import Progress


@contextmanager
def stoppable(progress: Progress) -> Iterator[Progress]:
    """Give a progress that ends the take after a durable round, once SIGTERM has come.

    Raises
    ------
    StoppedError
        From the progress, when it is told of the next round; nothing durable is lost then.
    """
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the program at once

    def told(share: float) -> None:
        progress(share)
        if came and share < 1:
            raise StoppedError(
                "the job was told to stop (SIGTERM): preempted, cancelled or out of time",
                remedy="Whole rounds are kept: run the same command again, and it goes on",
            )

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)
