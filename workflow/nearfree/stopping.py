"""A stop by hand: at once while a command only reads, by an exception while it may write."""

import os
import signal
from contextlib import suppress
from typing import NoReturn

STOPPED = "nearfree: stopped; what was durable is kept"
STOPPED_CODE = 130
"""The exit code of what is stopped by hand, as shells have it: 128 and the signal's number."""


def _stop(*_: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(STOPPED_CODE)


def stop_at_once() -> None:
    """Let a stop by hand end the process with one line: an exception may meet a half import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def stop_by_exception() -> None:
    """Let a stop by hand be a KeyboardInterrupt again, where `stop_at_once` had it end at once."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
