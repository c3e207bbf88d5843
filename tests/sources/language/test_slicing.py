"""Slicing: what an answer may depend on stays, and all else goes."""

from textwrap import indent

import pytest

from sources.language.rules import sliced


@pytest.mark.parametrize(
    "lines_kept",
    [
        "a = [1]\nb = a\nb.append(M)\nreturn len(a)",
        "a = [1]\nb = a.pop()\nreturn len(a)",
        "a = {}\na.update(x)\nreturn a",
        "a = [1]\nb = change(a)\nreturn a",
        "change(a)\nreturn a",
        "x = 1\nif (x := 2):\n    pass\nreturn x",
        "x = 1\nfor x in (1, 2):\n    pass\nreturn x",
        "for i in (1, 2):\n    if i > M:\n        return 1\nreturn 2",
        "while M > 3:\n    return 1\nreturn 2",
        "x = 1\nx += 2\nreturn x",
        "x, y = (1, 2)\nreturn x",
        "try:\n    y = 1\nexcept ValueError:\n    return 2\nreturn 1",
        "with y as x:\n    pass\nreturn x",
        "\ndef g():\n    return M\nreturn g()",
        "a = [1]\na[0] = 2\nreturn a",
        "del x\nreturn x",
        "global x\nreturn x",
        "assert M\nreturn 1",
        "raise ValueError\nreturn 1",
        "M.append(3)\nreturn 1",
        "M[0] = 3\nreturn 1",
    ],
)
def test_kept(lines_kept: str) -> None:
    """A statement that may change the answer, or what a caller handed in, is never dropped."""
    text = "def f(M):\n" + indent(lines_kept, "    ")
    assert sliced(text) == text


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = M\nreturn M", "return M"),
        ("y = [1]\ny.append(2)\nreturn M", "return M"),
        ("logger.info(M)\nreturn M", "return M"),
        ("print(M)\nreturn M", "return M"),
        ("if M > 3:\n    y = 1\nreturn M", "return M"),
        ("for i in (1, 2):\n    y = i\nreturn M", "return M"),
        ("while y:\n    y -= 1\nreturn M", "return M"),
        ("import os\nreturn M", "return M"),
        ("def g():\n    return 1\nreturn M", "return M"),
        ("y = 1\nz = y\nx = 2\nreturn x", "x = 2\nreturn x"),
        ("'A text.'\nreturn M", "return M"),
        ("y = helper(M)\nreturn M", "return M"),
    ],
)
def test_dropped(body: str, left: str) -> None:
    """A statement that sets and changes nothing that the answer needs is dropped."""
    head = "def f(M):\n"
    given = head + "\n".join(f"    {line}" for line in body.splitlines())
    assert sliced(given) == head + "\n".join(f"    {line}" for line in left.splitlines())


def test_one_entry() -> None:
    """Where one entry of a dictionary is asked for, the others go with what they need."""
    text = (
        "def f(M):\n    n = M\n    d = {'a': 1, 'b': n}\n    d['b'] = 2\n"
        "    if M > 3:\n        d['a'] = 5\n    return d"
    )
    assert sliced(text, "a") == (
        "def f(M):\n    d = {'a': 1}\n    if M > 3:\n        d['a'] = 5\n    return d"
    )


def test_entry_with_an_effect() -> None:
    """An assignment to another entry stays where its value changes something."""
    text = (
        "def f(M):\n    g = [1]\n    d = {}\n"
        "    d['b'] = g.pop()\n    d['a'] = len(g)\n    return d"
    )
    assert sliced(text, "a") == text


def test_checks() -> None:
    """Assertions can be left out, unless they set a name."""
    text = "def f(M):\n    assert M\n    assert (x := M)\n    return x"
    assert sliced(text, checks=False) == "def f(M):\n    assert (x := M)\n    return x"
