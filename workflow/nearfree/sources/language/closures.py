"""The evaluation of expressions: each tree turned once into closures that are run many times.

A closure is given what names stand for and returns the value, or raises an error that names what
has none. Nothing of a backend is compiled or run by Python.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any, cast

from nearfree.sources.language.expressions import (
    CONSTANTS,
    LARGEST,
    LIST_METHODS,
    MISTAKES,
    OPERATORS,
    STRING_METHODS,
    Inputs,
    UnknownConstructError,
    checked,
    flat,
    name_of,
    outside,
    variables,
)
from nearfree.sources.language.functions import BUILTINS, MOST_TEXT, called

Run = Callable[[Inputs], Any]
"""Returns an expression's value, given what its names stand for."""
Call = Callable[[str, list[Any], Inputs], Any]
"""Is given the name and arguments of a call that is no builtin, and what names stand for."""
NO_VALUE = (*MISTAKES, UnknownConstructError)
"""What a closure raises where there is no value."""
_SINGLES = (bool, type(None))
_NUMBERS = {int, float, bool}
_MADE = ("list", "sorted")
"""What gives a list of its own at every call, which may change later."""
_MOST_SHIFT = 62


def evaluate(node: ast.expr, inputs: Inputs) -> Any:
    """Return an expression's value, given what its names stand for.

    Raises
    ------
    UnknownConstructError
        A node, name or operator outside the known set, or a value that makes no sense.
    """
    try:
        return Closures({}, unknown, inputs).of(node)(inputs)
    except MISTAKES as error:
        raise no_value(node, inputs, error) from error


def no_value(node: ast.expr, inputs: Inputs, error: Exception) -> UnknownConstructError:
    """Return the error that says which expression has no value, after what was raised instead."""
    match error:
        case UnknownConstructError():
            return error
        case KeyError(args=(str(name),)) if name in variables(node) and name not in inputs:
            return UnknownConstructError(f"the name {name!r} is unknown", node)
    return UnknownConstructError(f"{name_of(node)} has no value here: {error}", node)


