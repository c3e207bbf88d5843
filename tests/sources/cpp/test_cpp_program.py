"""C++ rules with everything that they reach."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles

from sources.language.rules import read_cpp, values

TEXT = """
int unused(int x) { return x; }
int deep(int x) { return x + device(); }
int mid(int x) { return deep(x) * 2; }
int f(int M) { return mid(M); }
"""


def test_reached() -> None:
    """A rule has the functions that it reaches, with leaves replaced in all of them."""
    files = CppFiles({"a.h": TEXT})
    program, root = cpp_program(files, "f", leaves={r"device\(\)": "sm"})
    assert root == "f"
    assert set(program.functions) == {"f", "mid", "deep"}
    rule = read_cpp(TEXT, leaves={r"device\(\)": "sm"}, contexts=[{"sm": 90}])
    assert values(rule, (1, 2), sm=90) == [182, 184]


def test_constants() -> None:
    """A name that carries nothing for the rule can be given."""
    program, _ = cpp_program(
        CppFiles({"a.h": "int f(int M) { return M + k; }"}),
        "f",
        leaves={},
        constants={"k": "3"},
    )
    assert set(program.constants) == {"k"}


def test_other_names() -> None:
    """A function that releases name differently is found by each name."""
    text = "int newer(int M) { return M; }"
    assert cpp_program(CppFiles({"a.h": text}), "older", "newer", leaves={})[1] == "newer"


RECORD = """
struct Params { int x; int y; };
void fill(Params &params, int n) { params.x = n * 2; params.y = 3; }
void f(int M) {
  Params params;
  memset(&params, 0, sizeof(params));
  fill(params, M);
  if (M > 3) { params.y = params.y + 1; }
  launch(params);
}
"""


def test_records() -> None:
    """Fields of a structure passed by reference are followed."""
    meaning = Meaning(answers={"launch": ("params_x", "params_y")}, records=frozenset({"params"}))
    assert values(read_cpp(RECORD, meaning=meaning), (2, 5)) == [(4, 3), (10, 4)]


def test_records_given_to_unknown_functions() -> None:
    """A structure passed to an unknown function loses its known fields."""
    meaning = Meaning(answers={"launch": ("params_x",)}, records=frozenset({"params"}))
    with pytest.raises(SourceError):
        read_cpp(RECORD.replace("  if (M", "  other(params);\n  if (M"), meaning=meaning)
