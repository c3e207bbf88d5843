"""A rule's source in normal form: functions and constants as Python syntax trees.

Python sources are in this form already; C++ sources are translated into it. Each node knows the
file that it was read from, so that every condition and value can be quoted.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from nearfree.log.events import Quote
from nearfree.sources.language.expressions import UnknownConstructError, parse
from nearfree.sources.language.functions import nodes_of

Function = ast.FunctionDef
Made = TypeVar("Made", bound=ast.expr | ast.stmt)
Node = TypeVar("Node", bound=ast.AST)
HARMLESS_DECORATORS = {"functools.lru_cache", "functools.cache", "lru_cache", "cache"}


@dataclass(frozen=True)
class Text:
    """One source file: its path inside the artefact, and its lines."""

    path: str
    content: str

    def quote(self, first: int, last: int) -> Quote:
        """Return lines `first` to `last`, with blanks collapsed, shortened to 160 characters."""
        lines = _lines(self.content)[first - 1 : last]
        text = " ".join(" ".join(lines).split())
        return Quote(file=self.path, lines=(first, last), text=text[:160])


@lru_cache(maxsize=1 << 8)
def _lines(content: str) -> list[str]:
    return content.splitlines()


@dataclass(frozen=True)
class Program:
    """Functions and constants that a rule may reach, by name."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    constants: Mapping[str, ast.expr] = field(default_factory=dict)
    runs: dict[tuple[str, str], dict[int, tuple[Any, int]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Values and steps of the interpreter, by function, axis and context, and by place: rules that
    are entries of one answer share them."""

    def knowing(self, constants: Mapping[str, ast.expr]) -> "Program":
        """Return the program with further constants."""
        return Program(self.functions, {**self.constants, **constants})


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters, keyword-only ones last."""
    spec = function.args
    if spec.vararg or spec.kwarg:
        raise UnknownConstructError(f"{function.name} takes any number of arguments", function)
    return [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]


def defaults(function: Function) -> dict[str, ast.expr]:
    """Return the default of each parameter that has one."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    tail = positional[len(positional) - len(spec.defaults) :]
    found = {each.arg: value for each, value in zip(tail, spec.defaults, strict=True)}
    for each, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        if value is not None:
            found[each.arg] = value
    return found


@lru_cache(maxsize=1 << 12)
def own_default(name: str, value: ast.expr) -> ast.expr:
    """Return a parameter's default; one that calls share is an error."""
    changing = (ast.List, ast.Dict, ast.Set, ast.Call, ast.ListComp, ast.DictComp, ast.SetComp)
    if any(isinstance(node, changing) for node in nodes_of(value)):
        raise UnknownConstructError(f"the default of {name} is shared by all calls", value)
    return value


def plain_nested(function: Function) -> Function:
    """Return a function inside a function, if it means what it says.

    Raises
    ------
    UnknownConstructError
        It is decorated, or has a default that is taken when the outer function runs.
    """
    values = defaults(function).values()
    if function.decorator_list or not all(isinstance(part, ast.Constant) for part in values):
        raise UnknownConstructError(f"{function.name} is outside the known set", function)
    return function


def bound_by(node: ast.AST) -> set[str]:
    """Return the names that a statement, or a part of it, may set in its own scope."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return {e.target.id for e in nodes_of(node) if isinstance(e, ast.NamedExpr)}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        case ast.Name():
            return set() if isinstance(node.ctx, ast.Load) else {node.id}
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
            own = {node.name}
        case ast.MatchMapping() if node.rest:
            own = {node.rest}
        case ast.Global() | ast.Nonlocal():
            own = set(node.names)
        case _:
            own = set()
    return own.union(*map(bound_by, ast.iter_child_nodes(node)))


def copied(tree: Node) -> Node:
    """Return a copy of a tree that stands in the same file; `copy.deepcopy` takes far longer."""
    new = type(tree).__new__(type(tree))
    for name, value in vars(tree).items():
        if isinstance(value, ast.AST):
            vars(new)[name] = copied(value)
        elif type(value) is list:
            parts = [copied(each) if isinstance(each, ast.AST) else each for each in value]
            vars(new)[name] = parts
        else:
            vars(new)[name] = value
    return new


def mark(node: ast.AST, text: Text) -> None:
    """Tell a tree's nodes which file they stand in."""
    for part in nodes_of(node):
        part.origin = text  # type: ignore[attr-defined]


def at(new: Made, old: ast.AST) -> Made:
    """Return a new node with the place of an old one."""
    if not hasattr(new, "lineno"):
        ast.copy_location(new, old)
        new.origin = getattr(old, "origin", None)  # type: ignore[union-attr]
    return new


def quote(node: ast.AST) -> Quote:
    """Return where a node stands, and its text.

    A node that was made up has no place, and cannot be quoted; that is a fault of its reader.
    """
    origin, first = getattr(node, "origin", None), getattr(node, "lineno", None)
    if origin is None or first is None:
        raise UnknownConstructError(f"a {type(node).__name__} without a place in the source")
    last: int = getattr(node, "end_lineno", None) or first
    return origin.quote(first, last)  # type: ignore[no-any-return]


def called_in(tree: ast.AST) -> set[str]:
    """Return the plain names of what a tree calls."""
    calls = (node.func for node in nodes_of(tree) if isinstance(node, ast.Call))
    return {called.id for called in calls if isinstance(called, ast.Name)}


def names_in(*trees: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the plain names in trees; those that are only read or only set by their context."""
    nodes = (node for tree in trees for node in nodes_of(tree))
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def walk_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those inside of them, nested functions included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse"):
            yield from walk_statements(getattr(statement, part, []))


@lru_cache(maxsize=1 << 12)
def loops(function: Function) -> bool:
    """Return whether a function's number of steps depends on its inputs."""
    rounds = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
    return any(isinstance(node, rounds) for node in nodes_of(function)) or any(
        isinstance(statement, ast.While)
        or (isinstance(statement, ast.For) and not isinstance(statement.iter, ast.List | ast.Tuple))
        for statement in walk_statements(function.body)
    )


Leaves = Mapping[str, str]
"""Regular expressions over an expression's text, and the expressions that take its place."""


def replace_leaves(function: Function, leaves: Leaves) -> Function:
    """Return a copy of the function with its leaves replaced."""
    patterns = [(re.compile(pattern), new) for pattern, new in leaves.items()]
    replaced = copied(function)
    for statement in replaced.body:
        _Replace(patterns).visit(statement)
    return replaced


class _Replace(ast.NodeTransformer):
    def __init__(self, patterns: list[tuple[re.Pattern[str], str]]) -> None:
        self.patterns = patterns

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Attribute | ast.Call | ast.Name | ast.Subscript) and isinstance(
            getattr(node, "ctx", ast.Load()), ast.Load
        ):
            text, inner = ast.unparse(node), list(_inner(node))
            for pattern, new in self.patterns:
                found = pattern.fullmatch(text)
                # What is done with a leaf is no part of it: `f(x)` in `f(x).replace(...)`.
                if found and not any(map(pattern.fullmatch, inner)):
                    return placed(parse(found.expand(new)), node)
        return self.generic_visit(node)


def _inner(node: ast.AST) -> Iterator[str]:
    """Yield the texts of all that an attribute, item or call is taken from, step by step."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            yield ast.unparse(node)


def placed(tree: Made, old: ast.AST) -> Made:
    """Return a new tree whose nodes all stand where an old node stood."""
    for node in nodes_of(tree):
        if isinstance(node, ast.expr | ast.stmt):
            for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
                if hasattr(node, name):
                    delattr(node, name)
            at(node, old)
    return tree
