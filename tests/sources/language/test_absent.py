"""Entries that a path leaves out: the rule is None there, with a quote."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.language.rule import Rule

from sources.language.rules import read_python, values

TEXT = """
def f(M):
    if M <= 2:
        return {"A": M}
    config = {"A": 64, "B": 8}
    if M > 16:
        config = {"A": 32}
        if M > 64:
            config["B"] = 4
    return config
"""
EXPECTED = [None, None, 8, 8, 8, None, None, 4]


def test_what_a_way_leaves_out_is_none() -> None:
    """The entry has a value only on paths that set it, early or late."""
    rule = read_python(TEXT, key="B", may_be_absent=True)
    assert values(rule) == EXPECTED


def test_the_dictionary_that_lacks_an_entry_is_quoted() -> None:
    """None is quoted from the dictionary without the entry."""
    rule = read_python(TEXT, key="B", may_be_absent=True)
    for m, line in ((1, 4), (17, 7)):
        place = Rule(rule).value({"M": m}).branch.quotes[-1]
        assert place.lines == (line, line)
        assert '"B"' not in place.text


def test_an_entry_that_must_be_there_is_missed() -> None:
    """If every path must set the entry, one that does not is refused."""
    with pytest.raises(SourceError):
        read_python(TEXT, key="B")


def test_an_entry_that_is_always_there_reads_the_same() -> None:
    """If the entry is always set, allowing its absence changes nothing."""
    plain, allowing = (read_python(TEXT, key="A", may_be_absent=absent) for absent in (False, True))
    assert plain == allowing


@pytest.mark.parametrize(
    "text",
    [
        'def f(M):\n    config = {"A": 1}\n    config.update(more(M))\n    return config',
        'def f(M):\n    config = {"A": 1, **more(M)}\n    return config',
        'def f(M):\n    config = {"A": 1}\n    fill(config)\n    return config',
    ],
)
def test_what_might_set_the_entry_is_no_absence(text: str) -> None:
    """If unknown code may set the entry, it is refused."""
    with pytest.raises(SourceError):
        read_python(text, key="B", may_be_absent=True)
