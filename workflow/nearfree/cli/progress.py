"""A progress bar with the time left, where someone is watching."""

import sys
import time
from types import TracebackType

_WIDTH = 30


class Bar:
    """Draws the share that is done on standard error, if that is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")

    def __call__(self, share: float) -> None:
        """Draw a share between 0 and 1."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{self.line(share)}")
            sys.stderr.flush()

    def line(self, share: float) -> str:
        """Return the bar, and the time left if all goes on as before."""
        left = (time.monotonic() - self._began) * (1 - share) / share if share else 0.0
        done = round(_WIDTH * share)
        bar = "#" * done + "-" * (_WIDTH - done)
        return f"{self._what} [{bar}] {share:4.0%}, {left:.0f} s left"
