"""A rule's source in normal form: functions and constants as Python syntax trees.

Python sources have this form already; C++ sources are translated into it. Each node records the
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
    """A source file: its path inside the artefact, and its content."""

    path: str
    content: str

    def quote(self, first: int, last: int) -> Quote:
        """Return lines `first` to `last`, with blanks collapsed, cut to 160 characters."""
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
    """Values and step counts of the interpreter, by function, axis and context, then by position on
    the axis. Rules that are entries of one answer share them."""


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters, keyword-only ones last."""
    signature = function.args
    if signature.vararg or signature.kwarg:
        raise UnknownConstructError(f"{function.name} takes any number of arguments", function)
    return [
        argument.arg
        for argument in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
    ]


def defaults(function: Function) -> dict[str, ast.expr]:
    """Return the default of each parameter that has one."""
    signature = function.args
    positional = [*signature.posonlyargs, *signature.args]
    with_default = positional[len(positional) - len(signature.defaults) :]
    values = {
        argument.arg: value
        for argument, value in zip(with_default, signature.defaults, strict=True)
    }
    for argument, value in zip(signature.kwonlyargs, signature.kw_defaults, strict=True):
        if value is not None:
            values[argument.arg] = value
    return values


@lru_cache(maxsize=1 << 12)
def own_default(name: str, value: ast.expr) -> ast.expr:
    """Return a parameter's default; raise if it is an object that all calls share."""
    mutable_nodes = (ast.List, ast.Dict, ast.Set, ast.Call, ast.ListComp, ast.DictComp, ast.SetComp)
    if any(isinstance(node, mutable_nodes) for node in nodes_of(value)):
        raise UnknownConstructError(f"the default of {name} is shared by all calls", value)
    return value


def plain_nested(function: Function) -> Function:
    """Return a nested function; raise if Python would evaluate more than its definition.

    Raises
    ------
    UnknownConstructError
        It is decorated, or has a default that is evaluated when the outer function runs.
    """
    default_values = defaults(function).values()
    if function.decorator_list or not all(
        isinstance(value, ast.Constant) for value in default_values
    ):
        raise UnknownConstructError(f"{function.name} is outside the known set", function)
    return function


def bound_by(node: ast.AST) -> set[str]:
    """Return the names that a statement, or a part of it, may bind in its own scope."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return {part.target.id for part in nodes_of(node) if isinstance(part, ast.NamedExpr)}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        case ast.Name():
            return set() if isinstance(node.ctx, ast.Load) else {node.id}
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
            names = {node.name}
        case ast.MatchMapping() if node.rest:
            names = {node.rest}
        case ast.Global() | ast.Nonlocal():
            names = set(node.names)
        case _:
            names = set()
    return names.union(*map(bound_by, ast.iter_child_nodes(node)))


def copied(tree: Node) -> Node:
    """Return a deep copy of a tree that refers to the same file, faster than `copy.deepcopy`."""
    copy = type(tree).__new__(type(tree))
    for name, value in vars(tree).items():
        if isinstance(value, ast.AST):
            vars(copy)[name] = copied(value)
        elif type(value) is list:
            items = [copied(item) if isinstance(item, ast.AST) else item for item in value]
            vars(copy)[name] = items
        else:
            vars(copy)[name] = value
    return copy


def set_origin(node: ast.AST, text: Text) -> None:
    """Set the source file of all nodes of a tree."""
    for child in nodes_of(node):
        child.origin = text  # type: ignore[attr-defined]


def at(node: Made, source: ast.AST) -> Made:
    """Return a new node with the position and file of a source node."""
    if not hasattr(node, "lineno"):
        ast.copy_location(node, source)
        node.origin = getattr(source, "origin", None)  # type: ignore[union-attr]
    return node


def signature(names: Iterable[str] = ()) -> ast.arguments:
    """Return parameters with some names, without defaults."""
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def made_function(
    name: str, inputs: Iterable[str], body: list[ast.stmt], source: ast.AST
) -> Function:
    """Return a function of some inputs, at the position of a source node."""
    return at(ast.FunctionDef(name, signature(inputs), body, [], None), source)


def quote(node: ast.AST) -> Quote:
    """Return the quote of a node's source lines.

    A node without a position cannot be quoted: that is a fault of its reader.
    """
    origin, first = getattr(node, "origin", None), getattr(node, "lineno", None)
    if origin is None or first is None:
        raise UnknownConstructError(f"a {type(node).__name__} without a place in the source")
    last: int = getattr(node, "end_lineno", None) or first
    return origin.quote(first, last)  # type: ignore[no-any-return]


def called_in(tree: ast.AST) -> set[str]:
    """Return the plain names of the functions that a tree calls."""
    callees = (node.func for node in nodes_of(tree) if isinstance(node, ast.Call))
    return {callee.id for callee in callees if isinstance(callee, ast.Name)}


def names_in(*trees: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the plain names in trees, optionally only those read or only those set."""
    nodes = (node for tree in trees for node in nodes_of(tree))
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def walk_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements with all nested ones, those of nested functions included."""
    for statement in body:
        yield statement
        for block in ("body", "orelse"):
            yield from walk_statements(getattr(statement, block, []))


@lru_cache(maxsize=1 << 12)
def loops(function: Function) -> bool:
    """Return whether a function's number of steps depends on its inputs."""
    comprehensions = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
    return any(isinstance(node, comprehensions) for node in nodes_of(function)) or any(
        isinstance(statement, ast.While)
        or (isinstance(statement, ast.For) and not isinstance(statement.iter, ast.List | ast.Tuple))
        for statement in walk_statements(function.body)
    )


Leaves = Mapping[str, str]
"""Replacements of expressions: a regular expression over the text, and the new expression."""


def replace_leaves(function: Function, leaves: Leaves) -> Function:
    """Return a copy of the function with its leaves replaced."""
    patterns = [(re.compile(pattern), new) for pattern, new in leaves.items()]
    replaced = copied(function)
    for statement in replaced.body:
        _LeafReplacer(patterns).visit(statement)
    return replaced


class _LeafReplacer(ast.NodeTransformer):
    def __init__(self, patterns: list[tuple[re.Pattern[str], str]]) -> None:
        self.patterns = patterns

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Attribute | ast.Call | ast.Name | ast.Subscript) and isinstance(
            getattr(node, "ctx", ast.Load()), ast.Load
        ):
            text, receivers = ast.unparse(node), list(_receivers(node))
            for pattern, replacement in self.patterns:
                match = pattern.fullmatch(text)
                # A leaf ends before operations on it: `f(x)` in `f(x).replace(...)`.
                if match and not any(map(pattern.fullmatch, receivers)):
                    return placed(parse(match.expand(replacement)), node)
        return self.generic_visit(node)


def _receivers(node: ast.AST) -> Iterator[str]:
    """Yield the texts of all expressions that an attribute, item or call is taken from."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            yield ast.unparse(node)


def placed(tree: Made, source: ast.AST) -> Made:
    """Return a new tree, all nodes of which have the position of a source node."""
    for node in nodes_of(tree):
        if isinstance(node, ast.expr | ast.stmt):
            for name in ("lineno", "end_lineno", "col_offset", "end_col_offset"):
                if hasattr(node, name):
                    delattr(node, name)
            at(node, source)
    return tree


def statement_at(text: str, source: ast.AST) -> ast.stmt:
    """Return the statement of a text, all of it at the position of a source node."""
    return placed(ast.parse(text).body[0], source)
