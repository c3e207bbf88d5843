"""Second reader of a rule: run its function with a small interpreter.

It runs syntax trees with a closed set of statements. It reaches no module, attribute or object of
this process: a source can compute numbers with it, and nothing else.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nearfree.sources.language.closures import Closures, no_value, refuse_call
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
from nearfree.sources.language.statements import REFUSED, Frame, Nested, RefusedError, Statements

STEPS_LIMIT = 200_000


class Interpreter(Statements):
    """Runs the functions of one program over numbers."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.inputs: Inputs = {}
        self.steps = 0
        self._closures = Closures({}, self._call, _bindable_names(program), self.count)
        self._defaults: dict[ast.Constant, Any] = {}
        self._constants = Closures({}, refuse_call, program.constants)

    def run(self, name: str, inputs: Inputs) -> Any:
        """Return a function's value.

        `inputs` are values of parameters of these names, and of free names that replaced a leaf,
        such as `rocm`.
        """
        self.inputs = inputs
        function = self.program.functions[name]
        arguments = {each: inputs[each] for each in parameters(function) if each in inputs}
        return self._result(lambda: self.enter(Nested(function, {}), arguments))

    def call(self, name: str, arguments: list[Any]) -> Any:
        """Return a function's value for positional arguments."""
        return self._result(lambda: self._call(name, arguments, {}))

    def _result(self, run: Callable[[], Any]) -> Any:
        self.steps = self.depth = 0
        try:
            return run()
        except RefusedError:
            return REFUSED

    def count(self, node: ast.AST) -> None:
        """Count a statement against the limit."""
        self.steps += 1
        if self.steps > STEPS_LIMIT:
            raise UnknownConstructError("the function does not end", node)

    def expr(self, node: ast.expr, frame: Frame) -> Any:
        """Return an expression's value."""
        run = self._closures.closure(node)
        names = frame if type(frame) is _Scope else _Scope(self, frame)
        try:
            return run(names)
        except MISTAKES as error:
            raise no_value(node, names, error) from error

    def constant(self, node: ast.expr) -> Any:
        """Return the value of a module-level constant."""
        try:
            return self._constants.closure(node)(_Scope(self, {}))
        except MISTAKES as error:
            raise no_value(node, {}, error) from error

    def frame(self, nested: Nested, arguments: Frame) -> Frame:
        """Return the scope of a call, which also looks up constants and inputs."""
        return _Scope(self, nested.frame, arguments)

    def default(self, name: str, value: ast.expr) -> Any:
        """Return a parameter's default; a literal is evaluated once."""
        if type(value) is not ast.Constant:
            return super().default(name, value)
        if value not in self._defaults:
            self._defaults[value] = super().default(name, value)
        return self._defaults[value]

    def condition(self, node: ast.expr, frame: Frame) -> bool:
        """Return whether a condition holds."""
        return bool(self.expr(node, frame))

    def items(self, group: Any) -> Sequence[Any] | None:
        """Return the group itself if it is ordered."""
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
        """Assign the result of an operation on a name; a list grows in place, as in Python."""
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        group = frame.get(name)
        if not isinstance(group, list) or not isinstance(node.op, ast.Add):
            super().s_augassign(node, frame)
            return
        added = self.expr(node.value, frame)
        if not isinstance(added, list | tuple | range):
            raise UnknownConstructError(f"{name_of(node)} adds no list", node)
        group += [flat(item, node) for item in checked(added, node)]
        checked(group, node)

    def _call(self, name: str, arguments: list[Any], names: Inputs) -> Any:
        local_names = names.keys()  # without constants and inputs
        nested = names[name] if name in local_names else None
        if name not in local_names and name in self.program.functions:
            nested = Nested(self.program.functions[name], {})
        if not isinstance(nested, Nested):
            raise UnknownConstructError(f"the function {name!r} is unknown")
        return self.apply(nested, arguments, nested.function)


def _bindable_names(program: Program) -> set[str]:
    """Return the names that a program binds anywhere, and that so may hide a builtin."""
    trees = program.functions.values()
    nodes = (node for tree in trees for node in nodes_of(tree))
    bound = {getattr(node, "arg", None) or getattr(node, "name", None) or "" for node in nodes}
    return {*program.constants, *bound, *names_in(*trees, context=ast.Store)}


class _Scope(Frame):
    """Values of names: local ones, which are its own entries, then constants, then inputs."""

    __slots__ = ("interpreter",)

    def __init__(self, interpreter: Interpreter, *frames: Frame) -> None:
        for frame in frames:
            self.update(frame)
        self.interpreter = interpreter

    def copy(self) -> "_Scope":
        """Return a copy for an inner scope."""
        return _Scope(self.interpreter, self)

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


class _RecordingInterpreter(Interpreter):
    """An interpreter that records the names that a call reads."""

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


_SCALAR_TYPES = {int, float, bool, str, type(None)}
_HASHABLE_BY_VALUE = {int, bool, str, type(None)}


class Helpers:
    """Functions that are called often: run once for each combination of the arguments read."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._interpreter = _RecordingInterpreter(Program(functions))
        self._results: dict[tuple[str, int], dict[tuple[int, ...], dict[object, Any]]] = {}

    def value(self, name: str, arguments: list[Any]) -> Any:
        """Return a helper's value, `refused` where it ends in an error of the backend.

        The arguments read so far decide what is read next. So two calls that agree in the arguments
        that the first one read have the same value.
        """
        results = self.results_of(name, len(arguments))
        for indices, values in results.items():
            key = typed([arguments[index] for index in indices])
            if key in values:
                return values[key]
        value = self._interpreter.call(name, arguments)
        if _SCALAR_TYPES.issuperset(map(type, [value, *arguments])):
            names = parameters(self._interpreter.program.functions[name])[: len(arguments)]
            read = self._interpreter.read
            indices = tuple(index for index, parameter in enumerate(names) if parameter in read)
            results.setdefault(indices, {})[typed([arguments[index] for index in indices])] = value
        return value

    def results_of(self, name: str, count: int) -> dict[tuple[int, ...], dict[object, Any]]:
        """Return recorded values by the indices of the arguments read, then by these arguments."""
        return self._results.setdefault((name, count), {})


def typed(values: list[Any]) -> object:
    """Return a key that distinguishes values by type, too: 1, True and 1.0 differ."""
    kinds = tuple(map(type, values))
    return (*values, *kinds) if _HASHABLE_BY_VALUE.issuperset(kinds) else repr(values)


def typed_each(values: Sequence[Any]) -> list[object]:
    """Return the key of each value, as `typed` makes it."""
    kinds = [*map(type, values)]
    if _HASHABLE_BY_VALUE.issuperset(kinds):
        return [*zip(values, kinds, strict=True)]
    return [typed([value]) for value in values]