def unknown(name: str, arguments: list[Any], names: Inputs) -> Any:
    """Refuse a call: for expressions that call builtins alone."""
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
    """Turns expressions into closures, with all that some inputs settle worked out.

    Parameters
    ----------
    fixed
        Names that stand for the same at every evaluation.
    call
        What a call gives that is no builtin, or of a name that stands for something.
    named
        The names that may stand for something; none but those hides a builtin.
    count
        Counts each round of a comprehension against a limit; without it there are none, and no
        sums of lists.
    """

    def __init__(
        self,
        fixed: Inputs,
        call: Call,
        named: Collection[str],
        count: Callable[[ast.AST], None] | None = None,
    ) -> None:
        self._fixed, self._call_of, self._named, self._count = fixed, call, named, count
        self._ready: dict[ast.expr, Run] = {}

    def kept(self, node: ast.expr) -> Run:
        """Return an expression as a closure, made when it is first asked for."""
        if node not in self._ready:
            self._ready[node] = self.of(node)
        return self._ready[node]

    def of(self, node: ast.expr) -> Run:
        """Return an expression as a closure; what is outside the known set is an error when run."""
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
        return _either([self.of(part) for part in node.values], stop=isinstance(node.op, ast.Or))

    def _ifexp(self, node: ast.IfExp) -> Run:
        test, body, orelse = self.of(node.test), self.of(node.body), self.of(node.orelse)
        if isinstance(test, Fixed):
            return body if test.value else orelse
        return lambda names: body(names) if test(names) else orelse(names)

    def _unaryop(self, node: ast.UnaryOp) -> Run:
        part, apply = self.of(node.operand), OPERATORS.get(type(node.op))
        if apply is None:
            return _refusing(node)
        return _folded(lambda names: checked(apply(part(names)), node), part)

    def _binop(self, node: ast.BinOp) -> Run:
        left, right, apply = self.of(node.left), self.of(node.right), OPERATORS.get(type(node.op))
        if apply is None:
            return _refusing(node)
        shifts = isinstance(node.op, ast.LShift)
        joins = self._count is not None and isinstance(node.op, ast.Add)

        def run(names: Inputs) -> Any:
            one, other = left(names), right(names)
            if joins and type(one) is type(other) is list:
                return checked(one + other, node)
            if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
                raise UnknownConstructError(f"{name_of(node)} is no arithmetic of numbers", node)
            if not shifts or other <= _MOST_SHIFT:
                value = apply(one, other)
                if -LARGEST <= value <= LARGEST:
                    return value
            raise UnknownConstructError(f"{name_of(node)} is too large", node)

        return _folded(run, left, right)

    def _compare(self, node: ast.Compare) -> Run:
        parts = [self.of(each) for each in (node.left, *node.comparators)]
        if len(parts) == 2:
            return _comparison(node, parts[0], parts[1], node.ops[0])
        links = [_link(node, op) for op in node.ops]

        def run(names: Inputs) -> bool:
            values = (part(names) for part in parts)
            return all(link(*pair) for link, pair in zip(links, pairwise(values), strict=True))

        return _folded(run, *parts)

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
        """Return all rounds of a comprehension, in a scope of its own."""
        count, targets = self._count, [_names_set(each.target) for each in node.generators]
        if count is None or None in targets or any(each.is_async for each in node.generators):
            return _refusing(node)
        loops = [
            (target or [], self.of(each.iter), [self.of(test) for test in each.ifs])
            for target, each in zip(targets, node.generators, strict=True)
        ]
        element = self.of(node.elt)
        alone = node.generators[0].target
        if len(loops) == 1 and isinstance(alone, ast.Name):
            (_, group, tests), name = loops[0], alone.id

            def of_one(names: Inputs) -> list[Any]:
                own = cast("dict[str, Any]", names).copy()
                items, found = group(names), list[Any]()
                if not isinstance(items, list | tuple | range) or len(items) > MOST_TEXT:
                    raise outside(node)
                for item in items:
                    count(node)
                    own[name] = item
                    for test in tests:
                        if not test(own):
                            break
                    else:
                        found.append(flat(element(own), node))
                return cast("list[Any]", checked(found, node))

            return of_one

        def rounds(names: dict[str, Any], depth: int) -> Iterator[Any]:
            if depth == len(loops):
                yield flat(element(names), node)
                return
            target, group, tests = loops[depth]
            single = isinstance(node.generators[depth].target, ast.Name)
            items = group(names)
            if not isinstance(items, list | tuple | range) or len(items) > MOST_TEXT:
                raise outside(node)
            for item in items:
                count(node)
                parts = [item] if single else cast("Sequence[Any]", item)
                names |= zip(target, parts, strict=True)
                if all(test(names) for test in tests):
                    yield from rounds(names, depth + 1)

        def run(names: Inputs) -> list[Any]:
            own = cast("dict[str, Any]", names).copy()
            return cast("list[Any]", checked([*islice(rounds(own, 0), MOST_TEXT + 1)], node))

        return run

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp) -> Run:
        rounds = self._listcomp(node)
        return lambda names: frozenset(rounds(names))

    def _subscript(self, node: ast.Subscript) -> Run:
        group, place = self.of(node.value), self.of(node.slice)
        return _folded(lambda names: group(names)[place(names)], group, place)

    def _joinedstr(self, node: ast.JoinedStr) -> Run:
        return _builtin(node, "join", [self.of(part) for part in node.values])

    def _formattedvalue(self, node: ast.FormattedValue) -> Run:
        if node.conversion != -1 or node.format_spec is not None:
            return _refusing(node)
        return _builtin(node, "str", [self.of(node.value)])

    def _call(self, node: ast.Call) -> Run:
        parts = [self.of(part) for part in node.args]
        if isinstance(node.func, ast.Attribute) and not node.keywords:
            return _method(node, self.of(node.func.value), node.func.attr, parts)
        if not isinstance(node.func, ast.Name) or node.keywords:
            return _refusing(node)
        name, call = node.func.id, self._call_of
        if name in BUILTINS and name not in self._named:
            return _builtin(node, name, parts)
        if name not in BUILTINS:
            return lambda names: call(name, [part(names) for part in parts], names)
        builtin = _builtin(node, name, parts)

        def run(names: Inputs) -> Any:
            if name in names:
                return call(name, [part(names) for part in parts], names)
            return builtin(names)

        return run


