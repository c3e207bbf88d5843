"""ELF files: a valid library passes; a forged, cut or foreign file is refused."""

import random
import struct
import time

import pytest
from nearfree.errors import SourceError
from nearfree.sources.binaries import elf
from nearfree.sources.binaries.elf import check_elf

from sources.binaries.tiny import code, entry, library, region, sound


def poked(at: int, form: str, value: int, raw: bytes = b"") -> bytes:
    """Return a valid library with one number changed."""
    changed = bytearray(raw or sound())
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


def test_a_sound_library_and_its_device_code_pass() -> None:
    """The output of linkers and compilers passes, whole or device code alone."""
    check_elf(sound(), "it")
    check_elf(code(0), "it")
    check_elf(memoryview(code(1)), "it")


HOSTILE = {
    "nothing": b"",
    "a text": b"#!/bin/sh\necho hello\n" * 9,
    "32 bits": poked(4, "B", 1),
    "big end first": poked(5, "B", 2),
    "another machine": poked(18, "<H", 183),
    "a header of another size": poked(52, "<H", 40),
    "sections of another size": poked(58, "<H", 40),
    "no sections": poked(60, "<H", 0),
    "more sections than a file has": poked(60, "<H", 0xFEFF),
    "a section table that no file holds": library(b"", sections=elf.SECTIONS_LIMIT),
    "tables beyond the end": poked(40, "<Q", 2**63),
    "segments beyond the end": poked(56, "<H", 4096, poked(54, "<H", 56)),
    "names that are no section": poked(62, "<H", 3),
    "a region without its sign": library(region(entry(80, code(0)), magic=1)),
    "a region longer than its section": library(region(entry(80, code(0)), size=10**9)),
    "a region that ends within a piece": library(region(entry(80, code(0)), size=100)),
    "a piece longer than its region": library(region(entry(80, code(0), size=10**9))),
    "code for an x86-64": library(region(entry(80, library(b"")))),
    "code that is no ELF file": library(region(entry(80, bytes(999)))),
    "code that is cut off": library(region(entry(80, code(0)[:-1000]))),
    "code that unpacks without end": library(
        region(entry(80, bytes(99), flags=0x2011, unpacked=elf.UNPACKED_LIMIT + 1))
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name: str) -> None:
    """Each hostile file is refused by name, without being read by the dumper."""
    with pytest.raises(SourceError, match=r"demo 1.0: a\.so is refused: ") as refusal:
        check_elf(HOSTILE[name], "demo 1.0: a.so")
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    """A library cut at any place is refused."""
    raw = sound()
    for size in [*range(200), *range(200, len(raw), 997), len(raw) - 1]:
        with pytest.raises(SourceError):
            check_elf(raw[:size], "it")


def test_changed_bytes_end_in_an_answer_or_a_refusal() -> None:
    """Any header gives an answer or a refusal, in short time."""
    chance, raw = random.Random(24), sound()  # noqa: S311 (nothing is kept secret)
    places = [*range(64), *range(len(raw) - 192, len(raw)), *range(64, 400)]
    began = time.process_time()
    refused = 0
    for _ in range(2000):
        changed = bytearray(raw)
        for place in chance.sample(places, 4):
            changed[place] = chance.randrange(256)
        try:
            check_elf(changed, "it")
        except SourceError:
            refused += 1
    assert refused > 1000
    assert time.process_time() - began < 5
