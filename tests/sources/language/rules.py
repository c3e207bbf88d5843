"""Made-up sources read as rules, shared by the language's tests."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nearfree.log.events import RuleExtracted
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.program import Function, Program
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Reading, read_rule
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.slicing import slice_to

PATH = "package/rules.py"
POINTS = (1, 2, 3, 5, 16, 17, 64, 100)


def python_program(text: str, leaves: Mapping[str, str] | None = None) -> Program:
    """Return the program of a function `f` and what it reaches."""
    return Modules({PATH: text}).program(["f"], leaves or {})[0]


def function(text: str) -> Function:
    """Return the one function of a text, each node with its place."""
    node = Modules({PATH: text}).locate(["f"])[1]
    assert isinstance(node, ast.FunctionDef)
    return node


def reading(program: Program, root: str = "f", **changes: Any) -> Reading:
    """Return a reading of a function over M."""
    given: dict[str, Any] = {"axis": "M", "contexts": [{}], "dense": range(1, 40)} | changes
    return Reading(rule="rule", program=program, root=root, **given)


def read_python(text: str, **changes: Any) -> RuleExtracted:
    """Return the rule of a Python function `f`."""
    return read_rule(reading(python_program(text), **changes), "package", "1.0")


def read_cpp(
    text: str,
    root: str = "f",
    *,
    meaning: Meaning | None = None,
    leaves: Mapping[str, str] | None = None,
    **changes: Any,
) -> RuleExtracted:
    """Return the rule of a C++ function."""
    program, name = cpp_program(
        CppFiles({"rules.h": text}), root, leaves=leaves or {}, meaning=meaning
    )
    return read_rule(
        reading(program, name, **({"interpret_whole": False} | changes)), "package", "1.0"
    )


def values(rule: RuleExtracted, points: Sequence[int] = POINTS, **inputs: Any) -> list[Any]:
    """Return a rule's values at some M."""
    ready = Rule(rule)
    return [ready.value({"M": point, **inputs}).value for point in points]


def stepped(text: str, **inputs: Any) -> Any:
    """Return the interpreter's value of a Python function `f`."""
    return Interpreter(python_program(text)).run("f", inputs)


def sliced(text: str, key: str | None = None, *, checks: bool = True) -> str:
    """Return a Python function `f` cut to its answer."""
    return ast.unparse(slice_to(function(text), key, checks=checks))
