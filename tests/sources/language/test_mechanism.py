"""Mechanisms: lines on which a rule depends, recorded as rules without inputs."""

from nearfree.log.events import Quote
from nearfree.sources.language.reading import Mechanism, mechanism_rule
from nearfree.sources.language.rule import Rule

PLACE = Quote(file="a.py", lines=(3, 4), text="grid = cdiv(M, BLOCK)")


def test_recorded() -> None:
    """A mechanism with lines has its text and its quotes."""
    rule = mechanism_rule(Mechanism("grid", "it's a grid", (PLACE,)), "package", "1.0")
    assert Rule(rule).value({}).value == "it's a grid"
    assert rule.branches[0].quotes == (PLACE,)
    assert rule.rule == "mechanism_grid"


def test_absent() -> None:
    """A mechanism without lines is absent, with another digest."""
    there, gone = (
        mechanism_rule(Mechanism("grid", "a grid", quotes), "package", "1.0")
        for quotes in ((PLACE,), ())
    )
    assert Rule(gone).value({}).value == "absent"
    assert there.meaning != gone.meaning


def test_meaning() -> None:
    """The digest does not depend on the lines' place."""
    other = Quote(file="b.py", lines=(9, 9), text="grid = cdiv(M, BLOCK)")
    first, second = (
        mechanism_rule(Mechanism("grid", "a grid", (quote,)), "package", "1.0")
        for quote in (PLACE, other)
    )
    assert first.meaning == second.meaning
