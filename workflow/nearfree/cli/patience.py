"""Waiting for another writer of the same take, instead of failing beside it."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from nearfree.errors import BusyError

Made = TypeVar("Made")
_PAUSE_S = 2.0


def patiently(wait_s: float, make: Callable[[], Made]) -> Made:
    """Return what `make` returns, trying again for `wait_s` while another process holds the take.

    A batch system may start a job anew before the old one, on a node that it lost sight of, is
    gone: that one still holds its locks, until it ends or seals the take.

    Raises
    ------
    BusyError
        The other process is still there.
    """
    until = time.monotonic() + wait_s
    told = False
    while True:
        try:
            return make()
        except BusyError as error:
            if time.monotonic() >= until:
                raise
            if not told:
                print(f"{error.what}; waiting up to {wait_s:.0f} s", file=sys.stderr, flush=True)
            told = True
        time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))
