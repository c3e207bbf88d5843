"""Conditional compilation: the lines that facts leave."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.cpp.conditions import Conditions, OpenConditionError, truth_of_fact

WIDTHS = """\
#if defined(__ARM_NEON) || defined(__AVX512F__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
int tile() {
#if REGISTERS == 32
    return 6;
#elif defined(__AVX2__) && !defined(_MSC_VER)
    return 3;
#else
    return 1;
#endif
}
"""


def kept(text: str, **known: bool) -> list[str]:
    """Return the lines that are compiled, without blank ones."""
    conditions = Conditions("a.c", text)
    compiled = conditions.compiled(known, [(1, text.count("\n"))])
    assert compiled.count("\n") == text.count("\n"), "each line stays where it stands"
    return compiled.split()


def test_facts_decide_what_is_compiled() -> None:
    """A conditional macro decides others; code for other processors is left out."""
    assert "6;" in kept(WIDTHS, avx512f=True)
    assert "3;" in kept(WIDTHS, avx512f=False, avx2=True)
    assert "1;" in kept(WIDTHS, avx512f=False, avx2=False)


def test_an_open_fact_is_asked_for() -> None:
    """A condition on an unknown fact is refused with its name and line."""
    with pytest.raises(OpenConditionError) as refusal:
        kept(WIDTHS)
    assert (refusal.value.fact, refusal.value.line) == ("avx512f", 1)


def test_lines_outside_ask_for_nothing() -> None:
    """A condition around no needed line needs no fact."""
    text = "#ifdef __AVX2__\nint a;\n#endif\nint b;\n"
    assert Conditions("a.c", text).compiled({}, [(4, 4)]).split() == ["int", "b;"]


def test_an_unknown_macro_is_refused() -> None:
    """An unlisted macro is refused."""
    with pytest.raises(SourceError, match=r"a\.c:1 depends on MY_OPTION"):
        kept("#ifdef MY_OPTION\nint a;\n#endif\n")


def test_what_a_build_defines_is_given() -> None:
    """A macro that the build defines has the reader's value."""
    conditions = Conditions("a.c", "#if MY_OPTION\nint a;\n#endif\n", {"MY_OPTION": True})
    assert conditions.compiled({}, [(1, 3)]).split() == ["int", "a;"]


@pytest.mark.parametrize("text", ["#if A(1)\nint a;\n#endif\n", "#if 1 +\nint a;\n#endif\n"])
def test_an_odd_condition_is_refused(text: str) -> None:
    """A condition of another form is refused."""
    with pytest.raises(SourceError, match="of no known form"):
        kept(text)


@pytest.mark.parametrize("text", ["#if 1\nint a;\n", "int a;\n#endif\n", "#else\n"])
def test_conditions_must_end(text: str) -> None:
    """An unbalanced condition refuses the file."""
    with pytest.raises(SourceError):
        kept(text)


def test_a_macro_that_stands_for_itself_ends() -> None:
    """Macros that define each other are refused."""
    text = "#if A\n#define A 1\n#endif\n#if A\nint a;\n#endif\n"
    assert kept(text) == []


def test_nothing_inside_a_closed_condition_is_asked_for() -> None:
    """In `a && b` the second is needed only if the first holds."""
    text = "#if 0\n#if defined(__AVX2__)\nint a;\n#endif\n#endif\nint b;\n"
    assert kept(text) == ["int", "b;"]
    text = "#if defined(_MSC_VER) && defined(__AVX2__)\nint a;\n#endif\n"
    assert kept(text) == []


@pytest.mark.parametrize(
    ("fact", "known", "answer"),
    [
        ("avx2", {"avx512f": True}, True),
        ("avx", {"avx512bf16": True}, True),
        ("avx512bf16", {"avx2": False}, False),
        ("avx512f", {"avx2": True}, None),
        ("f16c", {"avx2": True}, None),
    ],
)
def test_a_compiler_takes_some_for_granted(
    fact: str,
    known: dict[str, bool],
    answer: bool | None,  # noqa: FBT001 (pytest gives it by name)
) -> None:
    """Wider vectors imply the narrower ones, and missing narrower ones exclude wider ones."""
    assert truth_of_fact(fact, known) is answer