def _names_set(target: ast.expr) -> list[str] | None:
    """Return the names that a round of a comprehension sets, None for any other target."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else None


def _refusing(node: ast.expr) -> Run:
    """Return the closure of what is outside the known set."""

    def run(names: Inputs) -> Any:
        del names
        raise outside(node)

    return run


def _folded(run: Run, *parts: Run) -> Run:
    """Return a closure, worked out where its parts are; one without a value there waits."""
    if not all(isinstance(part, Fixed) for part in parts):
        return run
    try:
        return Fixed(run({}))
    except NO_VALUE:
        return run


def _either(parts: list[Run], *, stop: bool) -> Run:
    """Return the first value whose truth is `stop`, else the last."""
    kept: list[Run] = []
    for number, each in enumerate(parts):
        if not isinstance(each, Fixed) or number == len(parts) - 1:
            kept.append(each)
        elif bool(each.value) is stop:
            kept.append(each)
            break  # what stands behind is never evaluated
    if len(kept) == 1:
        return kept[0]

    def run(names: Inputs) -> Any:
        value: Any = None
        for each in kept:
            value = each(names)
            if bool(value) is stop:
                break
        return value

    return run


def _link(node: ast.Compare, op: ast.cmpop) -> Callable[[Any, Any], bool]:
    """Return what compares two values, if they may be compared so."""
    apply = OPERATORS[type(op)]
    singles = isinstance(op, ast.Is | ast.IsNot)

    def holds(one: Any, other: Any) -> bool:
        if singles and not (isinstance(one, _SINGLES) or isinstance(other, _SINGLES)):
            raise UnknownConstructError(f"{name_of(node)} compares no singletons", node)
        if type(other) is range and not isinstance(one, int):
            raise outside(node)
        return bool(apply(one, other))

    return holds


def _comparison(node: ast.Compare, left: Run, right: Run, op: ast.cmpop) -> Run:
    apply, holds = OPERATORS[type(op)], _link(node, op)
    if isinstance(right, Fixed) and not isinstance(op, ast.Is | ast.IsNot):
        limit = right.value  # nearly all comparisons are with a number that is known
        if type(limit) is not range:
            return _folded(lambda names: apply(left(names), limit), left)
    return _folded(lambda names: holds(left(names), right(names)), left, right)


def _builtin(node: ast.expr, name: str, parts: list[Run]) -> Run:
    function = BUILTINS[name]

    def run(names: Inputs) -> Any:
        values = [part(names) for part in parts]
        if _NUMBERS.issuperset(map(type, values)):
            return checked(function(*values), node)
        return checked(called(name, values), node)

    return run if name in _MADE else _folded(run, *parts)


def _method(node: ast.Call, of: Run, name: str, parts: list[Run]) -> Run:
    def run(names: Inputs) -> Any:
        group = of(names)
        known = (isinstance(group, list) and name in LIST_METHODS) or (
            isinstance(group, str) and name in STRING_METHODS
        )
        if not known:
            raise outside(node)
        values = [part(names) for part in parts]
        if name == "append":
            if len(values) == 1 and type(values[0]) in _NUMBERS and len(group) < MOST_TEXT:
                return group.append(values[0])  # most calls: the list stays as short as it may be
            for value in values:
                flat(value, node)
        result = getattr(group, name)(*values)
        checked(group, node)
        return checked(result, node)

    return run
