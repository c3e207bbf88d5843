"""Evaluation of expressions: each tree is turned once into closures that are run many times.

A closure takes the values of names and returns the expression's value, or raises an error that
names the part without a value. Nothing of a backend is compiled or run by Python.
"""

import ast
from collections.abc import Callable, Collection
from itertools import pairwise
from operator import itemgetter
from typing import Any

from nearfree.sources.language.comprehensions import Loop, comprehension, target_names
from nearfree.sources.language.expressions import (
    CONSTANTS,
    LARGEST,
    LIST_METHODS,
    MISTAKES,
    OPERATORS,
    STRING_METHODS,
    Inputs,
    Run,
    UnknownConstructError,
    checked,
    flat,
    name_of,
    outside,
    variables,
)
from nearfree.sources.language.functions import BUILTINS, LENGTH_LIMIT, call_builtin

Call = Callable[[str, list[Any], Inputs], Any]
"""Returns the result of a call that is no builtin: its name, its arguments, and the names' values.


"""
NO_VALUE = (*MISTAKES, UnknownConstructError)
"""Exceptions of a closure that has no value."""
_SINGLETONS = (bool, type(None))
_NUMBERS = {int, float, bool}
_MUTABLE_RESULTS = ("list", "sorted")
"""Builtins that return a new list at every call; it may change later."""
_SHIFT_LIMIT = 62


def evaluate(node: ast.expr, inputs: Inputs) -> Any:
    """Return an expression's value, given the values of its names.

    Raises
    ------
    UnknownConstructError
        A node, name or operator outside the known set, or no value.
    """
    try:
        return Closures({}, refuse_call, inputs).of(node)(inputs)
    except MISTAKES as error:
        raise no_value(node, inputs, error) from error


def no_value(node: ast.expr, inputs: Inputs, error: Exception) -> UnknownConstructError:
    """Return the error that names the expression without a value, from the exception raised."""
    match error:
        case UnknownConstructError():
            return error
        case KeyError(args=(str(missing),)) if missing in variables(node) and missing not in inputs:
            return UnknownConstructError(f"the name {missing!r} is unknown", node)
    return UnknownConstructError(f"{name_of(node)} has no value here: {error}", node)


def refuse_call(name: str, arguments: list[Any], names: Inputs) -> Any:
    """Refuse a call: for expressions that may call builtins only."""
    del arguments, names
    raise UnknownConstructError(f"the function {name!r} is unknown")


