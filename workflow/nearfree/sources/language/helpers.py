"""A rule's helpers made ready to be called many times: their statements turned into closures.

A helper returns what the interpreter returns; where that is not certain, the interpreter runs.
The limits on steps and depth are the interpreter's.
"""

import ast
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from nearfree.sources.language.closures import (
    NO_VALUE,
    Closures,
    Fixed,
    Run,
    UnsettledError,
)
from nearfree.sources.language.expressions import variables
from nearfree.sources.language.functions import BUILTINS, MOST_TEXT
from nearfree.sources.language.interpret import MOST_STEPS, Interpreter
from nearfree.sources.language.program import (
    Function,
    Program,
    bound_by,
    defaults,
    parameters,
    plain_nested,
)
from nearfree.sources.language.statements import MOST_DEPTH

Frame = dict[str, Any]
_Do = Callable[[Frame], "tuple[Any, ...] | None"]
"""Runs a statement; says where to go on, if that is not behind it: a result is (value,)."""
_NUMBERS = {int, float, bool}
_EXACT = {int, bool, str, type(None)}
_PLAIN = {int, float, bool, str, type(None)}
_BREAK: tuple[Any, ...] = ("break", None)
_CONTINUE: tuple[Any, ...] = ("continue", None)


class _Ready(NamedTuple):
    """A function: its parameters, their defaults, and what it does."""

    names: tuple[str, ...]
    defaults: Frame
    body: _Do


class _Inner:
    """A function inside a function, with the names around it."""

    def __init__(self, ready: _Ready, frame: Frame) -> None:
        self.ready, self.frame = ready, frame


