"""Real faults for the tests: flipped bits, edited lines, killed processes, full disks."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nearfree
from nearfree.log.line import close_line
from nearfree.log.names import Layout
from nearfree.log.verify import Finding, verify

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(HERE.parent), str(Path(nearfree.__file__).parents[1])])


def flip(raw: bytes, bit: int) -> bytes:
    """Return bytes with one bit flipped, counted from the first byte's lowest."""
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def unnoticed(root: Path, path: Path, bits: Iterable[int]) -> list[int]:
    """Return the bits of a file whose flip `verify` does not report as damage."""
    raw = path.read_bytes()
    missed = []
    with path.open("r+b", buffering=0) as file:
        for bit in bits:
            os.pwrite(file.fileno(), bytes([raw[bit // 8] ^ 1 << bit % 8]), bit // 8)
            if not verify(root).damaged:
                missed.append(bit)
            os.pwrite(file.fileno(), raw[bit // 8 : bit // 8 + 1], bit // 8)
    return missed


def edit_line(path: Path, number: int, edit: Callable[[bytes], bytes]) -> None:
    """Change the number-th line (from 1) and give it a right hash again, as a forger would."""
    lines = path.read_bytes().split(b"\n")
    body = lines[number - 1]
    cut = body.rindex(b',"hash":"')
    lines[number - 1] = close_line(edit(body[:cut] + b"}"))
    path.write_bytes(b"\n".join(lines))


def damage(root: Path) -> list[Finding]:
    """Return what `verify` finds that is more than a notice."""
    return [finding for finding in verify(root).findings if not finding.notice]


def notices(root: Path) -> list[Finding]:
    """Return what `verify` finds worth knowing."""
    return [finding for finding in verify(root).findings if finding.notice]


def findings_of(layout: Layout, path: Path) -> list[Finding]:
    """Return what `verify` finds about one file that is more than a notice."""
    shown = path.relative_to(layout.root).as_posix()
    return [finding for finding in damage(layout.root) if finding.path == shown]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file above a size inside the `with` block, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def start_child(*args: object) -> subprocess.Popen[str]:
    """Start `child.py` as a process of its own, with pipes to and from it."""
    return subprocess.Popen(
        [sys.executable, HERE / "child.py", *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    )