class Fixed:
    """An expression whose value is the same at all inputs."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, names: Inputs) -> Any:
        """Return the value."""
        del names
        return self.value


class Closures:
    """Turns expressions into closures; whatever the fixed names settle is evaluated at once.

    Parameters
    ----------
    fixed
        Names with the same value at every evaluation.
    call
        Evaluates a call that is no builtin, or whose name is bound to a value.
    bindable
        Names that may be bound; only these can hide a builtin.
    count
        Counts each iteration of a comprehension against a limit. Without it, comprehensions and
        sums of lists are refused.
    """

    def __init__(
        self,
        fixed: Inputs,
        call: Call,
        bindable: Collection[str],
        count: Callable[[ast.AST], None] | None = None,
    ) -> None:
        self._fixed, self._evaluate_call = fixed, call
        self._bindable, self._count = bindable, count
        self._closures: dict[ast.expr, Run] = {}

    def closure(self, node: ast.expr) -> Run:
        """Return an expression's closure, made at the first request and kept."""
        if node not in self._closures:
            self._closures[node] = self.of(node)
        return self._closures[node]

    def of(self, node: ast.expr) -> Run:
        """Return a new closure of an expression; that of an unknown expression raises when run."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        run: Run = _refusing(node) if method is None else method(node)
        return run

    def _constant(self, node: ast.Constant) -> Run:
        if not isinstance(node.value, CONSTANTS):
            return _refusing(node)
        return _folded(lambda _: checked(node.value, node))

    def _name(self, node: ast.Name) -> Run:
        name = node.id
        return Fixed(self._fixed[name]) if name in self._fixed else itemgetter(name)

    def _boolop(self, node: ast.BoolOp) -> Run:
        return _junction(
            [self.of(operand) for operand in node.values], stop=isinstance(node.op, ast.Or)
        )

    def _ifexp(self, node: ast.IfExp) -> Run:
        test, body, orelse = self.of(node.test), self.of(node.body), self.of(node.orelse)
        if isinstance(test, Fixed):
            return body if test.value else orelse
        return lambda names: body(names) if test(names) else orelse(names)

    def _unaryop(self, node: ast.UnaryOp) -> Run:
        operand, operator = self.of(node.operand), OPERATORS.get(type(node.op))
        if operator is None:
            return _refusing(node)
        return _folded(lambda names: checked(operator(operand(names)), node), operand)

    def _binop(self, node: ast.BinOp) -> Run:
        left, right = self.of(node.left), self.of(node.right)
        operator = OPERATORS.get(type(node.op))
        if operator is None:
            return _refusing(node)
        is_shift = isinstance(node.op, ast.LShift)
        may_join = self._count is not None and isinstance(node.op, ast.Add)

        def run(names: Inputs) -> Any:
            left_value, right_value = left(names), right(names)
            if may_join and type(left_value) is type(right_value) is list:
                return checked(left_value + right_value, node)
            if type(left_value) not in _NUMBERS or type(right_value) not in _NUMBERS:
                raise UnknownConstructError(f"{name_of(node)} is no arithmetic of numbers", node)
            if not is_shift or right_value <= _SHIFT_LIMIT:
                value = operator(left_value, right_value)
                if -LARGEST <= value <= LARGEST:
                    return value
            raise UnknownConstructError(f"{name_of(node)} is too large", node)

        return _folded(run, left, right)

    def _compare(self, node: ast.Compare) -> Run:
        operands = [self.of(operand) for operand in (node.left, *node.comparators)]
        if len(operands) == 2:
            return _comparison(node, operands[0], operands[1], node.ops[0])
        links = [_link(node, op) for op in node.ops]

        def run(names: Inputs) -> bool:
            values = (operand(names) for operand in operands)
            return all(link(*pair) for link, pair in zip(links, pairwise(values), strict=True))

        return _folded(run, *operands)

    def _tuple(self, node: ast.Tuple) -> Run:
        parts = [self.of(part) for part in node.elts]
        return _folded(lambda names: checked(tuple([part(names) for part in parts]), node), *parts)

    def _list(self, node: ast.List) -> Run:
        parts = [self.of(part) for part in node.elts]
        return lambda names: checked([part(names) for part in parts], node)

    def _set(self, node: ast.Set) -> Run:
        parts = [self.of(part) for part in node.elts]
        return _folded(lambda names: frozenset([part(names) for part in parts]), *parts)

    def _dict(self, node: ast.Dict) -> Run:
        keys = [None if key is None else self.of(key) for key in node.keys]
        pairs = [(key, self.of(value)) for key, value in zip(keys, node.values, strict=True) if key]
        if len(pairs) < len(keys):
            return _refusing(node)
        return lambda names: checked({key(names): value(names) for key, value in pairs}, node)

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Run:
        """Return the closure of a comprehension, which runs in a scope of its own."""
        count = self._count
        if count is None:
            return _refusing(node)
        loops = []
        for generator in node.generators:
            names = target_names(generator.target)
            if names is None or generator.is_async:
                return _refusing(node)
            loops.append(
                Loop(
                    names=names,
                    unpacks=not isinstance(generator.target, ast.Name),
                    group=self.of(generator.iter),
                    tests=[self.of(test) for test in generator.ifs],
                )
            )
        return comprehension(node, self.of(node.elt), loops, count)

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp) -> Run:
        elements = self._listcomp(node)
        return lambda names: frozenset(elements(names))

    def _subscript(self, node: ast.Subscript) -> Run:
        group, index = self.of(node.value), self.of(node.slice)
        return _folded(lambda names: group(names)[index(names)], group, index)

    def _joinedstr(self, node: ast.JoinedStr) -> Run:
        return _builtin(node, "join", [self.of(part) for part in node.values])

    def _formattedvalue(self, node: ast.FormattedValue) -> Run:
        if node.conversion != -1 or node.format_spec is not None:
            return _refusing(node)
        return _builtin(node, "str", [self.of(node.value)])

    def _call(self, node: ast.Call) -> Run:
        arguments = [self.of(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute) and not node.keywords:
            return _method(node, self.of(node.func.value), node.func.attr, arguments)
        if not isinstance(node.func, ast.Name) or node.keywords:
            return _refusing(node)
        name, call = node.func.id, self._evaluate_call
        if name in BUILTINS and name not in self._bindable:
            return _builtin(node, name, arguments)
        if name not in BUILTINS:
            return lambda names: call(name, [argument(names) for argument in arguments], names)
        builtin = _builtin(node, name, arguments)

        def run(names: Inputs) -> Any:
            if name in names:
                return call(name, [argument(names) for argument in arguments], names)
            return builtin(names)

        return run


def _refusing(node: ast.expr) -> Run:
    """Return the closure of an expression outside the known set: it raises when run."""

    def run(names: Inputs) -> Any:
        del names
        raise outside(node)

    return run


def _folded(run: Run, *parts: Run) -> Run:
    """Return a constant closure if all parts are constant; one without a value raises when run."""
    if not all(isinstance(part, Fixed) for part in parts):
        return run
    try:
        return Fixed(run({}))
    except NO_VALUE:
        return run


def _junction(parts: list[Run], *, stop: bool) -> Run:
    """Return the closure of a junction: the first value whose truth is `stop`, else the last."""
    operands: list[Run] = []
    for index, operand in enumerate(parts):
        if not isinstance(operand, Fixed) or index == len(parts) - 1:
            operands.append(operand)
        elif bool(operand.value) is stop:
            operands.append(operand)
            break  # later operands are never evaluated
    if len(operands) == 1:
        return operands[0]

    def run(names: Inputs) -> Any:
        value: Any = None
        for operand in operands:
            value = operand(names)
            if bool(value) is stop:
                break
        return value

    return run


def _link(node: ast.Compare, op: ast.cmpop) -> Callable[[Any, Any], bool]:
    """Return a function that compares two values, or raises where they may not be compared."""
    apply = OPERATORS[type(op)]
    is_identity = isinstance(op, ast.Is | ast.IsNot)

    def holds(left: Any, right: Any) -> bool:
        if is_identity and not (isinstance(left, _SINGLETONS) or isinstance(right, _SINGLETONS)):
            raise UnknownConstructError(f"{name_of(node)} compares no singletons", node)
        if type(right) is range and not isinstance(left, int):
            raise outside(node)
        return bool(apply(left, right))

    return holds


def _comparison(node: ast.Compare, left: Run, right: Run, op: ast.cmpop) -> Run:
    apply, holds = OPERATORS[type(op)], _link(node, op)
    if isinstance(right, Fixed) and not isinstance(op, ast.Is | ast.IsNot):
        limit = right.value  # nearly all comparisons are with a known number
        if type(limit) is not range:
            return _folded(lambda names: apply(left(names), limit), left)
    return _folded(lambda names: holds(left(names), right(names)), left, right)


def _builtin(node: ast.expr, name: str, arguments: list[Run]) -> Run:
    function = BUILTINS[name]

    def run(names: Inputs) -> Any:
        values = [argument(names) for argument in arguments]
        if _NUMBERS.issuperset(map(type, values)):
            return checked(function(*values), node)
        return checked(call_builtin(name, values), node)

    return run if name in _MUTABLE_RESULTS else _folded(run, *arguments)


def _method(node: ast.Call, receiver: Run, name: str, arguments: list[Run]) -> Run:
    def run(names: Inputs) -> Any:
        group = receiver(names)
        is_known = (isinstance(group, list) and name in LIST_METHODS) or (
            isinstance(group, str) and name in STRING_METHODS
        )
        if not is_known:
            raise outside(node)
        values = [argument(names) for argument in arguments]
        if name == "append":
            if len(values) == 1 and type(values[0]) in _NUMBERS and len(group) < LENGTH_LIMIT:
                return group.append(values[0])  # the usual call; the list stays within its limit
            for value in values:
                flat(value, node)
        result = getattr(group, name)(*values)
        checked(group, node)
        return checked(result, node)

    return run
