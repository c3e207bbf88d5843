"""Answers in C++: calls and template arguments whose values a rule gives."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.expressions import Meaning

from sources.language.rules import read_cpp, values


def test_answers() -> None:
    """A call that is an answer gives the requested arguments and expressions."""
    text = (
        "void launch(int a, int b = 7);\nvoid launch(int a, int b) { }\n"
        "void f(int M) { const int k = M * 2; if (M > 3) { launch(k, 1); return; } }"
    )
    rule = read_cpp(text, meaning=Meaning(answers={"launch": (0, 1, "k + 1")}))
    assert values(rule, (2, 4)) == [None, (8, 1, 9)]


def test_answer_in_unknown_code() -> None:
    """A function with an answer inside unknown code is refused."""
    text = "void f(int M) { switch (M) { case 1: launch(M); } launch(2); }"
    with pytest.raises(SourceError):
        read_cpp(text, meaning=Meaning(answers={"launch": (0,)}))


def test_answer_with_a_hidden_name() -> None:
    """An answer's expression uses the names in the call's scope."""
    text = "void f(int M) { int k = 1; { int k = 2; launch(M); } }"
    rule = read_cpp(text, meaning=Meaning(answers={"launch": ("k",)}))
    assert values(rule, (4,)) == [(2,)]


def test_sinks() -> None:
    """A template argument of a template argument can be the answer."""
    text = (
        "template<int K> void f(int M) { if (M > 3) { run<Traits<K, 64>>(M); "
        "} else { run<Traits<K, 128>>(M); } }"
    )
    rule = read_cpp(text, meaning=Meaning(sinks={"run": (0, 1)}))
    assert values(rule, (2, 4)) == [128, 64]


SWITCH = """
#define SWITCH(COND, NAME, ...) \\
  [&] { \\
    if (COND) { constexpr static bool NAME = true; return __VA_ARGS__(); } \\
    else { constexpr static bool NAME = false; return __VA_ARGS__(); } \\
  }()
void f(int M) {
  SWITCH(M > 16, Big, [&] {
    SWITCH(M % 2 == 0, Even, [&] {
      if (Big) { launch(Even ? 1 : 2); } else { launch(3); }
    });
  });
}
"""


def test_switch_macro() -> None:
    """A macro that makes a constant of a condition runs the given function."""
    rule = read_cpp(SWITCH, meaning=Meaning(answers={"launch": (0,)}))
    assert values(rule, (16, 17, 18)) == [(3,), (2,), (1,)]


def test_switch_macro_quotes() -> None:
    """A condition in a macro is quoted at its use."""
    rule = read_cpp(SWITCH, meaning=Meaning(answers={"launch": (0,)}))
    texts = {quote.text for branch in rule.branches for quote in branch.quotes}
    assert "SWITCH(M > 16, Big, [&] {" in texts
    assert not any("#define" in text for text in texts)
