"""C++ files: functions, macros and parameters by name."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.source import (
    CppFiles,
    namespaces,
    parameter_names,
    specialised_for,
    template_parameters,
    text_of,
)


def files(text: str) -> CppFiles:
    """Return one file."""
    return CppFiles({"a.h": text})


@pytest.mark.parametrize(
    "text",
    [
        "int f(int x) { return 1; }",
        "namespace a { namespace b { int f(int x) { return 1; } } }",
        "template<int N> int f(int x) { return 1; }",
        'extern "C" { int f(int x) { return 1; } }',
        "#ifndef GUARD\n#define GUARD\nint f(int x) { return 1; }\n#endif",
        "static inline int f(int x) { return 1; }",
        "int f(int x);\nint f(int x) { return 1; }",
    ],
)
def test_located(text: str) -> None:
    """A function is found in namespaces, templates and guards; declarations do not count."""
    assert text_of(files(text).locate("f").node.child_by_field_name("body")) == "{ return 1; }"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int g() { return 1; }", "nowhere"),
        ("int f() { return 1; }\nint f(int x) { return 2; }", "a.h:1, a.h:2"),
        ("int f() { return = 1; }", "does not parse"),
        ("struct A { int f() { return 1; } };", "nowhere"),
        ("#ifdef SOMETHING\nint f() { return 1; }\n#endif", "nowhere"),
        ("#if SOMETHING\nint f() { return 1; }\n#endif", "nowhere"),
    ],
)
def test_not_located(text: str, says: str) -> None:
    """A function that is missing, ambiguous or not parsed is an error with its place."""
    cpp_files = files(text)
    with pytest.raises(SourceError, match=says):
        cpp_files.locate("f")


def test_alias_that_does_not_parse() -> None:
    """A type alias that does not parse does not hide the function around it."""
    text = "int f(int x) {\n  using A = T<(x > 3) && B<x < 2>::v>;\n  return 1;\n}"
    assert files(text).defines("f")


def test_size_limit() -> None:
    """A file of more than four megabytes is refused."""
    with pytest.raises(SourceError, match="larger than 4 MB"):
        files("// " + "x" * (5 << 20)).locate("f")


def test_deep_files() -> None:
    """A file nested without end is refused or read."""
    for text in ("namespace a { " * 3000 + "}" * 3000, "#ifdef A\n" * 3000 + "#endif\n" * 3000):
        with pytest.raises(SourceError):
            files(text).locate("f")


def test_macros() -> None:
    """Macros with parameters, and their aliases, are known by name."""
    macros = files("#define ONE(X, ...) [&] { return X; }()\n#define TWO ONE\n").macros
    assert macros["ONE"].parameters == ("X", "...")
    assert macros["TWO"] is macros["ONE"]


def test_parameters() -> None:
    """Parameters have name, default and type; those of templates have no type."""
    text = (
        "template<typename T, int N = 4, bool B>\n"
        "int f(const int &a, T *b, unsigned c = 3) { return 1; }"
    )
    node = files(text).locate("f").node
    assert [(n, text_of(d), k) for n, d, k in parameter_names(node)] == [
        ("a", "", "int"),
        ("b", "", "T"),
        ("c", "3", "unsigned"),
    ]
    assert [name for name, _ in template_parameters(node)] == ["T", "N", "B"]
    shown = [
        parameter if isinstance(parameter, str) else text_of(parameter)
        for _, parameter in template_parameters(node)
    ]
    assert shown == ["deduced", "4", "unknown"]


def test_places() -> None:
    """A function has its namespaces, a specialisation its arguments."""
    text = "namespace a::b { template<> void f<half, 64>(int x) { } }"
    node = files(text).definitions("f")[0].node
    assert namespaces(node) == {"a", "b"}
    assert [text_of(argument) for argument in specialised_for(node)] == ["half", "64"]
