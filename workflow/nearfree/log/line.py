"""One hashed line: the byte format that segments, seals and ledgers share.

A line is one JSON object whose last member is `hash`, the SHA-256 of the line's own bytes before
that member, in lower-case hexadecimal. Raw bytes are hashed, so that a parser's tolerance cannot
hide a flipped bit. A line holds no home folder and no URL, since a chain cannot be edited later.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from nearfree.errors import DamageError, LogError

_MARK = b',"hash":"'
_TAIL = b'"}'
_HEX = 64
SUFFIX = len(_MARK) + _HEX + len(_TAIL)
GENESIS = "0" * _HEX
"""The predecessor's hash in the first line of a chain."""


REMEDY = "Restore the file from a copy; else retract the take, or ask for another with retake"
"""The remedy for bytes that differ from what was written."""
URL = "://"


def sequence_text(number: int) -> str:
    """Return an event's number as the CloudEvents `sequence`: zero-padded, so that text sorts."""
    return f"{number:08}"


def close_line(body: bytes) -> bytes:
    """Return a JSON object's bytes with its `hash` member added, without a newline."""
    open_body = body[:-1]
    return open_body + _MARK + hashlib.sha256(open_body).hexdigest().encode() + _TAIL


def sha256(raw: bytes) -> str:
    """Return the SHA-256 of raw bytes as lower-case hexadecimal text."""
    return hashlib.sha256(raw).hexdigest()


def line_head(raw: bytes) -> str | None:
    """Return the SHA-256 of a line without its newline; None if its own hash does not match.

    One pass computes both hashes: up to the `hash` member, then over the whole line.
    """
    digest = hashlib.sha256(raw[:-SUFFIX])
    tail = raw[-SUFFIX:]
    if tail != b'%b%b"}' % (_MARK, digest.hexdigest().encode()):
        return None
    digest.update(tail)
    return digest.hexdigest()


def damaged_line(where: str) -> DamageError:
    """Return the error of a line that does not match its own hash."""
    return DamageError(f"{where} does not match its own hash", remedy=REMEDY)


def home() -> str | None:
    """Return the user's home folder; None if there is none, or if it is the root folder."""
    try:
        folder = str(Path.home())
    except RuntimeError:
        return None
    return folder if len(folder) > 1 else None


def folder_pattern(folder: str) -> re.Pattern[str]:
    """Return a pattern that finds a folder's path in a text, but not inside another path.

    `/data` is not found in `a/data/b`. The letter of a JSON escape such as n or of a short option
    (`-I`) may precede the path.
    """
    name = re.escape(folder)
    letter = rf"(?<=\\[bfnrt]{name})|(?<=[\s\"]-\w{name})"
    return re.compile(rf"{name}(?:(?<![\w.-]{name})|{letter})(?![\w-]|\.\w)")


def holds_home(text: str) -> bool:
    """Return whether a text holds the user's home folder."""
    folder = home()
    return folder is not None and folder_pattern(folder).search(text) is not None


def private_patterns() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of text that no event may hold: the home folder's path, and URLs."""
    folder = home()
    return (*([folder_pattern(folder)] if folder else []), re.compile(URL))


def refuse_private(text: str, what: str, patterns: Iterable[re.Pattern[str]]) -> None:
    """Raise LogError if a text that an event would keep has a match of `private_patterns`."""
    for pattern in patterns:
        if match := pattern.search(text):
            raise LogError(
                f"{what} would hold {match[0]!r}",
                remedy="Events keep no home folder and no URL: give paths inside the project",
            )


def without_private(text: str) -> str:
    """Return an error's text with the working and home folders shortened and URLs broken."""
    here, folder = str(Path.cwd()), home()
    text = (folder_pattern(here).sub(".", text) if len(here) > 1 else text).replace(URL, ":")
    return folder_pattern(folder).sub("~", text) if folder else text
