"""Cut a rule out of a Python function that does much else.

Where a value is computed in the midst of a long function, the rule is that value: the names that
it rests on are followed back to the inputs, and the rest of the function is not read.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.expressions import UnknownConstructError, truth_of, variables
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    at,
    bound_by,
    copied,
    defaults,
    names_in,
    parameters,
    walk_statements,
)
from nearfree.sources.language.slicing import changed_in_place


def assignments(function: Function, name: str) -> list[ast.Assign]:
    """Return the statements of a function that assign to one plain name."""
    return [
        statement
        for statement in walk_statements(function.body)
        if isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == name
    ]


def value_of(function: Function, name: str, stop: frozenset[str]) -> Function:
    """Return a function of no parameters that returns what `name` is assigned.

    Parameters
    ----------
    name
        The name; it must have one assignment.
    stop
        Names that are inputs of the rule; all others are followed back, and must then have one
        assignment, too.

    Raises
    ------
    SourceError
        The function does not assign the name, or assigns it or a name on the way more than once.
    """
    found = only_assignment(function, name)
    if found is None:
        raise SourceError(f"{function.name} assigns no {name}", remedy=MOVED)
    body: list[ast.stmt] = [copied(found)]
    waiting, seen = names_in(found.value) - stop, {name}
    while waiting:
        other = waiting.pop()
        seen.add(other)
        earlier = only_assignment(function, other)
        if earlier is not None:
            body.append(copied(earlier))
            waiting |= names_in(earlier.value) - stop - seen
    unsure = seen & changed_in_place(function.body)
    if unsure:
        raise SourceError(f"{function.name} changes {' and '.join(sorted(unsure))} in place")
    body.sort(key=lambda each: each.lineno)
    result = at(ast.Name(name, ast.Load()), found)
    body.append(at(ast.Return(result), found))
    return made(f"value_of_{name}", body, function)


def only_assignment(function: Function, name: str) -> ast.Assign | None:
    """Return the one statement that sets a name; None if the function sets it nowhere.

    Raises
    ------
    SourceError
        It is set several times, or not as a plain name.
    """
    plain = assignments(function, name)
    times = sum(name in bound_by(each) for each in _simple(function.body))
    if times > len(plain) or len(plain) > 1 or (plain and name in parameters(function)):
        raise SourceError(
            f"{function.name} assigns {name} {times + (name in parameters(function))} times"
        )
    return plain[0] if plain else None


def _simple(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the parts of statements that can set a name: plain statements, and heads of others."""
    for statement in walk_statements(body):
        inner = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
        if inner and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from (part for part in ast.iter_child_nodes(statement) if part not in inner)
        else:
            yield statement


def argument_of(function: Function, callee: Function, parameter: str) -> Function:
    """Return a function of no parameters that returns one argument of a call in a long function.

    Raises
    ------
    SourceError
        The call is not there once, or does not give that argument.
    """
    found = calls(function, callee.name)
    place = parameters(callee).index(parameter)
    values = [part.value for call in found for part in call.keywords if part.arg == parameter]
    values += [call.args[place] for call in found if len(call.args) > place]
    if len(values) != 1:
        raise SourceError(
            f"{function.name} gives {callee.name} {len(values)} times its {parameter}"
        )
    answer = at(ast.Return(copied(values[0])), values[0])
    return made(f"argument_{parameter}", [answer], function)


def arguments_of(function: Function, callee: str) -> Function:
    """Return the function up to a call, returning the call's arguments as a tuple.

    Raises
    ------
    SourceError
        The function does not call it in the value of an assignment.
    """
    short = copied(function)
    cutter = _Cutter(callee)
    cutter.visit(short)
    if not cutter.cut:
        raise SourceError(f"{function.name} does not call {callee}", remedy=MOVED)
    return short


