"""C++ statements in normal form: declarations in their scopes, assignments, conditions, loops.

An unknown statement becomes a call of `opaque` with all names in it; it is dropped where a rule
needs none of them. One that may leave the function is never dropped.
"""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from nearfree.sources.cpp.declarations import Declarations
from nearfree.sources.cpp.expressions import ARITHMETIC
from nearfree.sources.cpp.nodes import (
    arguments,
    called_name,
    changed_by,
    changed_names,
    changed_parameters,
    identifiers,
    name_set,
    outside_lambdas,
    part,
)
from nearfree.sources.cpp.source import children, text_of, walk
from nearfree.sources.cpp.types import cast


class Statements(Declarations):
    """Translates C++ statements into Python's."""

    def block(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, up to the first that always leaves it."""
        if node.type != "compound_statement":
            return [*self.side_effect_statements(node), *self.statement(node)]
        statements: list[ast.stmt] = []
        with self.scope():
            for child in children(node):
                statements += self.side_effect_statements(child)
                statements += self.statement(child)
                if statements and isinstance(statements[-1], ast.Return | ast.Raise):
                    break
        return statements

    def nonempty_block(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, at least one."""
        return self.block(node) or [self.at(ast.Pass(), node)]

    def statement(self, node: Node) -> list[ast.stmt]:
        """Translate a statement."""
        method = getattr(self, f"s_{node.type}", None)
        if method is None:
            return self.unknown(node, *name_set(node))
        result: list[ast.stmt] = method(node)
        return result

    def side_effect_statements(self, node: Node) -> list[ast.stmt]:
        """Return the stand-in for a statement's side effects: the names that it also changes."""
        changed: set[str] = set()
        for expression in self.evaluated_expressions(node):
            changed |= self.side_effects(expression)
        value = self.opaque(node, *self.with_fields(changed))
        return [self.at(ast.Expr(value), node)] if changed else []

    def evaluated_expressions(self, node: Node) -> Iterator[Node]:
        """Yield the expressions of a statement that are evaluated besides its own effect."""
        inner = next(iter(children(node)), None)
        match node.type:
            case "expression_statement" if inner is not None:
                if inner.type == "assignment_expression":
                    if self.attribute(part(inner, "right")) is None:
                        yield part(inner, "right")
                elif inner.type == "call_expression" and self.attribute(inner) is None:
                    yield from arguments(inner)
            case "declaration":
                for child in node.children_by_field_name("declarator"):
                    value = child.child_by_field_name("value")
                    if value is not None and self.attribute(value) is None:
                        yield value
            case "if_statement":
                yield part(node, "condition")

    def side_effects(self, node: Node) -> set[str]:
        """Return the names that an expression changes: `x++`, `&x`, or `f(x)` with `int& x`."""
        names: set[str] = set()
        for descendant in outside_lambdas(node):
            if descendant.type in {
                "assignment_expression",
                "update_expression",
                "pointer_expression",
            }:
                names |= changed_names(descendant)
            elif descendant.type == "call_expression":
                callee = self.callee(part(descendant, "function"))
                may_change = [] if callee is None else changed_parameters(callee.node)
                changed_arguments = zip(may_change, arguments(descendant), strict=False)
                names |= name_set(*(argument for changes, argument in changed_arguments if changes))
        return names - self.meaning.records

    def s_compound_statement(self, node: Node) -> list[ast.stmt]:
        """Translate a nested block."""
        return self.block(node)

    def no_statements(self, node: Node) -> list[ast.stmt]:
        """Return nothing: a type has no effect on numbers."""
        del node
        return []

    s_comment = s_alias_declaration = s_static_assert_declaration = no_statements
    s_type_definition = s_using_declaration = s_empty_statement = no_statements

    def s_return_statement(self, node: Node) -> list[ast.stmt]:
        """Return the function's result, converted to its type."""
        inner = next(iter(children(node)), None)
        if inner is None:
            return [self.at(ast.Return(None), node)]
        value = self.converted(self.return_kind, self.expr(inner), inner)
        return [self.at(ast.Return(value), node)]

    def s_throw_statement(self, node: Node) -> list[ast.stmt]:
        """Refuse the call."""
        return [self.at(ast.Raise(None, None), node)]

    def s_break_statement(self, node: Node) -> list[ast.stmt]:
        """Leave a loop."""
        return [self.at(ast.Break(), node)]

    def s_continue_statement(self, node: Node) -> list[ast.stmt]:
        """Continue a loop."""
        return [self.at(ast.Continue(), node)]

    def s_if_statement(self, node: Node) -> list[ast.stmt]:
        """Translate an `if`; one that declares a name is unknown."""
        clause, alternative = part(node, "condition"), node.child_by_field_name("alternative")
        value = clause.child_by_field_name("value")
        if value is None or clause.child_by_field_name("initializer") is not None:
            return self.unknown(node, *name_set(node))
        if value.type == "declaration":
            return self.unknown(node, *name_set(node))
        test, body = self.test(value), self.nonempty_block(part(node, "consequence"))
        orelse: list[ast.stmt] = []
        for child in children(alternative) if alternative is not None else ():
            orelse += self.block(child)
        return [self.at(ast.If(test, body, orelse), node)]

    def s_switch_statement(self, node: Node) -> list[ast.stmt]:
        """Translate a switch into a chain of conditions, if no case falls through into the next."""
        value = part(node, "condition").child_by_field_name("value")
        cases = [case for case in children(part(node, "body")) if case.type == "case_statement"]
        groups = grouped_cases(cases)
        if not self.meaning.branching or value is None or groups is None:
            return self.unknown(node, *name_set(node))
        chain: list[ast.stmt] = []
        for labels, statements in reversed(groups):
            body = self.case_statements(statements) or [self.at(ast.Pass(), node)]
            tests: list[ast.expr] = [
                self.at(ast.Compare(self.expr(value), [ast.Eq()], [self.expr(label)]), label)
                for label in labels
                if label is not None
            ]
            if len(tests) < len(labels):
                chain = body
            else:
                test = tests[0] if len(tests) == 1 else self.at(ast.BoolOp(ast.Or(), tests), node)
                chain = [self.at(ast.If(test, body, chain), statements[0])]
        return chain

    def case_statements(self, statements: list[Node]) -> list[ast.stmt]:
        """Return the statements of a switch's case, without the `break` that ends it."""
        translated: list[ast.stmt] = []
        with self.scope():
            for statement in statements:
                if statement.type != "break_statement":
                    translated += self.side_effect_statements(statement)
                    translated += self.statement(statement)
        return translated

    def s_for_statement(self, node: Node) -> list[ast.stmt]:
        """Translate a counting loop: `for (int i = a; i < b; i++)` that changes neither i nor b."""
        counter = self.counter(node)
        if counter is None:
            return self.unknown(node, *name_set(node))
        name, low, high, comparison = counter
        body = part(node, "body")
        stop, start = self.expr(high), self.expr(low)
        if comparison == "<=":
            one = self.at(ast.Constant(1), high)
            stop = self.at(ast.BinOp(stop, ast.Add(), one), high)
        iterable = self.call("range", [start, stop], node)
        with self.scope():
            self.declare(name, "int")
            target = self.target(name, node)
            return [self.at(ast.For(target, iterable, self.nonempty_block(body), []), node)]

    def counter(self, node: Node) -> tuple[str, Node, Node, str] | None:
        """Return name, first value, limit and comparison of a counting loop; None for others."""
        initializer, condition, update = (
            node.child_by_field_name(field) for field in ("initializer", "condition", "update")
        )
        if initializer is None or condition is None or initializer.type != "declaration":
            return None
        declarators = initializer.children_by_field_name("declarator")
        declarator = declarators[0] if len(declarators) == 1 else None
        low = declarator.child_by_field_name("value") if declarator is not None else None
        high = condition.child_by_field_name("right")
        comparison = text_of(condition.child_by_field_name("operator"))
        if declarator is None or low is None or high is None or comparison not in {"<", "<="}:
            return None
        name = text_of(declarator.child_by_field_name("declarator"))
        counts_up = text_of(update) in {f"{name}++", f"++{name}"}
        is_increment = counts_up and text_of(condition.children[0]) == name
        body = part(node, "body")
        changed = (
            changed_names(body) | {"&"} if self.side_effects(condition) else changed_names(body)
        )
        changes_bounds = changed & ({name, "&"} | name_set(high)) or limit_may_change(high)
        return (name, low, high, comparison) if is_increment and not changes_bounds else None

    def assignment(self, node: Node, inner: Node) -> list[ast.stmt]:
        """Translate an assignment to a name, a field or an item."""
        left, right = part(inner, "left"), part(inner, "right")
        operator = text_of(part(inner, "operator"))
        name = called_name(right)
        if right.type == "call_expression" and name in self.meaning.answers:
            return [self.answer(right, name)]
        if left.type == "call_expression" and self.passes_record(right):
            unknown_targets = self.unknown(left, *changed_by(left)) if changed_by(left) else []
            return [*unknown_targets, self.at(ast.Expr(self.expr(right)), node)]
        target = self.expr(left)
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and operator == "="
        ):
            target.ctx = ast.Store()
            return [self.at(ast.Assign([target], self.expr(right)), node)]
        if not isinstance(target, ast.Name):
            return self.unknown(inner, *changed_by(left))
        fact = self.attribute(right)
        if fact is not None:
            unknown_value = self.at(
                ast.Assign([self.at(ast.Name(target.id, ast.Store()), node)], self.opaque(right)),
                node,
            )
            return [self.assign(*fact, node), unknown_value]
        return self.name_assignment(node, inner, target.id)

    def name_assignment(self, node: Node, inner: Node, name: str) -> list[ast.stmt]:
        """Translate an assignment to a name, converted to the name's type."""
        left, right = part(inner, "left"), part(inner, "right")
        operator = text_of(part(inner, "operator"))[:-1]
        kind = self.names.get(name, "")
        if not operator:
            value = self.converted(kind, self.expr(right), right)
        elif operator in ARITHMETIC or operator == "/":
            value = self.arithmetic(operator, self.expr(left), self.expr(right), inner)
            kinds = {kind, self.kinds.of(right)}
            may_differ = kinds & {"float", "double"} or kinds == {"int", "unsigned"}
            if kind and (may_differ or operator == "-") and kinds != {"int"}:
                value = self.at(cast(kind, value), right)
        else:
            return self.unknown(inner, *changed_by(left))
        target = self.at(ast.Name(name, ast.Store()), node)
        return [self.at(ast.Assign([target], value), node)]


