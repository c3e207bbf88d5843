"""A progress bar with the time left, and retries while another process writes a take."""

import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from nearfree.errors import BusyError

Made = TypeVar("Made")
_PAUSE_S = 2.0
_WIDTH = 30


def retry_while_busy(wait_s: float, make: Callable[[], Made]) -> Made:
    """Return `make()`, retrying for `wait_s` seconds while another process holds the take.

    A batch system may restart a job while the old one still runs on a node that it lost contact
    with: the old job holds its locks until it ends or seals the take.

    Raises
    ------
    BusyError
        The other process still holds the take.
    """
    until = time.monotonic() + wait_s
    announced = False
    while True:
        try:
            return make()
        except BusyError as error:
            if time.monotonic() >= until:
                raise
            if not announced:
                print(f"{error.what}; waiting up to {wait_s:.0f} s", file=sys.stderr, flush=True)
            announced = True
        time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))


class ProgressBar:
    """A progress bar on standard error, drawn only on a terminal that can erase lines."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")

    def __call__(self, share: float) -> None:
        """Draw a share between 0 and 1."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{self.line(share)}")
            sys.stderr.flush()

    def line(self, share: float) -> str:
        """Return the bar, and the time left at the average speed so far."""
        left = (time.monotonic() - self._began) * (1 - share) / share if share else 0.0
        done = round(_WIDTH * share)
        bar = "#" * done + "-" * (_WIDTH - done)
        return f"{self._what} [{bar}] {share:4.0%}, {left:.0f} s left"
