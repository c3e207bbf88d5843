"""Limits on downloads: the size of a file, and the total time."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from threading import Thread

from nearfree.decoders.keys import SIZE_LIMIT
from nearfree.errors import ConfigError


def within(seconds: float, work: Callable[[], str]) -> str:
    """Return the result of `work`; TimeoutError after `seconds`, however slowly a server sends."""
    done = Future[str]()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 (`result` raises it)
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return done.result(timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds:g} seconds") from error


def bounded(name: str) -> type:
    """Return a progress-bar class that aborts the download of a file above SIZE_LIMIT."""

    class Bounded(AbstractContextManager[object]):
        def __init__(self, *, total: int | None = None, **_: object) -> None:
            self._size = 0
            self._check(total or 0)

        def update(self, size: int = 0) -> None:
            self._size += size
            self._check(self._size)

        def _check(self, size: int) -> None:
            if size > SIZE_LIMIT:
                raise ConfigError(
                    f"{name} has {size} bytes or more, and the limit is {SIZE_LIMIT}",
                    remedy="Name another repository: published files have three million at most",
                )

        def __exit__(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

    return Bounded
