"""The second way to read a rule: step through the function with a small interpreter.

It runs over syntax trees with a closed set of statements. It reaches no module, no attribute and
no object of this process: a source can compute numbers with it, and nothing else.
"""

import ast
from collections.abc import Mapping
from typing import Any

from nearfree.sources.language.expressions import (
    MISTAKES,
    OPERATORS,
    UnknownConstructError,
    checked,
    evaluate,
    flat,
    name_of,
)
from nearfree.sources.language.functions import BUILTINS, called
from nearfree.sources.language.program import (
    Function,
    Program,
    bound_by,
    default_of,
    defaults,
    parameters,
    plain_nested,
)

REFUSED = "refused"
"""The value of a way that ends in an error of the backend."""
MOST_STEPS = 200_000
MOST_DEPTH = 40


class _Return(Exception):  # noqa: N818  # control flow, not an error
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Refused(Exception):  # noqa: N818
    pass


class _Break(Exception):  # noqa: N818
    pass


class _Continue(Exception):  # noqa: N818
    pass


class Interpreter:
    """Runs the functions of one program.

    Parameters
    ----------
    program
        Functions and constants.
    inputs
        Facts that are no parameters: what a leaf was replaced by, such as `rocm`.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        self.program = program
        self.inputs = dict(inputs)
        self.steps = 0
        self.depth = 0

    def run(self, name: str) -> Any:
        """Return a function's value; parameters are taken from the inputs by name."""
        function = self.program.functions[name]
        given = {n: self.inputs[n] for n in parameters(function) if n in self.inputs}
        try:
            return self._enter(function, given, {})
        except _Refused:
            return REFUSED

    def call(self, name: str, arguments: list[Any]) -> Any:
        """Return a function's value for given arguments."""
        try:
            return self._call(name, arguments, {})
        except _Refused:
            return REFUSED

    def _enter(self, function: Function, given: dict[str, Any], outer: dict[str, Any]) -> Any:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UnknownConstructError(f"{function.name} calls itself without end", function)
        frame = dict(outer)
        for name in defaults(function):
            if name not in given:
                given[name] = self._value(default_of(function, name), {})
        frame.update(given)
        try:
            self._block(function.body, frame)
        except _Return as result:
            return result.value
        finally:
            self.depth -= 1
        return None

    def _block(self, body: list[ast.stmt], frame: dict[str, Any]) -> None:
        for statement in body:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise UnknownConstructError("the function does not end", statement)
            method = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if method is None:
                raise UnknownConstructError(
                    f"{name_of(statement)} is outside the known set", statement
                )
            method(statement, frame)

    def _value(self, node: ast.expr, frame: dict[str, Any]) -> Any:
        names = _Names(self, frame)
        return evaluate(node, names, lambda name, arguments: self._call(name, arguments, frame))

    def _call(self, name: str, arguments: list[Any], frame: dict[str, Any]) -> Any:
        local = frame.get(name)
        if isinstance(local, Closure):
            function, outer = local.function, local.frame
        elif name not in frame and name in self.program.functions:
            function, outer = self.program.functions[name], {}
        elif name not in frame and name not in self.program.constants and name in BUILTINS:
            return checked(called(name, arguments))
        else:
            raise UnknownConstructError(f"the function {name!r} is unknown")
        names = parameters(function)
        if len(arguments) > len(names):
            raise UnknownConstructError(f"{name} is called with too many arguments", function)
        return self._enter(function, dict(zip(names, arguments, strict=False)), outer)

    def _functiondef(self, node: Function, frame: dict[str, Any]) -> None:
        frame[node.name] = Closure(plain_nested(node), frame)

    def _assign(self, node: ast.Assign, frame: dict[str, Any]) -> None:
        value = self._value(node.value, frame)
        for target in node.targets:
            self._store(target, value, frame)

    def _annassign(self, node: ast.AnnAssign, frame: dict[str, Any]) -> None:
        if node.value is not None:
            self._store(node.target, self._value(node.value, frame), frame)

    def _augassign(self, node: ast.AugAssign, frame: dict[str, Any]) -> None:
        if not isinstance(node.target, ast.Name) or type(node.op) not in OPERATORS:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        whole = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        frame[node.target.id] = self._value(whole, frame)

    def _store(self, target: ast.expr, value: Any, frame: dict[str, Any]) -> None:
        match target:
            case ast.Name():
                frame[target.id] = value
            case ast.Tuple() if isinstance(value, tuple | list) and len(value) == len(target.elts):
                for each, part in zip(target.elts, value, strict=True):
                    self._store(each, part, frame)
            case ast.Subscript():
                group = self._value(target.value, frame)
                if not isinstance(group, dict | list):
                    raise UnknownConstructError(f"{name_of(target)} cannot be set", target)
                try:
                    group[self._value(target.slice, frame)] = flat(value, target)
                except MISTAKES as error:
                    raise UnknownConstructError(
                        f"{name_of(target)} cannot be set", target
                    ) from error
                checked(group, target)
            case _:
                raise UnknownConstructError(f"{name_of(target)} is outside the known set", target)

    def _if(self, node: ast.If, frame: dict[str, Any]) -> None:
        self._block(node.body if self._value(node.test, frame) else node.orelse, frame)

    def _for(self, node: ast.For, frame: dict[str, Any]) -> None:
        group = self._value(node.iter, frame)
        if not isinstance(group, list | tuple | range) or node.orelse:
            raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)
        for item in group:
            self._store(node.target, item, frame)
            try:
                self._block(node.body, frame)
            except _Break:
                break
            except _Continue:
                continue

    def _return(self, node: ast.Return, frame: dict[str, Any]) -> None:
        raise _Return(None if node.value is None else self._value(node.value, frame))

    def _raise(self, *_: object) -> None:
        raise _Refused

    def _assert(self, node: ast.Assert, frame: dict[str, Any]) -> None:
        if not self._value(node.test, frame):
            raise _Refused

    def _break(self, *_: object) -> None:
        raise _Break

    def _continue(self, *_: object) -> None:
        raise _Continue

    def _import(self, node: ast.stmt, frame: dict[str, Any]) -> None:
        """Bind nothing: a name that only an import gives is unknown where it is used."""
        if bound_by(node) & (frame.keys() | self.program.constants.keys() | BUILTINS.keys()):
            raise UnknownConstructError(f"{name_of(node)} hides another name", node)

    _importfrom = _import

    def _pass(self, *_: object) -> None:
        pass

    def _expr(self, node: ast.Expr, frame: dict[str, Any]) -> None:
        match node.value:
            case ast.Constant():
                return
            case ast.Call():
                self._value(node.value, frame)
            case _:
                raise UnknownConstructError(f"{name_of(node)} is outside the known set", node)


class Closure:
    """A function inside a function, with the names around it."""

    def __init__(self, function: Function, frame: dict[str, Any]) -> None:
        self.function = function
        self.frame = frame


class _Names(Mapping[str, Any]):
    """What a name stands for: a local one, a constant of the module, or an input."""

    def __init__(self, interpreter: Interpreter, frame: dict[str, Any]) -> None:
        self.interpreter = interpreter
        self.frame = frame

    def __contains__(self, name: object) -> bool:
        return (
            name in self.frame
            or name in self.interpreter.program.constants
            or name in self.interpreter.inputs
        )

    def __getitem__(self, name: str) -> Any:
        if name in self.frame:
            return self.frame[name]
        constant = self.interpreter.program.constants.get(name)
        if constant is None:
            return self.interpreter.inputs[name]
        return evaluate(constant, _Names(self.interpreter, {}))

    def __iter__(self) -> Any:
        return iter(self.frame)

    def __len__(self) -> int:
        return len(self.frame)
