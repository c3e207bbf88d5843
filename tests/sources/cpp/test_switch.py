"""Switches become chains of conditions, if a reader follows them."""

from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.reading import Reading, read_rule
from nearfree.sources.language.rule import Rule


def answers(body: str, *, follow: bool = True) -> list[Any]:
    """Return the values of `int f(int M)` for 0 to 4, read in both ways."""
    files = CppFiles({"a.cpp": f"int f(int M) {{ {body} }}"})
    program, root = cpp_program(files, "f", leaves={}, meaning=Meaning(branching=follow))
    reading = Reading(
        "f", program, root, axis="M", contexts=[{}], interpret_whole=False, dense=range(5)
    )
    rule = Rule(read_rule(reading, "a", "1"))
    return [rule.value({"M": m}).value for m in range(5)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("switch (M) { case 1: return 7; case 2: return 8; default: return 9; }", [9, 7, 8, 9, 9]),
        ("switch (M) { case 1: case 2: return 7; } return 9;", [9, 7, 7, 9, 9]),
        ("int x = 9; switch (M) { case 1: x = 7; break; case 0x2: x = 8; break; } return x;",
         [9, 7, 8, 9, 9]),
        ("int x; switch (M << 1) { case 2: x = 7; break; default: x = 9; } return x;",
         [9, 7, 9, 9, 9]),
        ("switch (M) { case 3: { if (M > 1) return 7; return 8; } default: break; } return 9;",
         [9, 9, 9, 7, 9]),
        ("switch (M) { case 1: case 2: default: return 4; }", [4, 4, 4, 4, 4]),
        ("switch (M) { } return 9;", [9] * 5),
    ],
)  # fmt: skip
def test_cases_are_conditions(body: str, expected: list[int]) -> None:
    """A case ends in a return or a break; several labels share one."""
    assert answers(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "int x = 9; switch (M) { case 1: x = 7; case 2: x = 8; } return x;",
        "switch (M) { default: return 9; case 1: return 7; }",
        "int x = 9; switch (M) { case 1: if (M) break; x = 7; break; } return x;",
        "switch (M) { case 1: if (M > 3) return 7; case 2: return 8; } return 9;",
        "int x = 9; switch (M) { case 1: { x = 7; break; } case 2: x = 8; break; } return x;",
        "switch (M++) { case 1: return 7; } return M;",
    ],
)
def test_other_switches_are_not_known(body: str) -> None:
    """Fall-through, a break elsewhere and an early default are refused."""
    with pytest.raises(SourceError):
        answers(body)


def test_readers_that_do_not_follow_switches_refuse_them() -> None:
    """A reader that does not follow switches refuses them."""
    with pytest.raises(SourceError):
        answers("switch (M) { case 1: return 7; } return 9;", follow=False)
