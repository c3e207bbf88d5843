"""Rules read in both ways: made-up Python sources with known answers."""

from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.language import reading as reading_module
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.program import Program
from nearfree.sources.language.reading import axis_points, condition_text, read_rule
from nearfree.sources.language.statements import REFUSED

from sources.language.rules import POINTS, python_program, read_python, reading, values

STEPS = "def f(M):\n    if M <= 16:\n        return 16\n    elif M <= 64:\n        return 64\n"
RIGHT: dict[str, tuple[str, list[Any]]] = {
    "elif": (STEPS + "    return 128", [16, 16, 16, 16, 16, 64, 64, 128]),
    "ternaries": (
        "def f(M):\n    return 1 if M < 3 else 2 if M < 17 else 3",
        [1, 1, 2, 2, 2, 3, 3, 3],
    ),
    "operands": ("def f(M):\n    return (M - 1) and 5 or M", [1, 5, 5, 5, 5, 5, 5, 5]),
    "last constant": ("def f(M):\n    return M > 2 and True", [False, False] + [True] * 6),
    "constant last of numbers": ("def f(M):\n    return M - 1 and True", [0] + [True] * 7),
    "negative division": (
        "def f(M):\n    return (3 - M) // 2, (3 - M) % 4",
        [((3 - m) // 2, (3 - m) % 4) for m in POINTS],
    ),
    "true division": ("def f(M):\n    return M / 2", [m / 2 for m in POINTS]),
    "chained": ("def f(M):\n    return 2 < M <= 16", [2 < m <= 16 for m in POINTS]),
    "negated chain": (
        "def f(M):\n    if not 2 < M <= 16:\n        return 0\n    return 1",
        [int(2 < m <= 16) for m in POINTS],
    ),
    "list of sizes": (
        (
            "def f(M):\n    for size in [4, 16, 64]:\n        if M <= size:\n            break\n"
            "    return size"
        ),
        [4, 4, 4, 16, 16, 64, 64, 64],
    ),
    "continue": (
        (
            "def f(M):\n    found = 0\n    for size in (4, 16, 64):\n        if size < M:\n"
            "            continue\n        found += size\n    return found"
        ),
        [84, 84, 84, 80, 80, 64, 64, 0],
    ),
    "return in a loop": (
        "def f(M):\n    for size in (4, 16):\n        if M <= size:\n            return size",
        [4, 4, 4, 16, 16, None, None, None],
    ),
    "closure": (
        "def f(M):\n    def up(x):\n        return x + M\n    M = M * 2\n    return up(1)",
        [2 * m + 1 for m in POINTS],
    ),
    "default argument": (
        (
            "SIZE = 8\ndef up(x, y=SIZE * 2):\n    return x + y\n"
            "def f(M):\n    return up(M), up(M, y=1)"
        ),
        [(m + 16, m + 1) for m in POINTS],
    ),
    "helper with returns": (
        (
            "def h(x):\n    if x > 16:\n        return 'big'\n    return 'small'\n"
            "def f(M):\n    kind = h(M * 2)\n    return 1 if kind == 'big' else 0"
        ),
        [0, 0, 0, 0, 1, 1, 1, 1],
    ),
    "helper with a loop": (
        (
            "def up(x):\n    n = 1\n    for _ in range(20):\n"
            "        if n < x:\n            n = n * 2\n"
            "    return n\ndef f(M):\n    return up(M) if M > 2 else 0"
        ),
        [0, 0, 4, 8, 16, 32, 64, 128],
    ),
    "dictionary": (
        (
            "def f(M):\n    d = {'a': 1, 'b': M}\n"
            "    if M > 16:\n        d['b'] = 2\n    return d['b']"
        ),
        [1, 2, 3, 5, 16, 2, 2, 2],
    ),
    "alias of a dictionary": (
        "def f(M):\n    a = {'x': 1}\n    b = a\n    b['x'] = M\n    return a['x']",
        list(POINTS),
    ),
    "alias of a list": (
        "def f(M):\n    a = [1]\n    b = a\n    b.append(M)\n    return a[-1]",
        list(POINTS),
    ),
    "list given to a helper": (
        (
            "def add(group, x):\n    group.append(x)\ndef f(M):\n"
            "    a = []\n    add(a, M)\n    return a[0]"
        ),
        list(POINTS),
    ),
    "list changed in an assignment": (
        "def f(M):\n    a = [1, 2, 3]\n    b = a.pop()\n    return len(a) + M",
        [m + 2 for m in POINTS],
    ),
    "choice that pops": (
        "def f(M):\n    a = [1, 2]\n    b = a.pop() if M > 16 else 0\n    return len(a), b",
        [(1, 2) if m > 16 else (2, 0) for m in POINTS],
    ),
    "assertion": (
        "def f(M):\n    assert M < 17, 'too many'\n    return M",
        [1, 2, 3, 5, 16, REFUSED, REFUSED, REFUSED],
    ),
    "refusing helper on one side": (
        (
            "def h(x):\n    if x > 3:\n        raise ValueError(x)\n    return x\n"
            "def f(M):\n    return h(M) if M < 3 else 0"
        ),
        [1, 2, 0, 0, 0, 0, 0, 0],
    ),
    "refusing helper after and": (
        "def h(x):\n    assert x < 3\n    return True\ndef f(M):\n    return M < 3 and h(M)",
        [True, True] + [False] * 6,
    ),
    "refusing helper with a loop": (
        (
            "def h(x):\n    for i in range(3):\n"
            "        if x > 16:\n            raise ValueError(x)\n"
            "    return x\ndef f(M):\n    if h(M) > 2:\n        return 1\n    return 0"
        ),
        [0, 0, 1, 1, 1, REFUSED, REFUSED, REFUSED],
    ),
    "formatted": (
        "def f(M):\n    tail = ',x' if M > 3 else ''\n    return f'M={M}{tail}.json'",
        [f"M={m}{',x' if m > 3 else ''}.json" for m in POINTS],
    ),
    "membership": ("def f(M):\n    return M in [1, 3, 64]", [m in (1, 3, 64) for m in POINTS]),
    "tuple": (
        "def f(M):\n    a, b = (M, 2)\n    a, b = b, a\n    return a - b",
        [2 - m for m in POINTS],
    ),
    "different kinds": (
        (
            "def f(M):\n    if M > 3:\n        x = [1, 2]\n"
            "    else:\n        x = 'ab'\n    return len(x) + M"
        ),
        [m + 2 for m in POINTS],
    ),
    "string precedence": (
        "def f(M):\n    return -(M - 1) * (2 + M)",
        [-(m - 1) * (2 + m) for m in POINTS],
    ),
    "nothing returned": ("def f(M):\n    if M > 3:\n        return 1", [None] * 3 + [1] * 5),
    "loop variable after the loop": (
        "def f(M):\n    x = 0\n    for x in (1, 2):\n        pass\n    return x + M",
        [m + 2 for m in POINTS],
    ),
    "annotated": ("def f(M):\n    x: int = M\n    x *= 2\n    return x", [2 * m for m in POINTS]),
    "harmless calls": (
        "def f(M):\n    unused = [1]\n    return M",
        list(POINTS),
    ),
    "constant of the module": (
        "N: int = 1 << 4\ndef f(M):\n    return M > N",
        [m > 16 for m in POINTS],
    ),
    "local hides a constant": (
        "N = 4\ndef f(M):\n    N = 2\n    return M * N",
        [2 * m for m in POINTS],
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    """A rule within the known set has Python's values."""
    text, expected = RIGHT[name]
    assert values(read_python(text)) == expected


def test_the_two_ways_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point at which the two ways differ refuses the rule by name."""
    old = Interpreter.run

    def wrong(interpreter: Interpreter, name: str, inputs: dict[str, Any]) -> Any:
        return old(interpreter, name, inputs) + (inputs["M"] == 23)

    monkeypatch.setattr(Interpreter, "run", wrong)
    reading_module._COMPARISONS.clear()
    with pytest.raises(SourceError, match="differ at M=23"):
        read_python("def f(M):\n    return 3")
    reading_module._COMPARISONS.clear()


def test_a_difference_of_type_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """True is not 1, inside a tuple, too."""
    monkeypatch.setattr(reading_module, "_entry_of_interest", lambda *_: (True,))
    reading_module._COMPARISONS.clear()
    with pytest.raises(SourceError, match="differ"):
        read_python("def f(M):\n    return (1,)")
    reading_module._COMPARISONS.clear()


SAME = [
    (STEPS + "    return 128", "nested and named"),
    (
        (
            "A, B = 1, 2\nSMALL = 16\nBIG = SMALL * 4\ndef f(M):\n    if M > SMALL:\n"
            "        if M > BIG:\n            return BIG * 2\n        return BIG\n    return SMALL"
        ),
        "named",
    ),
    (
        (
            "def f(M):\n    for size in [16, 64]:\n        if M <= size:\n            return size\n"
            "    return 128"
        ),
        "loop",
    ),
    ("def f(M):\n    return 16 if M < 17 else 64 if not M > 64 else 128", "ternary"),
    (
        (
            "def h(x):\n    return 64 if x <= 64 else 128\n"
            "def f(M):\n    return h(M) if M > 16 else 16"
        ),
        "helper",
    ),
]


def test_meaning_does_not_depend_on_spelling() -> None:
    """Rules with equal answers have one digest."""
    assert len({read_python(text).meaning for text, _ in SAME}) == 1


@pytest.mark.parametrize(
    ("text", "old"), [(text, old) for text, _ in SAME for old in ("16", "64", "128") if old in text]
)
def test_meaning_depends_on_every_constant(text: str, old: str) -> None:
    """A rule with one constant changed has another digest."""
    first = text.index(old)
    changed = text[:first] + str(int(old) - 1) + text[first + len(old) :]
    assert read_python(changed).meaning != read_python(text).meaning


def test_constants_are_told_apart() -> None:
    """Modules with swapped values of two constants are two rules."""
    text = "A = {}\nB = {}\ndef f(M):\n    return A * 2 + B"
    assert read_python(text.format(1, 2)).meaning != read_python(text.format(2, 1)).meaning


def test_points() -> None:
    """A rule is tried densely, and at each constant and its neighbours and products."""
    program = reading(python_program("def f(M, n):\n    return M > 1000 * n"), contexts=[{"n": 3}])
    points = axis_points(program, {"n": 3})
    assert {999, 1000, 1001, 2999, 3000, 3001, 1024, *range(1, 40)} <= {*points}
    assert all(1 <= point <= 1 << 17 for point in points)


def test_too_many_points() -> None:
    """A source with too many constants to try is refused."""
    numbers = ", ".join(map(str, range(0, 130000, 5)))
    with pytest.raises(SourceError):
        read_python(f"def f(M):\n    return M in ({numbers})")


def test_huge_constants_are_no_points() -> None:
    """A constant beyond all numbers is refused."""
    with pytest.raises(SourceError, match="too large"):
        read_python("def f(M):\n    return M > 1e999")


def test_one_entry() -> None:
    """Of a dictionary one entry is the answer; a path without it is an error."""
    text = "def f(M):\n    d = {'a': M, 'b': 1}\n    if M > 3:\n        d = {'a': 2}\n    return d"
    assert values(read_python(text, key="a")) == [1, 2, 3, 2, 2, 2, 2, 2]
    with pytest.raises(SourceError):
        read_python(text, key="c")


def test_quotes_point_at_true_lines() -> None:
    """Each branch quotes the lines of its conditions and its value."""
    rule = read_python(STEPS + "    return 128")
    by_value = {branch.value: branch.quotes for branch in rule.branches}
    assert [(q.lines, q.text) for q in by_value["128"]] == [
        ((2, 2), "if M <= 16:"),
        ((4, 4), "elif M <= 64:"),
        ((6, 6), "return 128"),
    ]
    assert all(q.file == "package/rules.py" for quotes in by_value.values() for q in quotes)


def test_shown() -> None:
    """A branch's conditions are shown as one text, with `or` in parentheses."""
    rule = read_python("def f(M):\n    if M < 3 or M > 64:\n        return 1\n    return 2")
    assert condition_text(rule.branches[0]) == "(M < 3 or M > 64)"
    assert condition_text(read_python("def f(M):\n    return 1").branches[0]) == "always"


def test_unused_inputs_are_left_out() -> None:
    """A rule's inputs are those that its branches use."""
    rule = read_python("def f(M, n):\n    return M", contexts=[{"n": 1, "k": 2}])
    assert rule.inputs == ("M",)


def test_unknown_root() -> None:
    """An unknown function is an error."""
    with pytest.raises((SourceError, KeyError)):
        read_rule(reading(Program()), "package", "1.0")