def made(name: str, body: list[ast.stmt], old: ast.AST) -> Function:
    """Return a function of no parameters, at the place of another one."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    return at(ast.FunctionDef(name, nothing, body, [], None), old)


def calls(function: ast.AST, callee: str) -> list[ast.Call]:
    """Return the calls of a function by its plain name."""
    return [
        node
        for node in nodes_of(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == callee
    ]


class _Cutter(ast.NodeTransformer):
    def __init__(self, callee: str) -> None:
        self.callee = callee
        self.cut = False

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        found = calls(node.value, self.callee)
        if not found:
            return node
        if len(found) > 1:
            raise SourceError(f"{self.callee} is called twice in one statement")
        self.cut = True
        values = [*found[0].args, *(part.value for part in found[0].keywords)]
        return at(ast.Return(at(ast.Tuple(values, ast.Load()), found[0])), node)


def one_request(function: Function, number: str) -> Function:
    """Return a copy of a function whose loops over `number` requests run once.

    Parameters
    ----------
    function
        The function; it stays as it is.
    number
        The name of the number of requests: `for i in range(0, number)` is such a loop.
    """
    alike: Function = _Alike(number).visit(copied(function))
    return alike


def returning(function: Function, *names: str) -> Function:
    """Return a copy of a function that ends with the values of names, once all are settled.

    One name is returned as it is, several as a tuple.
    """
    short = copied(function)
    sets = [names_in(statement, context=ast.Store) for statement in short.body]
    for name in sorted({*names}.difference(*sets, parameters(function))):
        raise UnknownConstructError(f"{function.name} does not set {name}", function)
    places = [place for place, each in enumerate(sets) if not each.isdisjoint(names)]
    if not places:
        raise UnknownConstructError(f"{function.name} sets none of {', '.join(names)}", function)
    last = short.body[places[-1]]
    values: list[ast.expr] = [at(ast.Name(name, ast.Load()), last) for name in names]
    value = values[0] if len(values) == 1 else at(ast.Tuple(values, ast.Load()), last)
    short.body = [*short.body[: places[-1] + 1], at(ast.Return(value), last)]
    return short


def without_rest(function: Function) -> Function:
    """Return a copy of a function without what stands behind its answer, which is never run."""
    short = copied(function)
    for number, each in enumerate(short.body):
        if _ends(each):
            short.body = short.body[: number + 1]
    return short


def _ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return all(any(map(_ends, body)) for body in (statement.body, statement.orelse))
    return isinstance(statement, ast.Return | ast.Raise)


class _Alike(ast.NodeTransformer):
    def __init__(self, number: str) -> None:
        self.number = number

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        if not isinstance(node.target, ast.Name) or not self._over_requests(node.iter):
            return self.generic_visit(node)
        inner = _Round(node.target.id, self.number)
        return [inner.visit(statement) for statement in node.body]

    def _over_requests(self, group: ast.expr) -> bool:
        return ast.unparse(group) == f"range(0, {self.number})"


class _Round(ast.NodeTransformer):
    """One round of a loop: `x[i]` is `x_each`, `s += x` adds it for all of them."""

    def __init__(self, index: str, number: str) -> None:
        self.index = index
        self.number = number

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and ast.unparse(node.slice) == self.index:
            return at(ast.Name(f"{node.value.id}_each", node.ctx), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node = self.generic_visit(node)  # type: ignore[assignment]
        added = _added(node)
        if added is not None and isinstance(node.value, ast.BinOp):
            times = at(ast.Name(self.number, ast.Load()), node)
            node.value.right = at(ast.BinOp(times, ast.Mult(), added), node)
        return node


def _added(statement: ast.stmt) -> ast.expr | None:
    """Return what `s = s + x` adds."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.BinOp(left=ast.Name(id=read), op=ast.Add(), right=right),
        ) if name == read:
            return right
    return None


def without_options(function: Function, inputs: frozenset[str]) -> Function:
    """Return a function without ways that defaults close; it is changed in place.

    Parameters
    ----------
    inputs
        The parameters that a call gives; all others keep their defaults.
    """
    own = defaults(function)
    known: dict[str, object] = {}
    while True:
        stored = _stores(function)
        given = ((name, value) for name, value in own.items() if name not in inputs)
        more: dict[str, object] = {
            name: value.value
            for name, value in given
            if isinstance(value, ast.Constant) and not stored[name]
        }
        more |= {
            name: value
            for name, value in _constants(function)
            if stored[name] == 1 and name not in own
        }
        if more.keys() <= known.keys():
            return function
        known |= more
        function.body = _known(function.body, known)


def _stores(function: Function) -> Counter[str]:
    names = (node for node in nodes_of(function) if isinstance(node, ast.Name))
    return Counter(name.id for name in names if isinstance(name.ctx, ast.Store))


def _constants(function: Function) -> Iterator[tuple[str, object]]:
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value


def _known(body: list[ast.stmt], known: Mapping[str, object]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for statement in body:
        new = _Known(known).visit(statement)
        found += new if isinstance(new, list) else [new]
    return found


class _Known(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, object]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.known or not isinstance(node.ctx, ast.Load):
            return node
        return at(ast.Constant(self.known[node.id]), node)  # type: ignore[arg-type]

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        test = self.visit(node.test)
        truth = _truth(test)
        if truth is not None:
            return _known(node.body if truth else node.orelse, self.known)
        node.test = test
        node.body, node.orelse = _known(node.body, self.known), _known(node.orelse, self.known)
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Drop leading operands that leave the rest open; keep one that closes it."""
        self.generic_visit(node)
        stop = isinstance(node.op, ast.Or)
        while len(node.values) > 1 and isinstance(node.values[0], ast.Constant):
            if bool(node.values[0].value) is stop:
                return node.values[0]
            node.values.pop(0)
        return node.values[0] if len(node.values) == 1 else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        truth = _truth(node)
        return node if truth is None else at(ast.Constant(truth), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.visit(node.test)
        truth = _truth(node.test)
        if truth is None:
            return self.generic_visit(node)
        return self.visit(node.body if truth else node.orelse)  # type: ignore[no-any-return]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node


def _truth(test: ast.expr) -> bool | None:
    """Return whether a condition holds whatever the inputs, None where it depends on them."""
    if variables(test):
        return truth_of(test, _truth)
    try:
        return bool(evaluate(test, {}))
    except UnknownConstructError:
        return None
