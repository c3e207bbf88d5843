"""Handling of Ctrl-C (SIGINT): exit at once while a command only reads, else KeyboardInterrupt."""

import os
import signal
from contextlib import suppress
from typing import NoReturn

STOPPED = "nearfree: stopped; what was durable is kept"
STOPPED_CODE = 130
"""The exit code after SIGINT, as in shells: 128 plus the signal's number."""


def _stop(*_: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(STOPPED_CODE)


def stop_at_once() -> None:
    """Let SIGINT end the process with one line; an exception could break a running import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def stop_by_exception() -> None:
    """Let SIGINT raise KeyboardInterrupt again, if `stop_at_once` had replaced its handler."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
