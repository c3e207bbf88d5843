"""Hashed lines."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st
from nearfree.log.line import SUFFIX, close_line, damaged_line, line_head, sha256

from log.faults import flip


def test_the_format_is_pinned() -> None:
    """A line ends in `hash`, the SHA-256 of the bytes before that member."""
    line = close_line(b'{"a":1}')
    digest = hashlib.sha256(b'{"a":1').hexdigest().encode()
    assert line == b'{"a":1,"hash":"' + digest + b'"}'
    assert len(line) - len(b'{"a":1') == SUFFIX


@given(st.binary(max_size=300))
def test_a_closed_line_is_believed(body: bytes) -> None:
    """The head of any closed line is the SHA-256 of the whole line, and the line is accepted."""
    line = close_line(body + b"}")
    assert line_head(line) == sha256(line) == hashlib.sha256(line).hexdigest()


def test_every_flipped_bit_is_seen() -> None:
    """A line with any one bit flipped is rejected, the bits of its hash included."""
    line = close_line(b'{"id":"1","data":{"n":1.5}}')
    believed = [bit for bit in range(8 * len(line)) if line_head(flip(line, bit)) is not None]
    assert believed == []


def test_every_cut_is_seen() -> None:
    """A line that lost bytes at its end or its start is not believed."""
    line = close_line(b'{"id":"1"}')
    assert [n for n in range(len(line)) if line_head(line[:n]) is not None] == []
    assert [n for n in range(1, len(line)) if line_head(line[n:]) is not None] == []


def test_the_hash_is_text() -> None:
    """The same digest in upper case is another line."""
    line = close_line(b'{"id":"1"}')
    digest = line[-66:-2]
    assert line_head(line.replace(digest, digest.upper())) is None


def test_bytes_after_the_hash_are_seen() -> None:
    """Even a blank that no JSON parser minds makes a line another one."""
    line = close_line(b'{"id":"1"}')
    assert line_head(line + b" ") is None
    assert line_head(b" " + line) is None


def test_the_error_says_where_and_what_to_do() -> None:
    """The error of a damaged line names the place and offers a way out."""
    error = damaged_line("a.jsonl line 3")
    assert "a.jsonl line 3" in error.what
    assert "Restore" in error.remedy
