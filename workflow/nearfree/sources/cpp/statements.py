"""C++ statements in normal form: declarations in their scopes, assignments, conditions, loops.

A statement that is not known becomes a call of `opaque` with all names in it, which is dropped
where a rule needs none of them. One that may leave the function is never dropped.
"""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from nearfree.sources.cpp.declarations import Declarations
from nearfree.sources.cpp.expressions import ARITHMETIC
from nearfree.sources.cpp.nodes import (
    arguments,
    assigned,
    called_name,
    changed_by,
    changed_parameters,
    identifiers,
    name_set,
    outside_lambdas,
    part,
)
from nearfree.sources.cpp.source import children, walk, words
from nearfree.sources.cpp.types import cast


class Statements(Declarations):
    """Turns C++ statements into Python's."""

    def block(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, up to the first that leaves it."""
        if node.type != "compound_statement":
            return [*self.touching(node), *self.statement(node)]
        found: list[ast.stmt] = []
        with self.scope():
            for child in children(node):
                found += self.touching(child)
                found += self.statement(child)
                if found and isinstance(found[-1], ast.Return | ast.Raise):
                    break
        return found

    def filled(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block, one at least."""
        return self.block(node) or [self.at(ast.Pass(), node)]

    def statement(self, node: Node) -> list[ast.stmt]:
        """Return what stands for a statement."""
        method = getattr(self, f"s_{node.type}", None)
        if method is None:
            return self.unknown(node, *name_set(node))
        result: list[ast.stmt] = method(node)
        return result

    def touching(self, node: Node) -> list[ast.stmt]:
        """Return what tells of names that a statement's expressions change on the way."""
        changed: set[str] = set()
        for each in self.evaluated(node):
            changed |= self.side_effects(each)
        value = self.opaque(node, *self.with_fields(changed))
        return [self.at(ast.Expr(value), node)] if changed else []

    def evaluated(self, node: Node) -> Iterator[Node]:
        """Yield the expressions of a statement whose own effect is not what it is for."""
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
        found: set[str] = set()
        for each in outside_lambdas(node):
            if each.type in {"assignment_expression", "update_expression", "pointer_expression"}:
                found |= assigned(each)
            elif each.type == "call_expression":
                callee = self.callee(part(each, "function"))
                flags = [] if callee is None else changed_parameters(callee.node)
                pairs = zip(flags, arguments(each), strict=False)
                found |= name_set(*(given for changes, given in pairs if changes))
        return found - self.meaning.records

    def s_compound_statement(self, node: Node) -> list[ast.stmt]:
        """Return the statements of a block inside a block."""
        return self.block(node)

    def nothing(self, node: Node) -> list[ast.stmt]:
        """Return nothing: a type carries no number."""
        del node
        return []

    s_comment = s_alias_declaration = s_static_assert_declaration = nothing
    s_type_definition = s_using_declaration = s_empty_statement = nothing

    def s_return_statement(self, node: Node) -> list[ast.stmt]:
        """Return the function's result in its type."""
        inner = next(iter(children(node)), None)
        if inner is None:
            return [self.at(ast.Return(None), node)]
        value = self.converted(self.returns, self.expr(inner), inner)
        return [self.at(ast.Return(value), node)]

    def s_throw_statement(self, node: Node) -> list[ast.stmt]:
        """Refuse."""
        return [self.at(ast.Raise(None, None), node)]

    def s_break_statement(self, node: Node) -> list[ast.stmt]:
        """Leave a loop."""
        return [self.at(ast.Break(), node)]

    def s_continue_statement(self, node: Node) -> list[ast.stmt]:
        """Go on with a loop."""
        return [self.at(ast.Continue(), node)]

    def s_if_statement(self, node: Node) -> list[ast.stmt]:
        """Return a condition; one that declares a name is not known."""
        clause, other = part(node, "condition"), node.child_by_field_name("alternative")
        value = clause.child_by_field_name("value")
        if value is None or clause.child_by_field_name("initializer") is not None:
            return self.unknown(node, *name_set(node))
        if value.type == "declaration":
            return self.unknown(node, *name_set(node))
        test, body = self.test(value), self.filled(part(node, "consequence"))
        orelse = [] if other is None else [s for c in children(other) for s in self.block(c)]
        return [self.at(ast.If(test, body, orelse), node)]

    def s_switch_statement(self, node: Node) -> list[ast.stmt]:
        """Return a switch as a chain of conditions, where no case runs into the next one."""
        value = part(node, "condition").child_by_field_name("value")
        cases = [each for each in children(part(node, "body")) if each.type == "case_statement"]
        groups = grouped(cases)
        if not self.meaning.branching or value is None or groups is None:
            return self.unknown(node, *name_set(node))
        chain: list[ast.stmt] = []
        for labels, statements in reversed(groups):
            body = self.case(statements) or [self.at(ast.Pass(), node)]
            tests: list[ast.expr] = [
                self.at(ast.Compare(self.expr(value), [ast.Eq()], [self.expr(each)]), each)
                for each in labels
                if each is not None
            ]
            if len(tests) < len(labels):
                chain = body
            else:
                test = tests[0] if len(tests) == 1 else self.at(ast.BoolOp(ast.Or(), tests), node)
                chain = [self.at(ast.If(test, body, chain), statements[0])]
        return chain

    def case(self, statements: list[Node]) -> list[ast.stmt]:
        """Return the statements of one case of a switch, without the `break` that ends it."""
        found: list[ast.stmt] = []
        with self.scope():
            for each in statements:
                if each.type != "break_statement":
                    found += self.touching(each)
                    found += self.statement(each)
        return found

    def s_for_statement(self, node: Node) -> list[ast.stmt]:
        """Translate counting loops: `for (int i = a; i < b; i++)`, where nothing moves i or b."""
        counter = self.counter(node)
        if counter is None:
            return self.unknown(node, *name_set(node))
        name, low, high, sign = counter
        body = part(node, "body")
        end, first = self.expr(high), self.expr(low)
        if sign == "<=":
            one = self.at(ast.Constant(1), high)
            end = self.at(ast.BinOp(end, ast.Add(), one), high)
        ranged = self.call("range", [first, end], node)
        with self.scope():
            self.declare(name, "int")
            target = self.target(name, node)
            return [self.at(ast.For(target, ranged, self.filled(body), []), node)]

    def counter(self, node: Node) -> tuple[str, Node, Node, str] | None:
        """Return name, first value, limit and comparison of a counting loop; else None."""
        start, test, step = (
            node.child_by_field_name(each) for each in ("initializer", "condition", "update")
        )
        if start is None or test is None or start.type != "declaration":
            return None
        given = start.children_by_field_name("declarator")
        first = given[0] if len(given) == 1 else None
        low = first.child_by_field_name("value") if first is not None else None
        high, sign = test.child_by_field_name("right"), words(test.child_by_field_name("operator"))
        if first is None or low is None or high is None or sign not in {"<", "<="}:
            return None
        name = words(first.child_by_field_name("declarator"))
        counts = words(step) in {f"{name}++", f"++{name}"} and words(test.children[0]) == name
        body = part(node, "body")
        moved = assigned(body) | {"&"} if self.side_effects(test) else assigned(body)
        moves = moved & ({name, "&"} | name_set(high)) or leaves_sizes(high)
        return (name, low, high, sign) if counts and not moves else None

    def assignment(self, node: Node, inner: Node) -> list[ast.stmt]:
        """Return an assignment to a name, a field or an item."""
        left, right = part(inner, "left"), part(inner, "right")
        sign = words(part(inner, "operator"))
        name = called_name(right)
        if right.type == "call_expression" and name in self.meaning.answers:
            return [self.answer(right, name)]
        if left.type == "call_expression" and self.hands_on(right):
            tied = self.unknown(left, *changed_by(left)) if changed_by(left) else []
            return [*tied, self.at(ast.Expr(self.expr(right)), node)]
        target = self.expr(left)
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and sign == "=":
            target.ctx = ast.Store()
            return [self.at(ast.Assign([target], self.expr(right)), node)]
        if not isinstance(target, ast.Name):
            return self.unknown(inner, *changed_by(left))
        fact = self.attribute(right)
        if fact is not None:
            known = self.at(
                ast.Assign([self.at(ast.Name(target.id, ast.Store()), node)], self.opaque(right)),
                node,
            )
            return [self.assign(*fact, node), known]
        return self.set_name(node, inner, target.id)

    def set_name(self, node: Node, inner: Node, name: str) -> list[ast.stmt]:
        """Return an assignment to a name, in the name's type."""
        left, right = part(inner, "left"), part(inner, "right")
        sign = words(part(inner, "operator"))[:-1]
        kind = self.names.get(name, "")
        if not sign:
            value = self.converted(kind, self.expr(right), right)
        elif sign in ARITHMETIC or sign == "/":
            value = self.arithmetic(sign, self.expr(left), self.expr(right), inner)
            both = {kind, self.kinds.of(right)}
            if kind and (both & {"float", "double"} or both == {"int", "unsigned"} or sign == "-"):
                value = (
                    self.at(cast(kind, value), right) if kind != "int" or len(both) > 1 else value
                )
        else:
            return self.unknown(inner, *changed_by(left))
        target = self.at(ast.Name(name, ast.Store()), node)
        return [self.at(ast.Assign([target], value), node)]


def leaves_sizes(high: Node) -> bool:
    """Return whether a loop's limit asks something that its body may change: `v.size()`."""
    return any(node.type == "call_expression" for node in walk(high)) and not identifiers(high)


def grouped(cases: list[Node]) -> list[tuple[list[Node | None], list[Node]]] | None:
    """Return the labels and statements of a switch's cases, None for the label of `default`.

    None is returned of a switch that is not known: a case runs into the next one, `break` stands
    elsewhere than at a case's end, or `default` is not last.
    """
    found: list[tuple[list[Node | None], list[Node]]] = []
    labels: list[Node | None] = []
    for place, each in enumerate(cases):
        label = each.child_by_field_name("value")
        labels = [*labels, label]
        statements = [child for child in children(each) if child != label]
        last = place == len(cases) - 1
        if not statements and not last:
            continue
        inner = [node for part in statements for node in walk(part)]
        breaks = sum(node.type == "break_statement" for node in inner)
        if not (last or (statements and _leaves(statements[-1]))) or breaks > 1:
            return None
        if breaks and statements[-1].type != "break_statement":
            return None
        if None in labels and not last:
            return None
        found.append((labels, statements))
        labels = []
    return found


def _leaves(node: Node) -> bool:
    """Return whether a statement leaves a switch, whatever happens."""
    if node.type in {"break_statement", "return_statement"}:
        return True
    inner = list(children(node))
    return node.type == "compound_statement" and bool(inner) and _leaves(inner[-1])
