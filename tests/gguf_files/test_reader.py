"""The reader of headers: valid files are read, invalid ones refused."""

import hashlib
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nearfree.errors import ConfigError
from nearfree.gguf.header import GgufHeader, Long, bytes_by_type, stored_bytes
from nearfree.gguf.reader import is_gguf, read_header, weights_sha256
from nearfree.gguf.types import TYPES
from nearfree.gguf.values import SHORT

from gguf_files.files import SCALARS, SMALL, TensorEntry, array, gguf, scalar, string, text

Write = Callable[[bytes], Path]
RANGES = {
    "uint8": (0, 2**8 - 1), "int8": (-(2**7), 2**7 - 1), "uint16": (0, 2**16 - 1),
    "int16": (-(2**15), 2**15 - 1), "uint32": (0, 2**32 - 1), "int32": (-(2**31), 2**31 - 1),
    "uint64": (0, 2**64 - 1), "int64": (-(2**63), 2**63 - 1),
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(raw: bytes) -> Path:
        path = tmp_path / "a.gguf"
        path.write_bytes(raw)
        return path

    return written


def values(kind: str) -> st.SearchStrategy[Any]:
    if kind == "bool":
        return st.booleans()
    if kind.startswith("float"):
        return st.floats(width=int(kind[5:]), allow_nan=False)  # type: ignore[call-overload]
    return st.integers(*RANGES[kind])


def entries() -> st.SearchStrategy[tuple[bytes, Any]]:
    """Return typed values as bytes, with what must be read of them."""
    kinds = st.sampled_from(list(SCALARS))
    single = kinds.flatmap(lambda k: values(k).map(lambda v: (scalar(k, v), v)))
    several = kinds.flatmap(
        lambda k: st.lists(values(k), max_size=5).map(lambda v: (array(k, v), tuple(v)))
    )
    texts = st.text(max_size=20)
    many = st.lists(texts, max_size=5).map(lambda v: (array("text", v), tuple(v)))
    return st.one_of(single, several, texts.map(lambda v: (string(v), v)), many)


@st.composite
def tensors(draw: Any) -> list[TensorEntry]:
    names = draw(st.lists(st.text("abc.", min_size=1, max_size=9), max_size=5, unique=True))
    made = []
    for name in names:
        type_ = draw(st.sampled_from(list(TYPES.values())))
        rows = draw(st.lists(st.integers(1, 4), max_size=3))
        blocks = draw(st.integers(1, 3))
        size = blocks * type_.size
        for row in rows:
            size *= row
        made.append(TensorEntry(name, (blocks * type_.elements, *rows), type_.number, size))
    return made


KEYS = st.text(min_size=1, max_size=20).filter(lambda key: key != "general.alignment")


@given(
    metadata=st.dictionaries(KEYS, entries(), max_size=6),
    written=tensors(),
    version=st.sampled_from([2, 3]),
    alignment=st.sampled_from([None, 1, 8, 32, 256]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read(
    metadata: dict[str, tuple[bytes, Any]],
    written: list[TensorEntry],
    version: int,
    alignment: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Metadata, tensors and sizes of a file come back as they were written."""
    path = tmp_path_factory.getbasetemp() / "written.gguf"
    keys = [(key, raw) for key, (raw, _) in metadata.items()]
    if alignment:
        keys.append(("general.alignment", scalar("uint32", alignment)))
    path.write_bytes(gguf(keys, written, version=version, alignment=alignment or 32))
    header = read_header(path)
    metadata_read = {
        key: value for key, value in header.metadata.items() if key != "general.alignment"
    }
    assert metadata_read == {key: value for key, (_, value) in metadata.items()}
    assert [(e.name, e.dims, e.type.number, e.size_bytes) for e in header.tensors] == [
        (tensor.name, tuple(tensor.dims), tensor.type, tensor.size) for tensor in written
    ]
    assert header.version == version
    assert header.file_bytes == path.stat().st_size
    assert stored_bytes(header) == sum(tensor.size for tensor in written)
    assert stored_bytes(header) <= header.file_bytes - header.data_offset
    assert sum(bytes_by_type(header).values()) == stored_bytes(header)
    assert all(tensor.offset % header.alignment == 0 for tensor in header.tensors)


def test_long_values_are_left_in_the_file_unless_asked_for(write: Write) -> None:
    """A long array is its type and length; on request it is read completely."""
    words = [f"<t{number}>" for number in range(SHORT + 1)]
    numbers = list(range(SHORT + 1))
    path = write(
        gguf(
            [
                ("words", array("text", words)),
                ("numbers", array("int32", numbers)),
                ("story", string("a" * 70_000)),
                ("last", scalar("uint8", 7)),
            ]
        )
    )
    header = read_header(path)
    assert header.metadata == {
        "words": Long("text", SHORT + 1),
        "numbers": Long("int32", SHORT + 1),
        "story": Long("text", 70_000),
        "last": 7,
    }
    metadata = read_header(path, whole=["words", "numbers", "story"]).metadata
    assert metadata["words"] == tuple(words)
    assert metadata["numbers"] == tuple(numbers)
    assert metadata["story"] == "a" * 70_000
    assert metadata["last"] == 7


def test_a_token_that_is_no_utf_8_is_escaped(write: Write) -> None:
    """A byte that is not valid UTF-8 is read as an escape."""
    path = write(gguf([("tokens", array("text", [b"\xff", b"a"]))]))
    assert read_header(path).metadata["tokens"] == ("\\xff", "a")


ONE = TensorEntry("a", (32,), 0, 128)
REFUSED = {
    "empty": (b"", "ends within its first bytes"),
    "another": (b"PK\x03\x04" + bytes(60), "is no GGUF file"),
    "version 1": (gguf(version=1), "of GGUF's version 1"),
    "version 0": (gguf(version=0), "of GGUF's version 0"),
    "version 4": (gguf(version=4), "of GGUF's version 4"),
    "big-endian": (b"GGUF" + pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensors": (b"GGUF" + pack("<IQQ", 3, 1 << 60, 0), "1152921504606846976 tensors"),
    "few tensors": (b"GGUF" + pack("<IQQ", 3, 9, 0), "ends within 9 tensors"),
    "entries": (b"GGUF" + pack("<IQQ", 3, 0, 1 << 60), "1152921504606846976 metadata"),
    "few entries": (b"GGUF" + pack("<IQQ", 3, 0, 99), "ends within 99 metadata"),
    "negative": (b"GGUF" + b"\3\0\0\0" + b"\xff" * 16 + bytes(80), "18446744073709551615 tensors"),
    "empty key": (gguf([("", string("a"))]), "an empty key"),
    "key twice": (gguf([("a", string("a")), ("a", string("b"))]), "the key 'a' twice"),
    "key of no UTF-8": (
        b"GGUF" + pack("<IQQ", 3, 0, 1) + text(b"\xff") + string("abcd"), "no UTF-8"),
    "long key": (b"GGUF" + pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(99), "bytes for a key"),
    "type": (gguf([("a", pack("<IQ", 13, 0))]), "of type 13"),
    "nested": (gguf([("a", pack("<IIQ", 9, 9, 1) + bytes(20))]), "an array of arrays"),
    "element type": (gguf([("a", pack("<IIQ", 9, 77, 1) + bytes(20))]), "of type 77"),
    "truth": (gguf([("a", scalar("bool", 2))]), "a boolean"),
    "truths": (gguf([("a", array("bool", [0, 1, 9]))]), "a boolean"),
    "long text": (gguf([("a", pack("<IQ", 8, 1 << 60))]), "ends within the value of 'a'"),
    "long array": (gguf([("a", pack("<IIQ", 9, 12, 1 << 61))]), "ends within the value of 'a'"),
    "long texts": (gguf([("a", pack("<IIQ", 9, 8, 1 << 61))]), "ends within the value of 'a'"),
    "alignment 0": (gguf([("general.alignment", scalar("uint32", 0))]), "no power of 2"),
    "alignment 24": (gguf([("general.alignment", scalar("uint32", 24))]), "no power of 2"),
    "alignment's type": (gguf([("general.alignment", scalar("uint64", 32))]), "no power of 2"),
    "vast alignment": (
        gguf([("general.alignment", scalar("uint32", 1 << 31))], [ONE]), "ends at"),
    "name twice": (gguf([], [ONE, ONE]), "two tensors named 'a'"),
    "long name": (gguf([], [TensorEntry("a" * 64, (32,), 0, 128)]), "64 bytes for the name"),
    "dimensions": (gguf([], [TensorEntry("a", (1,) * 5, 0, 4)]), "5 dimensions"),
    "no elements": (gguf([], [TensorEntry("a", (0, 4), 0, 0)]), "of 0 x 4 elements"),
    "too many elements": (gguf([], [TensorEntry("a", (1 << 40, 1 << 40), 0, 4)]), "elements"),
    "gone type": (gguf([], [TensorEntry("a", (32,), 4, 20)]), "in type 4, which is not known"),
    "new type": (gguf([], [TensorEntry("a", (32,), 99, 20)]), "in type 99, which is not known"),
    "block": (gguf([], [TensorEntry("a", (48,), 2, 27)]), "blocks of 32 of q4_0 do not divide"),
    "super-block": (gguf([], [TensorEntry("a", (32,), 12, 18)]), "blocks of 256 of q4_k do not"),
    "off alignment": (gguf([], [TensorEntry("a", (32,), 0, 128, 8)], tail=64), "no multiple of 32"),
    "outside": (gguf([], [TensorEntry("a", (32,), 0, 128, 1 << 20)]), "it ends at"),
    "far outside": (gguf([], [TensorEntry("a", (32,), 0, 128, (1 << 64) - 32)]), "it ends at"),
    "overlap": (
        gguf([], [ONE, TensorEntry("b", (32,), 0, 128, 96)], tail=64),
        "'a' and 'b' in the same bytes"),
    "cut data": (gguf([], [ONE])[:-1], "it ends at"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_inconsistent_headers_are_refused(case: str, write: Write) -> None:
    """An inconsistent header is refused with its file's name and what to do."""
    raw, why = REFUSED[case]
    path = write(raw)
    with pytest.raises(ConfigError) as caught:
        read_header(path)
    assert str(caught.value).startswith(str(path))
    assert why in caught.value.what
    assert caught.value.remedy


def test_paths_that_are_no_regular_file_are_refused(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe and an invalid name are refused without waiting."""
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path in (tmp_path / "none.gguf", tmp_path, pipe, Path("a\0b.gguf"), Path("x" * 5000)):
        for read in (read_header, weights_sha256):
            with pytest.raises(ConfigError, match=r"\.gguf file"):
                read(path)
        assert not is_gguf(path)


def read_or_refuse(path: Path) -> GgufHeader | None:
    """Return a header, or None where it is refused; any other error is raised."""
    try:
        return read_header(path)
    except ConfigError:
        return None


def test_every_truncation_is_refused(write: Write) -> None:
    """A file that is truncated anywhere is refused."""
    for length in range(len(SMALL)):
        header = read_or_refuse(write(SMALL[:length]))
        assert header is None or length >= len(SMALL) - 32  # the last tensor's padding


def test_flipped_bytes_give_a_header_or_one_message(write: Write) -> None:
    """Changed bytes give a header or a ConfigError, within bounded time and memory."""
    random = Random(25)  # noqa: S311 (which bytes, not a secret)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = 0
    for _ in range(1500):
        raw = bytearray(SMALL)
        for _ in range(random.choice((1, 1, 2, 8))):
            raw[random.randrange(len(raw))] = random.choice((0, 1, 127, 255, random.randrange(256)))
        path, start = write(bytes(raw)), time.process_time()
        read += read_or_refuse(path) is not None
        assert time.process_time() - start < 1
    assert 0 < read < 1500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@given(raw=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_behind_the_magic(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any bytes are read or refused."""
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + raw)
    read_or_refuse(path)


def test_weights_are_named_by_their_bytes(write: Write) -> None:
    """The name is the SHA-256 of the whole file."""
    assert weights_sha256(write(SMALL)) == hashlib.sha256(SMALL).hexdigest()


def test_a_file_is_known_by_its_name_or_its_bytes(tmp_path: Path) -> None:
    """A file that begins with GGUF is one whatever its name."""
    (tmp_path / "a").write_bytes(SMALL)
    (tmp_path / "b").write_bytes(b"{}")
    (tmp_path / "c.GGUF").write_bytes(b"")
    assert [is_gguf(tmp_path / name) for name in "ab"] == [True, False]
    assert is_gguf(tmp_path / "c.GGUF")


def test_elements_are_those_of_all_tensors(write: Write) -> None:
    """Elements are products of dimensions, whatever bytes they occupy."""
    header = read_header(write(SMALL))
    assert sum(tensor.elements for tensor in header.tensors) == 32 * 2 + 32
    assert stored_bytes(header) == 68 + 128
    assert header.architecture == "llama"
    assert header.file_type == ""
