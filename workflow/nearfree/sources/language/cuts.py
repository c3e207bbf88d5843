"""Extract a rule from a Python function that also does much else.

If a long function computes a value on its way, that value is the rule: the names that it depends on
are followed back to the inputs, and the rest of the function is not read.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from nearfree.errors import MovedError, SourceError
from nearfree.sources.language.closures import evaluate
from nearfree.sources.language.expressions import UnknownConstructError, truth_of, variables
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    at,
    bound_by,
    copied,
    defaults,
    made_function,
    names_in,
    parameters,
    statement_at,
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
    """Return a function without parameters that returns the value assigned to `name`.

    Parameters
    ----------
    name
        The name, which must be assigned exactly once.
    stop
        Inputs of the rule; any other name is followed back, and must be assigned at most once.

    Raises
    ------
    SourceError
        The function does not assign the name, or assigns it or a followed name more than once.
    """
    assignment = only_assignment(function, name)
    if assignment is None:
        raise MovedError(f"{function.name} assigns no {name}")
    body: list[ast.stmt] = [copied(assignment)]
    waiting, followed = names_in(assignment.value) - stop, {name}
    while waiting:
        dependency = waiting.pop()
        followed.add(dependency)
        definition = only_assignment(function, dependency)
        if definition is not None:
            body.append(copied(definition))
            waiting |= names_in(definition.value) - stop - followed
    changed = followed & changed_in_place(function.body)
    if changed:
        raise SourceError(f"{function.name} changes {' and '.join(sorted(changed))} in place")
    body.sort(key=lambda statement: statement.lineno)
    body.append(statement_at(f"return {name}", assignment))
    return made_function(f"value_of_{name}", (), body, function)


def only_assignment(function: Function, name: str) -> ast.Assign | None:
    """Return the one statement that assigns a name; None if the function never binds it.

    Raises
    ------
    SourceError
        It is bound several times, or not by a plain assignment.
    """
    plain_assignments = assignments(function, name)
    binding_count = sum(name in bound_by(part) for part in _binding_parts(function.body))
    if (
        binding_count > len(plain_assignments)
        or len(plain_assignments) > 1
        or (plain_assignments and name in parameters(function))
    ):
        raise SourceError(
            f"{function.name} assigns {name} {binding_count + (name in parameters(function))} times"
        )
    return plain_assignments[0] if plain_assignments else None


def _binding_parts(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the parts of statements that can bind a name: simple statements, and other heads."""
    for statement in walk_statements(body):
        inner = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
        if inner and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from (part for part in ast.iter_child_nodes(statement) if part not in inner)
        else:
            yield statement


def argument_of(function: Function, callee: Function, parameter: str) -> Function:
    """Return a function without parameters that returns one argument of a call.

    Raises
    ------
    SourceError
        The function does not pass that argument in exactly one call.
    """
    matching_calls = calls_of(function, callee.name)
    index = parameters(callee).index(parameter)
    values = [
        keyword.value
        for call in matching_calls
        for keyword in call.keywords
        if keyword.arg == parameter
    ]
    values += [call.args[index] for call in matching_calls if len(call.args) > index]
    if len(values) != 1:
        raise SourceError(
            f"{function.name} gives {callee.name} {len(values)} times its {parameter}"
        )
    answer = at(ast.Return(copied(values[0])), values[0])
    return made_function(f"argument_{parameter}", (), [answer], function)


def arguments_of(function: Function, callee: str) -> Function:
    """Return the function up to a call; it returns the call's arguments as a tuple.

    Raises
    ------
    SourceError
        The function does not call it in the value of an assignment.
    """
    shortened = copied(function)
    cutter = _CallCutter(callee)
    cutter.visit(shortened)
    if not cutter.cut:
        raise MovedError(f"{function.name} does not call {callee}")
    return shortened