def limit_may_change(high: Node) -> bool:
    """Return whether a loop's limit may change in its body: a call without names, as `v.size()`."""
    return any(node.type == "call_expression" for node in walk(high)) and not identifiers(high)


def grouped_cases(cases: list[Node]) -> list[tuple[list[Node | None], list[Node]]] | None:
    """Return the labels and statements of each group of cases, None for the label `default`.

    Return None for an unknown switch: a case falls through into the next, `break` stands elsewhere
    than at a case's end, or `default` is not last.
    """
    groups: list[tuple[list[Node | None], list[Node]]] = []
    labels: list[Node | None] = []
    for index, case in enumerate(cases):
        label = case.child_by_field_name("value")
        labels = [*labels, label]
        statements = [child for child in children(case) if child != label]
        is_last = index == len(cases) - 1
        if not statements and not is_last:
            continue
        descendants = [node for part in statements for node in walk(part)]
        breaks = sum(node.type == "break_statement" for node in descendants)
        if not (is_last or (statements and _leaves_switch(statements[-1]))) or breaks > 1:
            return None
        if breaks and statements[-1].type != "break_statement":
            return None
        if None in labels and not is_last:
            return None
        groups.append((labels, statements))
        labels = []
    return groups


def _leaves_switch(node: Node) -> bool:
    """Return whether a statement always leaves the switch."""
    if node.type in {"break_statement", "return_statement"}:
        return True
    inner = list(children(node))
    return node.type == "compound_statement" and bool(inner) and _leaves_switch(inner[-1])
