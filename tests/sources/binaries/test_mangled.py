"""Mangled names: template arguments are read back, and invalid names refused."""

import random

import pytest
from nearfree.errors import SourceError
from nearfree.sources.binaries.mangled import Name, read_name

SIZES = Name("cute::tuple", tuple(Name("cute::C", (n,)) for n in (128, 160, 128)))
KNOWN = {
    "_Z3fooi": Name("foo"),
    "_Z3fooIiEvT_": Name("foo", (Name("i"),)),
    "_ZN1a1bILin3ELb1ELb0EEEvv": Name("a::b", (-3, True, False)),
    # A pack is written out, and parts of a name point at parts before them.
    "_Z1fIN4cute5tupleIJNS0_1CILi128EEENS2_ILi160EEES3_EEEEvv": Name("f", (SIZES,)),
    "_Z1fIN1a1bENS0_1cES1_S0_Evv": Name("f", (Name("a::b"), Name("a::c"), Name("a::b"), Name("a"))),
    "_Z1fI1tIiES0_S1_Evv": Name("f", (Name("t", (Name("i"),)), Name("t"), Name("t", (Name("i"),)))),
    "_Z1fISt4lessIiEvEvv": Name("f", (Name("std::less", (Name("i"),)), Name("v"))),
    "_Z1fIPKcS0_S1_Evv": Name("f", (Name("cKP"), Name("cK"), Name("cKP"))),
    # A number of an enumeration counts as a number.
    "_Z1fILN1a1eE1ELS1_0EEvv": Name("f", (1, 0)),
}


@pytest.mark.parametrize("mangled", KNOWN)
def test_names_are_read(mangled: str) -> None:
    """Names of a compiler are read as c++filt of binutils 2.40 reads them."""
    assert read_name(mangled) == KNOWN[mangled]


@pytest.mark.parametrize(
    "mangled",
    [
        "main",
        "_Z",
        "_Z9short",
        "_ZNE",
        "_Z1fIS5_Evv",
        "_Z1fILi",
        "_Z1fIXsrT_E1xEEvv",
        "_Z1f" + "I1a" * 5000,
        "_Z1fI" + "P" * 9000,
        "_Z" + "1" * 20000,
    ],
)
def test_other_names_are_refused(mangled: str) -> None:
    """A name outside the grammar, or with a bad reference, is refused."""
    with pytest.raises(SourceError, match="no mangled name"):
        read_name(mangled)


def test_changed_names_are_read_or_refused() -> None:
    """Any text gives a name or a refusal."""
    chance = random.Random(24)  # noqa: S311 (nothing is kept secret)
    for _ in range(3000):
        text = bytearray(chance.choice(list(KNOWN)).encode())
        text[chance.randrange(2, len(text))] = chance.choice(b"0123SNIEJLPK_tavn")
        try:
            assert isinstance(read_name(text.decode()), Name)
        except SourceError:
            continue
