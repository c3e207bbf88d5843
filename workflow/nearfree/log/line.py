"""One hashed line: the byte format that segments, seals and ledgers share.

A line is one JSON object whose last member is `hash`, the SHA-256 of the line's own bytes before
that member, as lower-case text. Comparing raw bytes means that no flipped bit can hide behind a
parser's tolerance. A line holds no home folder and no URL, for a chain cannot be cleaned later.
"""

import hashlib
import re
from pathlib import Path

from nearfree.errors import DamageError

_MARK = b',"hash":"'
_TAIL = b'"}'
_HEX = 64
SUFFIX = len(_MARK) + _HEX + len(_TAIL)
GENESIS = "0" * _HEX
"""What the first line of a chain names as its predecessor."""


REMEDY = "Restore the file from a copy; else retract the take, or ask for another with retake"
"""What to do about bytes that are not what was written."""
URL = "://"


def sequence_text(number: int) -> str:
    """Return an event's place as the CloudEvents `sequence`: digits whose text sorts as they do."""
    return f"{number:08}"


def close_line(body: bytes) -> bytes:
    """Return a JSON object's bytes with its `hash` member added, without a newline."""
    open_body = body[:-1]
    return open_body + _MARK + hashlib.sha256(open_body).hexdigest().encode() + _TAIL


def sha256(raw: bytes) -> str:
    """Return the SHA-256 of raw bytes as lower-case hexadecimal text."""
    return hashlib.sha256(raw).hexdigest()


def line_head(raw: bytes) -> str | None:
    """Return the SHA-256 of a line without its newline, None if it is not what was written.

    One pass serves both hashes: the line's own up to its `hash` member, then the whole line's.
    """
    total = hashlib.sha256(raw[:-SUFFIX])
    tail = raw[-SUFFIX:]
    if tail != b'%b%b"}' % (_MARK, total.hexdigest().encode()):
        return None
    total.update(tail)
    return total.hexdigest()


def damaged_line(where: str) -> DamageError:
    """Return the error of a line that does not match its own hash."""
    return DamageError(
        f"{where} does not match its own hash",
        remedy=REMEDY,
    )


def home() -> str | None:
    """Return the user's home folder, None where the system knows none worth hiding."""
    try:
        folder = str(Path.home())
    except RuntimeError:
        return None
    return folder if len(folder) > 1 else None


def folder_pattern(folder: str) -> re.Pattern[str]:
    """Return what finds a folder in a text, but no piece of another path: no /data of a/data/b.

    The letter of an escape in a line of JSON, or of an option, may stand before it.
    """
    name = re.escape(folder)
    letter = rf"(?<=\\[bfnrt]{name})|(?<=[\s\"]-\w{name})"
    return re.compile(rf"{name}(?:(?<![\w.-]{name})|{letter})(?![\w-]|\.\w)")


def holds_home(text: str) -> bool:
    """Return whether a text holds the user's home folder."""
    folder = home()
    return folder is not None and folder_pattern(folder).search(text) is not None


def private_patterns() -> tuple[re.Pattern[str], ...]:
    """Return what finds the pieces of text that must not be on record."""
    folder = home()
    return (*([folder_pattern(folder)] if folder else []), re.compile(URL))


def without_private(text: str) -> str:
    """Return an error's text with its folders shortened and its URLs broken up."""
    here, folder = str(Path.cwd()), home()
    text = (folder_pattern(here).sub(".", text) if len(here) > 1 else text).replace(URL, ":")
    return folder_pattern(folder).sub("~", text) if folder else text
