"""Python sources: each name must have one certain definition."""

import ast
from typing import Any

import pytest
from nearfree.errors import SourceError
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.python_source import Modules


def run(files: dict[str, str], **inputs: Any) -> Any:
    """Return the value of the function `f` among some files."""
    program, root = Modules(files).program(["f"], {})
    return Interpreter(program).run(root, inputs)


HELPERS = "def up(x):\n    return x + 1\ndef down(x):\n    return x - 1\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("from pkg.helpers import up\ndef f(M):\n    return up(M)", 6),
        ("from .helpers import up\ndef f(M):\n    return up(M)", 6),
        ("from pkg import up\ndef f(M):\n    return up(M)", 6),
        ("def f(M):\n    from pkg.helpers import up\n    return up(M)", 6),
        ("def up(x):\n    return 0\ndef f(M):\n    return up(M)", 0),
    ],
)
def test_found(text: str, value: int) -> None:
    """A function is found in its file or by its import."""
    assert run({"pkg/rules.py": text, "pkg/helpers.py": HELPERS}, M=5) == value


@pytest.mark.parametrize(
    "text",
    [
        "from other.place import up\ndef f(M):\n    return up(M)",
        "from pkg.helpers import down as up\ndef f(M):\n    return up(M)",
        "def f(M):\n    return up(M)",
        "from pkg.helpers import up\nup = wrapped(up)\ndef f(M):\n    return up(M)",
        (
            "def up(x):\n    return 0\nif cond:\n    def up(x):\n"
            "        return 1\ndef f(M):\n    return up(M)"
        ),
        "def up(x):\n    return 0\nup = wrapped(up)\ndef f(M):\n    return up(M)",
        (
            "def up(x):\n    return 0\ntry:\n    from x import up\n"
            "except E:\n    pass\ndef f(M):\n    return up(M)"
        ),
        "def up(x):\n    return 0\nclass up:\n    pass\ndef f(M):\n    return up(M)",
        (
            "def up(x):\n    return 0\ndef g():\n    global up\n"
            "    up = 1\ndef f(M):\n    return up(M)"
        ),
        "def f(M):\n    return 1\ndef f(M):\n    return 2",
    ],
)
def test_not_sure(text: str) -> None:
    """A name that is bound elsewhere, twice, or nowhere is refused."""
    with pytest.raises(SourceError):
        run({"pkg/rules.py": text, "pkg/helpers.py": HELPERS}, M=5)


def test_one_name_two_things() -> None:
    """A name with two meanings is refused."""
    files = {
        "pkg/rules.py": "from .helpers import up\nN = 1\ndef f(M):\n    return up(M) + N",
        "pkg/helpers.py": "N = 2\ndef up(x):\n    return x * N",
    }
    with pytest.raises(SourceError, match="several things"):
        run(files, M=5)


def test_constants_of_another_file() -> None:
    """A helper uses the constants of its own file."""
    files = {
        "pkg/rules.py": "from .helpers import up\ndef f(M):\n    return up(M)",
        "pkg/helpers.py": "N = 2\ndef up(x):\n    return x * N",
    }
    assert run(files, M=5) == 10


@pytest.mark.parametrize(
    ("call", "value"),
    [("g(1, 2)", (1, 2, 7)), ("g(1, c=2)", (1, 3, 2)), ("g(b=1, a=2)", (2, 1, 7))],
)
def test_arguments_by_name(call: str, value: tuple[int, ...]) -> None:
    """Arguments that are given by name take their places."""
    text = f"def g(a, b=3, *, c=7):\n    return a, b, c\ndef f(M):\n    return {call}"
    assert run({"rules.py": text}, M=5) == value


@pytest.mark.parametrize("call", ["g(1, d=2)", "g(1, a=2)", "g(b=2)", "g(**M)", "g(*M)"])
def test_arguments_that_do_not_fit(call: str) -> None:
    """Arguments that fit no parameter are refused."""
    text = f"def g(a, b=3):\n    return a, b\ndef f(M):\n    return {call}"
    with pytest.raises(SourceError):
        run({"rules.py": text}, M=5)


def test_locate() -> None:
    """A function is located by any of its names; the error says where it is defined."""
    modules = Modules({"a.py": "def new():\n    pass", "b.py": "\ndef old():\n    pass"})
    assert modules.locate(["new", "newer"])[0] == "a.py"
    with pytest.raises(SourceError, match=r"a\.py:1, b\.py:2"):
        modules.locate(["new", "old"])
    with pytest.raises(SourceError, match="nowhere"):
        modules.locate(["none"])


def test_find_method_and_having() -> None:
    """A method, and the one function that assigns a name, are found if there is one."""
    text = "class A(B):\n    def m(self):\n        pass\ndef g():\n    x = 1\ndef h():\n    y = 1"
    modules = Modules({"a.py": text})
    assert modules.find("g") is not None
    assert modules.find("nothing") is None
    assert modules.method("A", "m") is not None
    assert modules.method("A", "n") is None
    node = modules.function_assigning("x")
    assert node is not None
    assert node[1].name == "g"
    assert modules.function_assigning("z") is None
    with pytest.raises(SourceError, match="y is assigned in h and i"):
        Modules({"a.py": text + "\ndef i():\n    y = 2"}).function_assigning("y")


def test_damaged() -> None:
    """A file that is no Python is an error by name, if it is needed."""
    modules = Modules({"bad.py": "def f(:", "good.py": "def g():\n    return 1"})
    assert modules.locate(["g"])[0] == "good.py"
    with pytest.raises(SourceError, match=r"bad\.py is not Python"):
        modules.tree("bad.py")


def test_trees_stay() -> None:
    """Reading a rule does not change the parsed file."""
    modules = Modules({"a.py": "def g(a, b):\n    return a\ndef f(M):\n    return g(b=1, a=M)"})
    before = ast.dump(modules.tree("a.py"))
    modules.program(["f"], {"M": "3"})
    assert ast.dump(modules.tree("a.py")) == before
