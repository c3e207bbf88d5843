"""Reading in another process: the same rows, and whatever a file holds, this process goes on."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nearfree.errors import SourceError
from nearfree.public.guarded_reader import GuardedReader
from nearfree.public.perf_tables import read_rows

from public.tables import WHOLE, member

PATH = member("gemm_perf")
RAW = WHOLE[PATH]


def test_the_rows_are_the_same() -> None:
    """A table that was read in another process is what it is when read here."""
    with GuardedReader() as reader:
        for path, raw in WHOLE.items():
            there, here = reader.read(path, raw), read_rows(path, raw)
            assert there.points.equals(here.points)
            assert there.skipped == here.skipped


def test_an_error_comes_back_whole() -> None:
    """What is wrong with a table, and what to do, is told as if it were read here."""
    with pytest.raises(SourceError) as here:
        read_rows(PATH, b"none")
    with GuardedReader() as reader, pytest.raises(SourceError) as there:
        reader.read(PATH, b"none")
    assert str(there.value) == str(here.value)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(RAW) - 1), st.integers(0, 255))
@example(1088, 57)
@example(1240, 33)
def test_one_changed_byte_does_no_harm(place: int, value: int) -> None:
    """A file with a changed byte is read or refused, even where its reader breaks down."""
    raw = RAW[:place] + bytes([value]) + RAW[place + 1 :]
    said = PATH
    with GuardedReader() as reader:
        try:
            reader.read(PATH, raw)
        except SourceError as error:
            said = error.what
    assert said.startswith(PATH)