class Helpers:
    """Helpers that are called many times, each once for the arguments that it reads.

    Parameters
    ----------
    functions
        Their trees, by name.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._ready: dict[str, _Ready | None] = {}
        self._known: dict[tuple[str, int], dict[tuple[int, ...], dict[object, Any]]] = {}
        self._read: set[str] = set()
        self._steps = self._depth = 0
        self._closures = Closures({}, self._named)

    def value(self, name: str, arguments: list[Any]) -> Any:
        """Return a helper's value, `refused` where it ends in an error of the backend.

        What it reads of its arguments decides what it does next, so two calls that agree in what
        the first one read agree in all.
        """
        known = self.known(name, len(arguments))
        for places, values in known.items():
            key = typed([arguments[place] for place in places])
            if key in values:
                return values[key]
        try:
            value, places = self._quickly(name, arguments)
        except UnsettledError:
            value = Interpreter(Program(self._functions), {}).call(name, arguments)
            places = tuple(range(len(arguments)))
        known.setdefault(places, {})[typed([arguments[place] for place in places])] = value
        return value

    def known(self, name: str, number: int) -> dict[tuple[int, ...], dict[object, Any]]:
        """Return what calls with some number of arguments gave: by the places that they read."""
        return self._known.setdefault((name, number), {})

    def _quickly(self, name: str, arguments: list[Any]) -> tuple[Any, tuple[int, ...]]:
        """Return a helper's value, and the places of the arguments that it read."""
        self._steps = self._depth = 0
        self._read.clear()
        if not _PLAIN.issuperset(map(type, arguments)):
            raise UnsettledError
        try:
            value = self._named(name, arguments, {})
        except NO_VALUE as error:
            raise UnsettledError from error
        if type(value) not in _PLAIN:
            raise UnsettledError
        names = parameters(self._functions[name])[: len(arguments)]
        return value, tuple(place for place, each in enumerate(names) if each in self._read)

    def _named(self, name: str, arguments: list[Any], names: Mapping[str, Any]) -> Any:
        local = names.get(name)
        if isinstance(local, _Inner):
            return self._enter(local.ready, arguments, local.frame)
        if name in names or name not in self._functions:
            raise UnsettledError
        if name not in self._ready:
            self._ready[name] = self._prepared(self._functions[name])
        ready = self._ready[name]
        if ready is None:
            raise UnsettledError
        return self._enter(ready, arguments, {})

    def _prepared(self, function: Function) -> _Ready | None:
        try:
            return self._function(function)
        except NO_VALUE:
            return None

    def _function(self, function: Function) -> _Ready:
        names = parameters(function)
        if not BUILTINS.keys().isdisjoint([*names, *set().union(*map(bound_by, function.body))]):
            raise UnsettledError
        given: Frame = {}
        for name, value in defaults(function).items():
            default = self._closures.of(value)
            if not isinstance(default, Fixed):
                raise UnsettledError
            given[name] = default.value
        return _Ready(tuple(names), given, self._block(function.body))

    def _enter(self, ready: _Ready, arguments: list[Any], outer: Frame) -> Any:
        if self._depth >= MOST_DEPTH or len(arguments) > len(ready.names):
            raise UnsettledError
        self._depth += 1
        frame = outer | ready.defaults
        frame.update(zip(ready.names, arguments, strict=False))
        end = ready.body(frame)
        self._depth -= 1
        if end is _BREAK or end is _CONTINUE:
            raise UnsettledError
        return None if end is None else end[0]

    def _block(self, body: list[ast.stmt]) -> _Do:
        steps = [(self._statement(statement), _read(statement)) for statement in body]

        def run(frame: Frame) -> tuple[Any, ...] | None:
            self._steps += len(steps)
            if self._steps > MOST_STEPS:
                raise UnsettledError
            for step, names in steps:
                self._read |= names
                end = step(frame)
                if end is not None:
                    return end
            return None

        return run

    def _statement(self, node: ast.stmt) -> _Do:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise UnsettledError
        run: _Do = method(node)
        return run

    def _assign(self, node: ast.Assign) -> _Do:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=[])):
                return lambda frame: frame.__setitem__(name, [])
            case ast.Assign(targets=[ast.Name(id=name)]):
                value = self._closures.of(node.value)
                return lambda frame: frame.__setitem__(name, value(frame))
        raise UnsettledError

    def _if(self, node: ast.If) -> _Do:
        test = self._closures.of(node.test)
        body, orelse = self._block(node.body), self._block(node.orelse)
        return lambda frame: body(frame) if test(frame) else orelse(frame)

    def _for(self, node: ast.For) -> _Do:
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise UnsettledError
        return partial(_loop, node.target.id, self._closures.of(node.iter), self._block(node.body))

    def _return(self, node: ast.Return) -> _Do:
        value = Fixed(None) if node.value is None else self._closures.of(node.value)
        return lambda frame: (value(frame),)

    def _expr(self, node: ast.Expr) -> _Do:
        match node.value:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="append"),
                args=[added],
                keywords=[],
            ):
                return partial(_append, name, self._closures.of(added))
        raise UnsettledError

    def _functiondef(self, node: Function) -> _Do:
        ready = self._function(plain_nested(node))
        return lambda frame: frame.__setitem__(node.name, _Inner(ready, frame))

    def _break(self, _: ast.Break) -> _Do:
        return lambda _: _BREAK

    def _continue(self, _: ast.Continue) -> _Do:
        return lambda _: _CONTINUE


def _read(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement reads, those of statements inside of it excepted."""
    match statement:
        case ast.FunctionDef():
            return frozenset()
        case ast.If(test=part) | ast.For(iter=part):
            return variables(part)
    return variables(statement)


def typed(values: list[Any]) -> object:
    """Return a key that tells values apart with their types: 1, True and 1.0 are three."""
    kinds = tuple(map(type, values))
    return (*values, *kinds) if _EXACT.issuperset(kinds) else repr(values)


def _loop(name: str, group: Run, body: _Do, frame: Frame) -> tuple[Any, ...] | None:
    items = group(frame)
    if not isinstance(items, list | tuple | range):
        raise UnsettledError
    for item in items:
        frame[name] = item
        end = body(frame)
        if end is _BREAK:
            break
        if end is not None and end is not _CONTINUE:
            return end
    return None


def _append(name: str, added: Run, frame: Frame) -> None:
    group, value = frame[name], added(frame)
    # Lists begin empty and take only numbers, so their length is all that could be too large.
    if type(group) is not list or type(value) not in _NUMBERS or len(group) >= MOST_TEXT:
        raise UnsettledError
    group.append(value)
