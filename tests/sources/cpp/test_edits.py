"""Edited C++ text: edits keep their lines, and nothing else moves."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.edits import Edit, edited, only_function, reduced_to
from nearfree.sources.cpp.nodes import part
from nearfree.sources.cpp.source import CppFiles, children

TEXT = """#if 0
void other() {}
#else
void f(int a) {
  int b = a;
  g(b,
    a);
  int c = b + 1;
}
#endif
"""


def test_an_edit_keeps_the_lines_of_what_stood_there() -> None:
    """Text after an edit stays on its line, even if lines are joined."""
    start = TEXT.index("g(b")
    end = TEXT.index(";\n  int c")
    new = edited(TEXT, [Edit(start, end, "h()")])
    assert new.count("\n") == TEXT.count("\n")
    assert new.splitlines()[7] == "  int c = b + 1;"
    assert "h()" in new
    assert "a);" not in new


def test_of_two_edits_the_one_around_the_other_holds() -> None:
    """An edit inside another, or that begins in it, is left out."""
    assert edited("abcdef", [Edit(1, 2, "x"), Edit(0, 4, "y"), Edit(5, 6, "z")]) == "yez"


def test_places_are_those_of_bytes() -> None:
    """Characters of several bytes before an edit do not shift it."""
    text = "é = 1;"
    assert edited(text, [Edit(5, 6, "2")]) == "é = 2;"


def test_a_function_is_cut_to_some_of_its_statements() -> None:
    """A function cut to some statements answers the given expression."""
    path, node = only_function({"a.cu": TEXT}, "f")
    first, _, last = children(part(node, "body"))
    alone = reduced_to(TEXT, node, [first, last], "c")
    assert path == "a.cu"
    assert " ".join(alone.split()) == "void f() { int b = a; int c = b + 1; return c; }"
    function = CppFiles({path: alone}, quoted={path: TEXT}).locate("f")
    assert function.text.quote(5, 5).text == "int b = a;"
    places = [statement.start_point[0] + 1 for statement in children(part(function.node, "body"))]
    assert places == [5, 8, 8]


@pytest.mark.parametrize("text", ["int g() { return 1; }", "void f() {}\nvoid f(int a) {}"])
def test_a_function_that_is_not_there_once_is_refused(text: str) -> None:
    """A missing or repeated function is refused."""
    with pytest.raises(SourceError, match=r"f is defined [02] times"):
        only_function({"a.cu": text}, "f")
