"""A small wheel and sdist, and how the tests read them from a server."""

import re
from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching.index import close, releases
from nearfree.sources.fetching.sdist import read_sdist
from nearfree.sources.fetching.wheel import read_wheel

from sources.fetching.indexserver import (
    Entry,
    Odd,
    Server,
    make_sdist,
)

WHEEL = "demo-1.0-py3-none-any.whl"
SDIST = "demo-1.0.tar.gz"
RULE = Entry("demo/rule.py", b"RULE = 64\n")
OTHER = Entry("demo/other.bin", bytes(range(256)) * 4000)


def read(server: Server, filename: str, raw: bytes, wanted: str = r"demo/.*\.py") -> dict:
    """Serve one artefact and return its wanted members."""
    server.pages.clear()
    close()
    server.put(filename, raw)
    (artefact,) = releases("demo")["1.0"]
    reader = read_wheel if artefact.kind == "wheel" else read_sdist
    return reader(artefact, re.compile(wanted))


def refused(server: Server, filename: str, raw: bytes, reason: str, wanted: str = "demo/.*") -> str:
    """Check that an artefact is refused by name and reason; return the message."""
    with pytest.raises(SourceError, match=reason) as caught:
        read(server, filename, raw, wanted)
    assert caught.value.what.startswith(f"demo 1.0: {filename} is ")
    assert list(Path.cwd().iterdir()) == [], "nothing is written"
    return str(caught.value)


def sdist(*members: tuple[str, bytes | Odd]) -> bytes:
    """Return an sdist with a rule and further members."""
    return make_sdist(("demo-1.0/demo/rule.py", RULE.raw), *members)
