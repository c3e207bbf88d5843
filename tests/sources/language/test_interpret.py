"""The interpreter: a closed set of statements with limits."""

from typing import Any

import pytest
from nearfree.sources.language.expressions import UnknownConstructError
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.statements import REFUSED

from sources.language.rules import python_program, stepped


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("def f(M):\n    x = [0, 0]\n    x[1] = M\n    return x[1]", 5),
        ("def f(M):\n    for i in range(9):\n        if i * i > M:\n            return i", 3),
        ("def f(M):\n    a = b = M\n    a += 1\n    return a, b", (6, 5)),
        ("def f(M):\n    (a, b), c = (M, 2), 3\n    return a + b + c", 10),
        ("def f(M):\n    'A text.'\n    pass\n    return None", None),
        ("def f(M):\n    if M > 9:\n        return 1", None),
        ("def f(M):\n    raise ValueError(M)", REFUSED),
        ("def g(x):\n    raise ValueError(x)\ndef f(M):\n    return 1 + g(M)", REFUSED),
        ("def f(M):\n    x = [3, 1]\n    x.remove(3)\n    return x.index(1)", 0),
        ("def f(M, n=7):\n    return n", 7),
        ("def f(M):\n    import os\n    from x import y\n    return M", 5),
        ("def f(M):\n    def g():\n        return M\n    M = 6\n    return g()", 6),
        ("def f(M):\n    def g():\n        M = 6\n        return M\n    return g() + M", 11),
        ("def f(M):\n    return [M * i for i in range(4) if i != 2]", [0, 5, 15]),
        ("def f(M):\n    return [i + j for i in (1, M) for j in range(i) if j > 2]", [8, 9]),
        ("def f(M):\n    i = 1\n    x = [i for i in range(M)]\n    return i + len(x)", 6),
        ("N = 2\ndef f(M):\n    return sorted({i // N for i in range(M)})", [0, 1, 2]),
        (
            "def f(M):\n    def g(i):\n        return i + M\n    return [g(i) for i in [1, 2]]",
            [6, 7],
        ),
        ("def f(M):\n    return [1] + list(range(2, M)) + [M]", [1, 2, 3, 4, 5]),
        ("def f(M):\n    x = [1]\n    y = x\n    x += [M]\n    return y", [1, 5]),
        ("def f(M):\n    x = list(range(2))\n    x.append(M)\n    return len(list(range(2)))", 2),
        ("def f(M):\n    return sorted(set([M, 1, M]))", [1, 5]),
        ("def f(M):\n    return [i * j for i, j in [(2, M), (3, 1)]]", [10, 3]),
    ],
)
def test_value(text: str, value: Any) -> None:
    """A function's value at M = 5 is Python's."""
    assert stepped(text, M=5) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(M):\n    for i in range(10**9):\n        pass", "outside the known set"),
        (
            "def f(M):\n    for i in range(1000000000):\n        M += 0\n    return M",
            "does not end",
        ),
        ("def f(M):\n    x = [1]\n    for i in x:\n        x.append(i)", "too large|does not end"),
        ("def f(M):\n    return f(M)", "without end"),
        ("def f(M):\n    x = [1]\n    x[5] = 1", "cannot be set"),
        ("def f(M):\n    x = {}\n    x[[1]] = 1", "cannot be set"),
        ("def f(M):\n    x = (1, 2)\n    x[0] = 1", "cannot be set"),
        ("def f(M):\n    x = [1]\n    x[0] = x", "group into a group"),
        ("def f(M):\n    a, b = (1, 2, 3)", "outside the known set"),
        ("def f(M):\n    M.x = 1", "outside the known set"),
        ("def f(M):\n    x = 1\n    x **= 9", "outside the known set"),
        ("def f(M):\n    for i in M:\n        pass", "outside the known set"),
        ("def f(M):\n    M(1)", "unknown"),
        ("def f(M):\n    print(M)", "unknown"),
        ("N = 2\ndef f(M):\n    return N(1)", "unknown"),
        ("def f(M):\n    return [i for i in range(5000)]", "outside the known set"),
        ("def f(M):\n    return [i for i in range(99) for j in range(99)]", "too large"),
        (
            "def f(M):\n    return [0 for i in range(999) for j in range(999) if j < 0]",
            "does not end",
        ),
        ("def f(M):\n    return [[i] for i in range(2)]", "group into a group"),
        ("def f(M):\n    return [i for (i, j), k in [(1, 2)]]", "outside the known set"),
        ("def f(M):\n    return [i for i, j in [(1, 2, 3)]]", "no value"),
        ("def f(M):\n    return list({1, 2})", "no order"),
        ("def f(M):\n    x = [1]\n    x += 1", "adds no list"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """An unknown statement, and an endless run, are errors."""
    with pytest.raises(UnknownConstructError, match=says):
        stepped(text, M=5)


def test_calls_by_value() -> None:
    """A function can be called with given values."""
    program = python_program("def g(x, y=2):\n    return x * y\ndef f(M):\n    return g(M)")
    interpreter = Interpreter(program)
    assert interpreter.call("g", [3]) == 6
    with pytest.raises(UnknownConstructError, match="too many"):
        interpreter.call("g", [1, 2, 3])


def test_names_of_the_module_come_before_inputs() -> None:
    """An input never replaces a name of the module."""
    text = "N = 4\ndef g():\n    return N\ndef f(M):\n    return g()"
    assert stepped(text, M=1, N=9) == 4
