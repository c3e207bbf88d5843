"""C++ functions in normal form: made-up snippets with a compiler's answers."""

import ast
from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.cpp.translate import translate
from nearfree.sources.language.statements import REFUSED

from sources.language.rules import POINTS, read_cpp, values

UP = "int up(int a, int b = 4) { return a + b; }\n"
RIGHT: dict[str, tuple[str, list[Any]]] = {
    "else if": (
        "int f(int M) { if (M <= 2) { return 1; } else if (M < 17) return 2; else { return 3; } }",
        [1, 1, 2, 2, 2, 3, 3, 3],
    ),
    "division truncates": ("int f(int M) { return (3 - M) / 2; }", [1, 0, 0, -1, -6, -7, -30, -48]),
    "rest has the sign": ("int f(int M) { return (3 - M) % 4; }", [2, 1, 0, -2, -1, -2, -1, -1]),
    "double division": ("double f(int M) { return double(M) / 2; }", [m / 2 for m in POINTS]),
    "cast division": ("double f(int M) { return (double)M / 2; }", [m / 2 for m in POINTS]),
    "static cast": (
        "double f(int M) { return static_cast<double>(M) / 2; }",
        [m / 2 for m in POINTS],
    ),
    "truncated in a declaration": (
        "int f(int M) { int x = M * 0.5; return x; }",
        [m // 2 for m in POINTS],
    ),
    "truncated in a return": ("int f(int M) { return M * 0.5; }", [m // 2 for m in POINTS]),
    "truncated by a cast": (
        "int f(int M) { return int(M * 0.5) * 2; }",
        [m // 2 * 2 for m in POINTS],
    ),
    "truncated by an assignment": (
        "int f(int M) { int x = 0; x = M * 0.5; x += 0.75; return x; }",
        [m // 2 for m in POINTS],
    ),
    "truncated for a parameter": (
        "int g(int x) { return x * 2; }\nint f(int M) { return g(M * 0.5); }",
        [m // 2 * 2 for m in POINTS],
    ),
    "widened for a parameter": (
        "double g(double x) { return x / 2; }\ndouble f(int M) { return g(M); }",
        [m / 2 for m in POINTS],
    ),
    "widened in a choice": (
        "double f(int M) { return (M > 3 ? M : 0.5) / 2; }",
        [0.25] * 3 + [m / 2 for m in POINTS[3:]],
    ),
    "ceil is no integer": (
        "double f(int M) { return std::ceil(M / 2.0) / 2; }",
        [-(-m // 2) / 2 for m in POINTS],
    ),
    "ceil of a quotient": ("int f(int M) { return ceil(M / 2); }", [m // 2 for m in POINTS]),
    "truth is one": ("int f(int M) { return (M && 5) + (M > 3); }", [1, 1, 1] + [2] * 5),
    "bool of a number": ("int f(int M) { bool x = M - 1; return x ? 2 : x + 1; }", [1] + [2] * 7),
    "single precision": (
        "bool f(int M) { float x = 0.1f; return x * M == 0.1 * M; }",
        [False, False, False, True, False, False, False, True],
    ),
    "exponent": ("double f(int M) { return M / 1e1; }", [m / 10 for m in POINTS]),
    "literals": (
        "int f(int M) { return M + 0x10 + 010 + 0b11 + 1'000 + 2U + 3LL; }",
        [m + 16 + 8 + 3 + 1000 + 5 for m in POINTS],
    ),
    "inner scope": (
        "int f(int M) { int x = 1; { int x = 2; x = x + M; } return x; }",
        [1] * 8,
    ),
    "inner scope of a condition": (
        "int f(int M) { int x = 1; if (M > 3) { int x = 2; int y = x; } return x; }",
        [1] * 8,
    ),
    "inner value is used": (
        (
            "int f(int M) { int x = 1; int y = 0; "
            "if (M > 3) { int x = 2; y = x; } return x * 10 + y; }"
        ),
        [10] * 3 + [12] * 5,
    ),
    "declared twice side by side": (
        "int f(int M) { if (M > 3) { const int x = 2; return x; } const int x = 1; return x; }",
        [1] * 3 + [2] * 5,
    ),
    "loop variable hides": (
        (
            "int g(int M) { int i = 7; int n = 0; for (int i = 0; "
            "i < 3; i++) { n += M; } return i + n; }\n"
            "int f(int M) { return g(M); }"
        ),
        [7 + 3 * m for m in POINTS],
    ),
    "counting loop": (
        (
            "int g(int M) { int n = 1; for (int i = 0; "
            "i <= 4; ++i) { if (n >= M) { break; } n *= 2; }"
            " return n; }\nint f(int M) { return g(M); }"
        ),
        [1, 2, 4, 8, 16, 32, 32, 32],
    ),
    "lambda": (
        "int f(int M) { auto up = [&](int x) { return (x + 15) / 16 * 16; }; return up(M); }",
        [16, 16, 16, 16, 16, 32, 64, 112],
    ),
    "lambda parameter hides": (
        "int f(int M) { int x = 5; auto g = [](int x) { return x * 2; }; return g(M) + x; }",
        [2 * m + 5 for m in POINTS],
    ),
    "default argument": (
        UP + "int f(int M) { return up(M) + up(M, 1); }",
        [2 * m + 5 for m in POINTS],
    ),
    "template argument": (
        "template<int N> int g(int x) { return x * N; }\nint f(int M) { return g<3>(M); }",
        [3 * m for m in POINTS],
    ),
    "template default": (
        (
            "template<typename T, int N = 4> int g(T x) { return x * N; "
            "}\nint f(int M) { return g(M); }"
        ),
        [4 * m for m in POINTS],
    ),
    "template deduced": (
        "template<typename T> T g(T x, int y) { return x - y; }\nint f(int M) { return g(M, 1); }",
        [m - 1 for m in POINTS],
    ),
    "braces": ("int f(int M) { int x{3}; bool y{false}; int z{}; return y ? M : x + z; }", [3] * 8),
    "undefined macro": (
        "int f(int M) {\n#ifdef SOMETHING\nreturn 1;\n#else\nreturn 2;\n#endif\n}",
        [2] * 8,
    ),
    "not defined macro": (
        "int f(int M) {\n#ifndef SOMETHING\nreturn 1;\n#endif\nreturn 2;\n}",
        [1] * 8,
    ),
    "structured binding": (
        "int f(int M) { auto [a, b] = std::make_tuple(M, 2); return a - b; }",
        [m - 2 for m in POINTS],
    ),
    "swap": (
        "int f(int M) { int x = 1; std::swap(x, M); return x * 10 + M; }",
        [10 * m + 1 for m in POINTS],
    ),
    "vector": (
        "int f(int M) { std::vector<int> v; v.push_back(M); v.push_back(3); return v[0] - v[1]; }",
        [m - 3 for m in POINTS],
    ),
    "min and max": (
        "int f(int M) { return std::min(M, 16) + std::max({M, 2, 3}); }",
        [4, 5, 6, 10, 32, 33, 80, 116],
    ),
    "throw": (
        'int f(int M) { if (M > 16) throw std::runtime_error("x"); return M; }',
        [1, 2, 3, 5, 16, REFUSED, REFUSED, REFUSED],
    ),
    "unsigned difference that is never negative": (
        "int f(int M) { uint32_t x = 1 << 20; return x - M; }",
        [(1 << 20) - m for m in POINTS],
    ),
    "irrelevant code": (
        (
            "int f(int M) { int y = M; switch (y) { case 1: y = 2; "
            "break; } while (y) { y--; } return M; }"
        ),
        list(POINTS),
    ),
    "namespace": (
        "namespace a { int g(int x) { return x + 1; } }\nint f(int M) { return a::g(M); }",
        [m + 1 for m in POINTS],
    ),
    "unchanged reference": (
        "int f(int M) { const int& x = M; return x + 1; }",
        [m + 1 for m in POINTS],
    ),
    "not": ("bool f(int M) { return !(M > 3 && M < 64); }", [not 3 < m < 64 for m in POINTS]),
    "parentheses": ("int f(int M) { return ((M + 1)) * 2; }", [2 * m + 2 for m in POINTS]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    """A function within the known set answers like the compiled one."""
    text, expected = RIGHT[name]
    results = values(read_cpp(text))
    assert results == expected
    assert [type(result) for result in results] == [type(value) for value in expected]


REFUSALS = {
    "switch": "int f(int M) { switch (M) { case 1: return 64; default: return 128; } return 0; }",
    "return in a switch": "int f(int M) { switch (M) { case 1: return 64; } return 128; }",
    "return in a while": "int f(int M) { while (true) { return 64; } return 128; }",
    "return in a try": "int f(int M) { try { return 1; } catch (...) { } return 2; }",
    "goto": "int f(int M) { if (M > 3) goto end; return 1; end: return 2; }",
    "return under #if": "int f(int M) {\n#if VERSION > 3\nreturn 1;\n#endif\nreturn 2;\n}",
    "return under #elif": (
        "int f(int M) {\n#ifdef A\nreturn 1;\n#elif defined(B)\nreturn 2;\n#endif\nreturn 3;\n}"
    ),
    "macro that is defined": (
        "#define A 1\nint f(int M) {\n#ifdef A\nreturn 1;\n#endif\nreturn 2;\n}"
    ),
    "macro that returns": (
        "#define LEAVE(x) if (x) return 5\nint f(int M) { LEAVE(M > 3); return 1; }"
    ),
    "while": "int f(int M) { int x = 1; while (x < M) x *= 2; return x; }",
    "reference": "int f(int M) { int x = 1; int& y = x; y = M; return x; }",
    "reference to what changes": "int f(int M) { int x = 1; const int& y = x; x = M; return y; }",
    "pointer": "int f(int M) { int x = 1; int* p = &x; *p = M; return x; }",
    "reference parameter": "void g(int& x) { x = 5; }\nint f(int M) { g(M); return M; }",
    "reference parameter in an expression": (
        "int g(int& x) { x = 5; return 1; }\nint f(int M) { int y = g(M); return M; }"
    ),
    "reference parameter in a condition": (
        "bool g(int& x) { x = 5; return true; }\nint f(int M) { if (g(M)) { } return M; }"
    ),
    "address": "int f(int M) { fill(&M); return M; }",
    "address in a declaration": "int f(int M) { int y = fill(&M); return M; }",
    "unknown call": "int f(int M) { change(M); return M; }",
    "increment": "int f(int M) { M++; return M; }",
    "increment in an expression": "int f(int M) { int y = M++; return M; }",
    "assignment in an expression": "int f(int M) { int y = (M = 3); return M; }",
    "assignment in a condition": "int f(int M) { if ((M = 3)) { } return M; }",
    "comma": "int f(int M) { M = 1, M = 2; return M; }",
    "condition with a declaration": "int f(int M) { if (int x = 3; x > M) return 1; return 2; }",
    "captured change": "int f(int M) { int x = 1; auto g = [&] { x = M; }; g(); return x; }",
    "captured copy": "int f(int M) { int x = 1; auto g = [=] { return x; }; x = M; return g(); }",
    "static": "int f(int M) { static int x = 0; x += M; return x; }",
    "short": "int f(int M) { short x = M; return x; }",
    "character": "int f(int M) { char x = 'a'; return x + M; }",
    "unsigned below zero": "int f(int M) { uint32_t x = 0; return x - M > 3 ? 1 : 2; }",
    "negative to unsigned": "int f(int M) { int x = -M; unsigned y = x; return y > 3 ? 1 : 2; }",
    "unsigned beside a negative": (
        "int f(int M) { int x = -M; unsigned y = 1; return x < y ? 1 : 2; }"
    ),
    "xor": "int f(int M) { return M ^ 1; }",
    "complement": "int f(int M) { return ~M; }",
    "rounded": "int f(int M) { return std::round(M * 0.5); }",
    "own min": "int min(int a, int b) { return a; }\nint f(int M) { return min(M, 3); }",
    "named as ours": "int f(int M) { return join(M, 3); }",
    "overload": (
        "int g(int x) { return 1; }\nint g(double x) { return 2; }\nint f(int M) { return g(M); }"
    ),
    "other namespace": (
        "namespace a { int g(int x) { return 1; } }\nint f(int M) { return b::g(M); }"
    ),
    "parameter pack": (
        "template<typename... T> int g(T... x) { return 1; }\nint f(int M) { return g(M, 2); }"
    ),
    "number that is not deduced": (
        "template<int N> int g(int x) { return N; }\nint f(int M) { return g(M); }"
    ),
    "loop that moves its counter": (
        "int f(int M) { int n = 0; for (int i = 0; i < 4; i++) { i += 1; n += M; } return n; }"
    ),
    "loop that moves its end": (
        "int f(int M) { int n = 4; for (int i = 0; i < n; i++) { n = n - 1; } return n + M; }"
    ),
    "loop over another name": (
        "int f(int M) { int n = 0; for (int i = 0; M < 4; i++) { n += 1; } return n; }"
    ),
    "loop with two counters": (
        "int f(int M) { int n = 0; for (int i = 0, j = 9; i < 4; i++) { n += j; } return n; }"
    ),
    "range loop": "int f(int M) { int n = 0; for (auto x : {1, 2}) { n += x; } return n; }",
    "method": "int f(int M) { return M.size(); }",
    "unknown literal": "double f(int M) { return M * 0x1p3; }",
    "octal mistake": "int f(int M) { return M + 08; }",
    "get of a name": "int f(int M) { return std::get<I>(M); }",
    "two arguments in parentheses": "int f(int M) { int x(1, 2); return x; }",
    "new": "int f(int M) { return *new int(M); }",
    "recursion": "int f(int M) { return f(M); }",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str) -> None:
    """An unknown construct is refused if the answer may depend on it."""
    with pytest.raises(SourceError):
        read_cpp(REFUSALS[name])


@pytest.mark.parametrize(
    "text",
    [
        "int f(int M) { return " + "(" * 3000 + "M" + ")" * 3000 + "; }",
        "int f(int M) { return " + "-" * 3000 + "M; }",
        "int f(int M) { return " + " + ".join(["M"] * 3000) + "; }",
        "int f(int M) " + "{" * 3000 + "return 1;" + "}" * 3000,
        "int f(int M) { if (M) " * 2000 + "return 1;" + "}" * 2000,
    ],
)
def test_deep_nesting(text: str) -> None:
    """A function that is nested too deeply is refused."""
    with pytest.raises(SourceError):
        read_cpp(text)


def test_quotes() -> None:
    """Each condition and value is quoted from its line."""
    rule = read_cpp("int f(int M) {\n  if (M < 3)\n    return 1;\n\n  return 2;\n}")
    assert [[q.lines for q in branch.quotes] for branch in rule.branches] == [
        [(2, 2), (3, 3)],
        [(2, 2), (5, 5)],
    ]


def test_spelling() -> None:
    """A rule in C++ has the digest of equal rules in other words, and of no other."""
    first = "int f(int M) { if (M <= 16) return 16; else if (M <= 64) return 64; return 128; }"
    second = (
        "int g(int x) { return x > 64 ? 128 : 64; }\n"
        "int f(int M) { const int small = 4 * 4; if (M > small) { return g(M); } return small; }"
    )
    assert read_cpp(first).meaning == read_cpp(second).meaning
    for old, new in (("64)", "63)"), ("<= 16", "< 16"), ("128", "127")):
        assert read_cpp(first.replace(old, new)).meaning != read_cpp(first).meaning


def test_unknown_code_is_opaque() -> None:
    """An unknown statement names all that it may change."""
    files = CppFiles({"rules.h": "void f(int M) { while (M > n) { M -= p.x; } }"})
    text = ast.unparse(translate(files, files.locate("f")))
    assert "opaque(" in text
    for name in ("M", "n", "p", "p_x"):
        assert name in text.split("',")[1]


def test_fields() -> None:
    """A structure's field is its own name; an unknown call changes all fields."""
    text = "int f(int M) { p.x = M; p.y = 3; return p.x + p.y; }"
    assert values(read_cpp(text), (4,)) == [7]
    with pytest.raises(SourceError):
        read_cpp("int f(int M) { p.x = M; change(p); return p.x; }")
