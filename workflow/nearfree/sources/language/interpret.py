"""The second way to read a rule: step through the function with a small interpreter.

It runs over syntax trees with a closed set of statements. It reaches no module, no attribute and
no object of this process: a source can compute numbers with it, and nothing else.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfree.sources.language.closures import Closures, no_value, unknown
from nearfree.sources.language.expressions import (
    MISTAKES,
    Inputs,
    UnknownConstructError,
    checked,
    flat,
    name_of,
    variables,
)
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Function, Program, names_in, parameters
from nearfree.sources.language.statements import (
    REFUSED,
    Frame,
    Nested,
    RefusedError,
    Statements,
)

MOST_STEPS = 200_000


class Interpreter(Statements):
    """Runs the functions of one program over numbers."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.inputs: Inputs = {}
        self.steps = 0
        self._closures = Closures({}, self._call, _bound(program), self.count)
        self._defaults: dict[ast.Constant, Any] = {}
        self._constants = Closures({}, unknown, program.constants)

    def run(self, name: str, inputs: Inputs) -> Any:
        """Return a function's value.

        Parameters
        ----------
        inputs
            What its parameters of these names are, and facts that are no parameters: what a leaf
            was replaced by, such as `rocm`.
        """
        self.inputs = inputs
        function = self.program.functions[name]
        given = {n: inputs[n] for n in parameters(function) if n in inputs}
        return self._ended(lambda: self.enter(Nested(function, {}), given))

    def call(self, name: str, arguments: list[Any]) -> Any:
        """Return a function's value for given arguments."""
        return self._ended(lambda: self._call(name, arguments, {}))

    def _ended(self, run: Callable[[], Any]) -> Any:
        self.steps = self.depth = 0
        try:
            return run()
        except RefusedError:
            return REFUSED

    def count(self, node: ast.AST) -> None:
        """Count a statement against the limit."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise UnknownConstructError("the function does not end", node)

    def expr(self, node: ast.expr, frame: Frame) -> Any:
        """Return an expression's value."""
        run = self._closures.kept(node)
        names = frame if type(frame) is _Names else _Names(self, frame)
        try:
            return run(names)
        except MISTAKES as error:
            raise no_value(node, names, error) from error

    def constant(self, node: ast.expr) -> Any:
        """Return what a constant of the module is."""
        try:
            return self._constants.kept(node)(_Names(self, {}))
        except MISTAKES as error:
            raise no_value(node, {}, error) from error

    def frame(self, nested: Nested, given: Frame) -> Frame:
        """Return the names of a call, which find constants and inputs by themselves."""
        return _Names(self, nested.frame, given)

    def default(self, name: str, value: ast.expr) -> Any:
        """Return a parameter's default; a number or text is worked out once."""
        if type(value) is not ast.Constant:
            return super().default(name, value)
        if value not in self._defaults:
            self._defaults[value] = super().default(name, value)
        return self._defaults[value]

    def condition(self, node: ast.expr, frame: Frame) -> bool:
        """Return whether a condition holds."""
        return bool(self.expr(node, frame))

    def items(self, group: Any) -> Sequence[Any] | None:
        """Return the group itself if it has an order."""
        return group if isinstance(group, list | tuple | range) else None

    def store_item(self, target: ast.Subscript, value: Any, frame: Frame) -> None:
        """Set an entry of a dictionary or list."""
        group = self.expr(target.value, frame)
        if not isinstance(group, dict | list):
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target)
        try:
            group[self.expr(target.slice, frame)] = flat(value, target)
        except MISTAKES as error:
            raise UnknownConstructError(f"{name_of(target)} cannot be set", target) from error
        checked(group, target)

    def s_augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        """Assign what an operation makes of a name; a list grows in place, as in Python."""
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        group = frame.get(name)
        if not isinstance(group, list) or not isinstance(node.op, ast.Add):
            super().s_augassign(node, frame)
            return
        more = self.expr(node.value, frame)
        if not isinstance(more, list | tuple | range):
            raise UnknownConstructError(f"{name_of(node)} adds no list", node)
        group += [flat(each, node) for each in checked(more, node)]
        checked(group, node)

    def _call(self, name: str, arguments: list[Any], names: Inputs) -> Any:
        local = names.keys()  # without constants and inputs
        nested = names[name] if name in local else None
        if name not in local and name in self.program.functions:
            nested = Nested(self.program.functions[name], {})
        if not isinstance(nested, Nested):
            raise UnknownConstructError(f"the function {name!r} is unknown")
        return self.apply(nested, arguments, nested.function)


def _bound(program: Program) -> set[str]:
    """Return the names that stand for something in a program, and so may hide a builtin."""
    trees = program.functions.values()
    nodes = (node for tree in trees for node in nodes_of(tree))
    named = {getattr(node, "arg", None) or getattr(node, "name", None) or "" for node in nodes}
    return {*program.constants, *named, *names_in(*trees, context=ast.Store)}


class _Names(Frame):
    """What a name stands for: a local one, a constant of the module, or an input.

    Its own entries are the local names.
    """

    __slots__ = ("interpreter",)

    def __init__(self, interpreter: Interpreter, *frames: Frame) -> None:
        for frame in frames:
            self.update(frame)
        self.interpreter = interpreter

    def copy(self) -> "_Names":
        """Return the same names, for a scope inside of theirs."""
        return _Names(self.interpreter, self)

    def __contains__(self, name: object) -> bool:
        return (
            name in self.keys()
            or name in self.interpreter.program.constants
            or name in self.interpreter.inputs
        )

    def __missing__(self, name: str) -> Any:
        constant = self.interpreter.program.constants.get(name)
        if constant is None:
            return self.interpreter.inputs[name]
        return self.interpreter.constant(constant)


class _Reading(Interpreter):
    """Knows which names a call has read so far."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.read: set[str] = set()

    def call(self, name: str, arguments: list[Any]) -> Any:
        """Return a function's value for given arguments."""
        self.read.clear()
        return super().call(name, arguments)

    def expr(self, node: ast.expr, frame: Frame) -> Any:
        """Return an expression's value."""
        self.read |= variables(node)
        return super().expr(node, frame)


_PLAIN = {int, float, bool, str, type(None)}
_EXACT = {int, bool, str, type(None)}


class Helpers:
    """Functions that are called many times, each run once for the arguments that it reads."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._interpreter = _Reading(Program(functions))
        self._known: dict[tuple[str, int], dict[tuple[int, ...], dict[object, Any]]] = {}

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
        value = self._interpreter.call(name, arguments)
        if _PLAIN.issuperset(map(type, [value, *arguments])):
            names = parameters(self._interpreter.program.functions[name])[: len(arguments)]
            places = tuple(n for n, each in enumerate(names) if each in self._interpreter.read)
            known.setdefault(places, {})[typed([arguments[place] for place in places])] = value
        return value

    def known(self, name: str, number: int) -> dict[tuple[int, ...], dict[object, Any]]:
        """Return what calls with some number of arguments gave: by the places that they read."""
        return self._known.setdefault((name, number), {})


def typed(values: list[Any]) -> object:
    """Return a key that tells values apart with their types: 1, True and 1.0 are three."""
    kinds = tuple(map(type, values))
    return (*values, *kinds) if _EXACT.issuperset(kinds) else repr(values)


def typed_each(values: Sequence[Any]) -> list[object]:
    """Return the key of each value, as `typed` makes it of one."""
    kinds = [*map(type, values)]
    if _EXACT.issuperset(kinds):
        return [*zip(values, kinds, strict=True)]
    return [typed([value]) for value in values]