def calls_of(function: ast.AST, callee: str) -> list[ast.Call]:
    """Return a tree's calls of a function by its plain name."""
    return [
        node
        for node in nodes_of(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == callee
    ]


class _CallCutter(ast.NodeTransformer):
    def __init__(self, callee: str) -> None:
        self.callee = callee
        self.cut = False

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        matching_calls = calls_of(node.value, self.callee)
        if not matching_calls:
            return node
        if len(matching_calls) > 1:
            raise SourceError(f"{self.callee} is called twice in one statement")
        self.cut = True
        call = matching_calls[0]
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        return at(ast.Return(at(ast.Tuple(values, ast.Load()), call)), node)


def one_request(function: Function, number: str) -> Function:
    """Return a copy of a function whose loops over `number` requests run once.

    `for i in range(0, number)` is a loop over them.
    """
    unrolled: Function = _RequestLoopUnroller(number).visit(copied(function))
    return unrolled


def returning_names(function: Function, *names: str) -> Function:
    """Return a copy of a function that ends once all given names are set, and returns them."""
    shortened = copied(function)
    stored_names = [names_in(statement, context=ast.Store) for statement in shortened.body]
    for name in sorted({*names}.difference(*stored_names, parameters(function))):
        raise UnknownConstructError(f"{function.name} does not set {name}", function)
    setting_positions = [
        position for position, stored in enumerate(stored_names) if not stored.isdisjoint(names)
    ]
    if not setting_positions:
        raise UnknownConstructError(f"{function.name} sets none of {', '.join(names)}", function)
    last = shortened.body[setting_positions[-1]]
    answer = statement_at(f"return {', '.join(names)}", last)
    shortened.body = [*shortened.body[: setting_positions[-1] + 1], answer]
    return shortened


def without_unreachable(function: Function) -> Function:
    """Return a copy of a function without unreachable statements after its last return."""
    shortened = copied(function)
    for index, statement in enumerate(shortened.body):
        if _always_ends(statement):
            shortened.body = shortened.body[: index + 1]
    return shortened


def _always_ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return all(any(map(_always_ends, body)) for body in (statement.body, statement.orelse))
    return isinstance(statement, ast.Return | ast.Raise)


class _RequestLoopUnroller(ast.NodeTransformer):
    def __init__(self, number: str) -> None:
        self.number = number

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        is_over_requests = ast.unparse(node.iter) == f"range(0, {self.number})"
        if not isinstance(node.target, ast.Name) or not is_over_requests:
            return self.generic_visit(node)
        inner = _SingleRequest(node.target.id, self.number)
        return [inner.visit(statement) for statement in node.body]


class _SingleRequest(ast.NodeTransformer):
    """The loop body for one request: `x[i]` becomes `x_each`; `s += x` adds for all requests."""

    def __init__(self, index: str, number: str) -> None:
        self.index = index
        self.number = number

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and ast.unparse(node.slice) == self.index:
            return at(ast.Name(f"{node.value.id}_each", node.ctx), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.BinOp(left=ast.Name(id=read), op=ast.Add(), right=summand) as total,
            ) if name == read:
                factor = at(ast.Name(self.number, ast.Load()), node)
                total.right = at(ast.BinOp(factor, ast.Mult(), summand), node)
        return node


def with_defaults(function: Function, inputs: frozenset[str]) -> Function:
    """Return a function without the branches that defaults exclude; it is changed in place.

    A call passes the `inputs`; all other parameters keep their defaults.
    """
    default_values = defaults(function)
    constants: dict[str, object] = {}
    while True:
        store_counts = _store_counts(function)
        unset = ((name, value) for name, value in default_values.items() if name not in inputs)
        added: dict[str, object] = {
            name: value.value
            for name, value in unset
            if isinstance(value, ast.Constant) and not store_counts[name]
        }
        added |= {
            name: value
            for name, value in _constants(function)
            if store_counts[name] == 1 and name not in default_values
        }
        if added.keys() <= constants.keys():
            return function
        constants |= added
        function.body = _with_constants(function.body, constants)


def _store_counts(function: Function) -> Counter[str]:
    """Return how often a function stores each name."""
    names = (node for node in nodes_of(function) if isinstance(node, ast.Name))
    return Counter(name.id for name in names if isinstance(name.ctx, ast.Store))


def _constants(function: Function) -> Iterator[tuple[str, object]]:
    """Yield the names that top-level statements set to a literal, with its value."""
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value


def _with_constants(body: list[ast.stmt], constants: Mapping[str, object]) -> list[ast.stmt]:
    statements: list[ast.stmt] = []
    for statement in body:
        replacement = _ConstantSubstitution(constants).visit(statement)
        statements += replacement if isinstance(replacement, list) else [replacement]
    return statements


class _ConstantSubstitution(ast.NodeTransformer):
    def __init__(self, constants: Mapping[str, object]) -> None:
        self.constants = constants

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.constants or not isinstance(node.ctx, ast.Load):
            return node
        return at(ast.Constant(self.constants[node.id]), node)  # type: ignore[arg-type]

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        test = self.visit(node.test)
        truth = _truth(test)
        if truth is not None:
            return _with_constants(node.body if truth else node.orelse, self.constants)
        node.test = test
        body = _with_constants(node.body, self.constants)
        node.body = body or [ast.copy_location(ast.Pass(), node)]
        node.orelse = _with_constants(node.orelse, self.constants)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Drop leading constants that leave the result open; return one that determines it."""
        self.generic_visit(node)
        dominant = isinstance(node.op, ast.Or)
        while len(node.values) > 1 and isinstance(node.values[0], ast.Constant):
            if bool(node.values[0].value) is dominant:
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
    """Return whether a condition holds for all inputs; None where it depends on them."""
    if variables(test):
        return truth_of(test, _truth)
    try:
        return bool(evaluate(test, {}))
    except UnknownConstructError:
        return None
