"""Files read in another process: equal rows, and no file can end this process."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nearfree.errors import SourceError
from nearfree.public import guarded_reader
from nearfree.public.guarded_reader import GuardedReader
from nearfree.public.perf_tables import read_rows

from public.tables import WHOLE, member

PATH = member("gemm_perf")
RAW = WHOLE[PATH]


def test_the_rows_are_the_same() -> None:
    """A table read in another process equals the one read in this process."""
    with GuardedReader() as reader:
        for path, raw in WHOLE.items():
            there, here = reader.read(path, raw), read_rows(path, raw)
            assert there.points.equals(here.points)
            assert there.skipped == here.skipped


def test_an_error_comes_back_whole() -> None:
    """A table's error and remedy are those of reading it here."""
    with pytest.raises(SourceError) as here:
        read_rows(PATH, b"none")
    with GuardedReader() as reader, pytest.raises(SourceError) as there:
        reader.read(PATH, b"none")
    assert str(there.value) == str(here.value)


def test_a_lack_of_memory_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that needs more memory than allowed is refused by name."""

    def starved(member: str, raw: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(guarded_reader, "read_rows", starved)
    what, remedy = guarded_reader._read_guarded(PATH, RAW)
    assert what == f"{PATH} needs more than 8 GiB of memory"
    assert "Nothing was imported" in str(remedy)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(RAW) - 1), st.integers(0, 255))
@example(1088, 57)
@example(1240, 33)
def test_one_changed_byte_does_no_harm(place: int, value: int) -> None:
    """A file with a changed byte is read or refused, even if its reader crashes."""
    raw = RAW[:place] + bytes([value]) + RAW[place + 1 :]
    message = PATH
    with GuardedReader() as reader:
        try:
            reader.read(PATH, raw)
        except SourceError as error:
            message = error.what
    assert message.startswith(PATH)
