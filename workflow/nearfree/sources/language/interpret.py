"""The second way to read a rule: step through the function with a small interpreter.

It runs over syntax trees with a closed set of statements. It reaches no module, no attribute and
no object of this process: a source can compute numbers with it, and nothing else.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nearfree.sources.language.expressions import (
    MISTAKES,
    Evaluation,
    UnknownConstructError,
    checked,
    evaluate,
    flat,
    name_of,
    without_value,
)
from nearfree.sources.language.functions import BUILTINS, called
from nearfree.sources.language.program import Program, parameters
from nearfree.sources.language.statements import (
    REFUSED,
    Frame,
    Nested,
    RefusedError,
    Statements,
)

MOST_STEPS = 200_000


class Interpreter(Statements):
    """Runs the functions of one program over numbers.

    Parameters
    ----------
    program
        Functions and constants.
    inputs
        Facts that are no parameters: what a leaf was replaced by, such as `rocm`.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        super().__init__(program)
        self.inputs = dict(inputs)
        self.steps = 0
        self._here: tuple[Frame, Evaluation] | None = None

    def run(self, name: str) -> Any:
        """Return a function's value; parameters are taken from the inputs by name."""
        function = self.program.functions[name]
        given = {n: self.inputs[n] for n in parameters(function) if n in self.inputs}
        try:
            return self.enter(Nested(function, {}), given)
        except RefusedError:
            return REFUSED

    def call(self, name: str, arguments: list[Any]) -> Any:
        """Return a function's value for given arguments."""
        try:
            return self._call(name, arguments, frame={})
        except RefusedError:
            return REFUSED

    def count(self, node: ast.AST) -> None:
        """Count a statement against the limit."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise UnknownConstructError("the function does not end", node)

    def expr(self, node: ast.expr, frame: Frame) -> Any:
        """Return an expression's value."""
        here = self._here
        if here is None or here[0] is not frame:
            # Statements of one frame follow each other, and share what evaluates them.
            names = _Names(self, frame)
            here = self._here = frame, Evaluation(names, partial(self._call, frame=frame))
        try:
            return here[1].value(node)
        except MISTAKES as error:
            raise without_value(node, error) from error

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

    def _call(self, name: str, arguments: list[Any], *, frame: Frame) -> Any:
        nested = frame.get(name)
        if name not in frame and name in self.program.functions:
            nested = Nested(self.program.functions[name], {})
        elif name not in frame and name not in self.program.constants and name in BUILTINS:
            return checked(called(name, arguments))
        if not isinstance(nested, Nested):
            raise UnknownConstructError(f"the function {name!r} is unknown")
        return self.apply(nested, arguments, nested.function)


class _Names(Mapping[str, Any]):
    """What a name stands for: a local one, a constant of the module, or an input."""

    def __init__(self, interpreter: Interpreter, frame: Frame) -> None:
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
