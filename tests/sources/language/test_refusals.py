"""Constructs of Python outside the known set: each is refused by name."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.language import paths

from sources.language.rules import read_python, values

REFUSALS: dict[str, tuple[str, str]] = {
    "while": ("def f(M):\n    while M > 1:\n        M = M // 2\n    return M", "While"),
    "endless recursion": ("def f(M):\n    return f(M)", "without end"),
    "endless mutual recursion": (
        "def g(x):\n    return f(x)\ndef f(M):\n    return g(M)",
        "without end",
    ),
    "fan-out": (
        "\n".join(f"def g{n}(x):\n    return g{n + 1}(x) + g{n + 1}(x)" for n in range(30))
        + "\ndef g30(x):\n    return x\ndef f(M):\n    return g0(M)",
        "too large|do not end|not end",
    ),
    "doubling": ("def f(M):\n" + "    M = M + M\n" * 60 + "    return M", "too large"),
    "deep sum": ("def f(M):\n    return " + " + ".join(["M"] * 3000), "recursion|deep|too large"),
    "huge shift": ("def f(M):\n    return 10**9 << 10**9", "outside the known set"),
    "shift": ("def f(M):\n    return 1000000000 << 1000000000", "too large"),
    "text times number": ("def f(M):\n    return 'a' * M", "no arithmetic"),
    "nested loops": (
        (
            "def f(M):\n    n = 0\n    for a in range(100000):\n        for b in range(100000):\n"
            "            n += 1\n    return n"
        ),
        "does not iterate over a list",
    ),
    "endless helper": (
        (
            "def h(x):\n    for a in range(1000000000):\n        x += 0\n    return x\n"
            "def f(M):\n    return h(M)"
        ),
        "does not end",
    ),
    "many ways": (
        "def f(M):\n    x = 0\n"
        + "".join(f"    if M % {n + 2} == 0:\n        x += {1 << n}\n" for n in range(14))
        + "    return x",
        "more than 200 paths",
    ),
    "attribute": ("def f(M):\n    return M.__class__", "Attribute"),
    "dunder": ("def f(M):\n    return __import__('os').system('x')", "outside|unknown"),
    "walrus": ("def f(M):\n    if (M := 5) > 3:\n        pass\n    return M", "NamedExpr"),
    "comprehension": ("def f(M):\n    return [x for x in (1, M)]", "ListComp"),
    "generator": ("def f(M):\n    yield M", "yield M"),
    "try": (
        "def f(M):\n    try:\n        return 1\n    except ValueError:\n        return 2",
        "Try",
    ),
    "match": (
        "def f(M):\n    match M:\n        case 1:\n            return 1\n    return 2",
        "Match",
    ),
    "del": ("def f(M):\n    x = [1]\n    del x[0]\n    return len(x)", "Delete"),
    "with": ("def f(M):\n    with M as x:\n        return x", "With"),
    "global": ("N = 1\ndef f(M):\n    global N\n    N = 2\n    return N", "Global|unknown"),
    "nonlocal": (
        (
            "def f(M):\n    x = 1\n    def g():\n"
            "        nonlocal x\n        x = 2\n    g()\n    return x"
        ),
        "Nonlocal",
    ),
    "star argument": ("def f(M):\n    return max(*[1, M])", "Starred"),
    "star parameter": ("def g(*x):\n    return 1\ndef f(M):\n    return g(M)", "any number"),
    "unknown keyword": ("def g(x):\n    return 1\ndef f(M):\n    return g(x=M, y=2)", "outside"),
    "starred target": ("def f(M):\n    a, *b = (1, 2, M)\n    return a", "outside"),
    "slice": ("def f(M):\n    return (1, M, 2)[0:2]", "Slice"),
    "for else": (
        "def f(M):\n    for x in (1, 2):\n        pass\n    else:\n        return 1\n    return x",
        "does not run|outside",
    ),
    "decorated": ("@unsafe\ndef f(M):\n    return 1", "decorated by unsafe"),
    "decorated inside": (
        "def f(M):\n    @unsafe\n    def g(x):\n        return x\n    return g(M)",
        "outside the known set",
    ),
    "shared default": (
        "def g(x, seen=[]):\n    seen.append(x)\n    return len(seen)\ndef f(M):\n    return g(M)",
        "shared by all calls",
    ),
    "late default": (
        "def f(M):\n    n = 1\n    def g(x=n):\n        return x\n    n = 2\n    return g()",
        "outside the known set",
    ),
    "own min": ("def min(a, b):\n    return a\ndef f(M):\n    return min(M, 3)", "another meaning"),
    "own range": ("range = tuple\ndef f(M):\n    return len(range((1, M)))", "another meaning"),
    "imported round": (
        "from numpy import round\ndef f(M):\n    return round(M)",
        "another meaning",
    ),
    "parameter min": (
        "def g(min, x):\n    return min(x, 3)\ndef f(M):\n    return g(1, M)",
        "'min'",
    ),
    "local max": ("def f(M):\n    max = 3\n    return max(M, 2)", "'max'"),
    "own quotient": ("from x import quotient\ndef f(M):\n    return quotient(M, 2)", "quotient_of"),
    "our join": ("def join(a, b):\n    return a\ndef f(M):\n    return join(M, 1)", "join_of"),
    "constant twice": ("N = 1\nN = 2\ndef f(M):\n    return N", "'N' is unknown"),
    "constant in a branch": (
        "N = 1\nif True:\n    N = 2\ndef f(M):\n    return N",
        "'N' is unknown",
    ),
    "constant by global": (
        "N = 1\ndef g():\n    global N\n    N = 2\ndef f(M):\n    return N",
        "'N' is unknown",
    ),
    "constant imported over": ("N = 1\nfrom x import N\ndef f(M):\n    return N", "'N' is unknown"),
    "constant list changed": (
        "N = [1]\nN.append(2)\ndef f(M):\n    return len(N)",
        "'N' is unknown",
    ),
    "constant table changed": (
        "N = {'a': 1}\nN['a'] = 2\ndef f(M):\n    return N['a']",
        "'N' is unknown",
    ),
    "group in use": (
        "def f(M):\n    a = [1]\n    b = (a, 2)\n    a.append(M)\n    return len(b[0])",
        "in use|group",
    ),
    "list that holds itself": (
        "def f(M):\n    a = [1]\n    a.append(a)\n    return a == a",
        "deep|group",
    ),
    "index by an input": ("def f(M):\n    return [1, 2].index(M)", "outside|input"),
    "index among inputs": ("def f(M):\n    return [M, 8].index(8)", "depends on an input"),
    "past the end": ("def f(M):\n    x = (1, 2)\n    return x[2]", "not set"),
    "pop of nothing": ("def f(M):\n    x = []\n    return x.pop()", "no value"),
    "entry by an input": ("def f(M):\n    d = {}\n    d[M] = 1\n    return d", "cannot be set"),
    "augmented entry": (
        "def f(M):\n    d = {'a': 1}\n    d['a'] += M\n    return d['a']",
        "outside",
    ),
    "unknown method": (
        "def f(M):\n    d = {'a': 1}\n    d.update({'a': M})\n    return d['a']",
        "outside",
    ),
    "sort": ("def f(M):\n    x = [2, 1]\n    x.sort()\n    return x[0] + M", "outside"),
    "function as a value": (
        "def f(M):\n    def g():\n        return 1\n    return g",
        "as a value",
    ),
    "lambda": ("def f(M):\n    g = lambda x: x\n    return g(M)", "Lambda"),
    "async": ("def f(M):\n    async def g():\n        return 1\n    return M and g()", "Async"),
    "float text": ("def f(M):\n    return f'{M:3d}'", "outside"),
    "matrix product": ("def f(M):\n    return M @ M", "outside|no value"),
    "not a number": ("def f(M):\n    return float('nan') < M", "too large"),
    "too many arguments": ("def g(x):\n    return x\ndef f(M):\n    return g(M, 2)", "too many"),
    "missing argument": (
        "def g(x, y):\n    return y\ndef f(M):\n    return g(M)",
        "'y' is unknown",
    ),
    "set order": ("def f(M):\n    return tuple({1, 2})", "no value"),
    "identity of numbers": ("def f(M):\n    return M is 7", "singletons"),
    "import over a name": ("def f(M):\n    from x import M\n    return M", "hides"),
    "huge text": (
        "def f(M):\n    x = 'a'\n" + "    x = x.replace('a', 'aa')\n" * 40 + "    return len(x)",
        "too large",
    ),
    "huge list": ("def f(M):\n    return [" + "1, " * 6000 + "M]", "too large"),
    "nested tuples": (
        "def f(M):\n    x = (M,)\n" + "    x = (x, x)\n" * 40 + "    return x",
        "too large",
    ),
    "deep ifs": (
        "def f(M):\n"
        + "".join("    " * (n + 1) + f"if M > {n}:\n" for n in range(90))
        + "    " * 91
        + "return 1\n    return 0",
        "",
    ),
}


@pytest.mark.parametrize("name", [case for case in REFUSALS if case != "deep ifs"])
def test_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A construct outside the known set is an error that names it."""
    monkeypatch.setattr(paths, "PATHS_LIMIT", 200)
    text, says = REFUSALS[name]
    with pytest.raises(SourceError, match=says):
        read_python(text)


@pytest.mark.slow
def test_nested_conditions_are_read() -> None:
    """Nested conditions are read as deep as Python's parser allows."""
    assert values(read_python(REFUSALS["deep ifs"][0]))[-1] == 1
