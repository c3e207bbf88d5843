"""Run the command line, as `python -m nearfree` or as the installed script."""

import os
import signal
from contextlib import suppress
from typing import NoReturn

STOPPED = "nearfree: stopped; what was durable is kept"
STOPPED_CODE = 130
"""The exit code of what is stopped by hand, as shells have it: 128 and the signal's number."""


def _stop(*_: object) -> NoReturn:
    """End at once: where no command writes yet, an exception would meet imports half done."""
    with suppress(OSError):
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(STOPPED_CODE)


def main() -> None:
    """Run the command of the process's arguments; a stop by hand is one line from here on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from nearfree.cli import main as run

    run()


if __name__ == "__main__":
    main()
