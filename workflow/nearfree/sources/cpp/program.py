"""A C++ rule with all that it reaches, in normal form."""

import ast
from collections.abc import Mapping

from nearfree.sources.cpp.records import thread_records
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.cpp.translate import ENDS, Meaning, translate
from nearfree.sources.language.expressions import parse
from nearfree.sources.language.functions import BUILTINS
from nearfree.sources.language.program import Function, Leaves, Program, at, replace_leaves


def cpp_program(
    files: CppFiles,
    *names: str,
    leaves: Leaves,
    own: Leaves | None = None,
    meaning: Meaning | None = None,
    made: Mapping[str, Function] | None = None,
    constants: Mapping[str, str] | None = None,
) -> tuple[Program, str]:
    """Return a function with the functions that it reaches, and its name.

    Parameters
    ----------
    files
        The release's C++ files.
    names
        Names that the function goes by; one must be defined, once.
    leaves
        What the rule asks of the world around it.
    own
        What stands for such a fact in the function itself alone, such as a local name.
    meaning
        What calls mean beyond the language.
    made
        Functions that a reader put together from what it found elsewhere.
    constants
        Expressions for names that carry nothing for the rule, such as the stream.
    """
    found = files.locate(*names)
    root = _ready(translate(files, found, meaning), {**(own or {}), **leaves})
    functions = {root.name: root}
    waiting = [root]
    for name, function in (made or {}).items():
        functions[name] = function
        waiting.append(function)
    while waiting:
        for name in _called(waiting.pop()) - functions.keys() - BUILTINS.keys():
            if files.defines(name):
                reached = translate(files, files.locate(name), meaning)
                functions[name] = _ready(reached, leaves)
                waiting.append(functions[name])
    for record in meaning.records if meaning else ():
        functions = thread_records(functions, root.name, record)
    plain = {name: parse(text) for name, text in (constants or {}).items()}
    return Program(functions, plain), root.name


def _ready(function: Function, leaves: Leaves) -> Function:
    """Return a function with its leaves replaced; other members have no value, and change none."""
    ready: Function = _NoMembers().visit(replace_leaves(function, leaves))
    return ready


class _NoMembers(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr in ENDS.values():
            return node
        shown = at(ast.Constant(ast.unparse(node)[:80]), node)
        return at(ast.Call(at(ast.Name("opaque", ast.Load()), node), [shown], []), node)


def _called(function: Function) -> set[str]:
    return {
        each.func.id
        for each in ast.walk(function)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    }
