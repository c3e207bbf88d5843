"""Translate a C++ function into normal form: Python syntax trees with the places of the source.

A closed set of constructs is translated. What lies outside of it becomes a call of `opaque`,
which has no value: it does no harm where a rule does not depend on it, and is an error that names
it where a rule does. Nothing is compiled.
"""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from nearfree.errors import SourceError
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.nodes import (
    arguments,
    assigned,
    called_name,
    identifiers,
    inside,
    name_set,
    part,
    plain,
    stream,
)
from nearfree.sources.cpp.source import (
    CppFiles,
    Found,
    Macro,
    children,
    function_name,
    parameter_names,
    returned_type,
    template_parameters,
    walk,
    words,
)
from nearfree.sources.cpp.statements import Statements
from nearfree.sources.cpp.types import kind_named
from nearfree.sources.language.program import Function, Text

CHECKS = {"TORCH_CHECK", "STD_TORCH_CHECK", "FLASHINFER_CHECK", "CHECK"}
SILENT = {"reserve", "printf", "C10_CUDA_CHECK"}
ENDS = {"push_back": "append", "emplace_back": "append"}


def translate(files: CppFiles, found: Found, meaning: Meaning | None = None) -> Function:
    """Return a C++ function in normal form; template parameters come first.

    Raises
    ------
    SourceError
        It is nested too deeply.
    """
    try:
        return _Translator(files, found.text, meaning or Meaning()).function(found.node)
    except (RecursionError, MemoryError) as error:
        raise SourceError(
            f"{found.text.path}: {function_name(found.node)} is nested too deeply"
        ) from error


class _Translator(Statements):
    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        super().__init__(files, text, meaning)
        self.inlined: list[Node] = []

    def function(self, node: Node) -> Function:
        names = [name for name, _ in template_parameters(node) if name]
        own = parameter_names(node)
        body = part(node, "body")
        self.returns = kind_named(returned_type(node))
        self.reassigned = assigned(body)
        self.fields = name_set(body) - {words(each) for each in identifiers(body)}
        for name in names:
            self.declare(name, "")
        for name, _, kind in own:
            self.declare(name, kind_named(kind))
        values = [self.expr(default) for _, default, _ in own if default is not None]
        function = self.define(function_name(node), [*names, *(n for n, _, _ in own)], body, values)
        if self.answered:
            for each in _own_returns(function.body):
                if each not in self.answered and each not in self.lost:
                    each.value = None
        return function

    def s_return_statement(self, node: Node) -> list[ast.stmt]:
        """Return the function's result, or what a switch macro was given."""
        inner = next(iter(children(node)), None)
        if inner is not None and self.is_inlined(inner):
            return self.inline()
        return super().s_return_statement(node)

    def s_expression_statement(self, node: Node) -> list[ast.stmt]:
        """Return an assignment or a call; of all else the names are not known any more."""
        inner = next(iter(children(node)), None)
        if inner is None:
            return []
        if inner.type == "assignment_expression":
            return self.assignment(node, inner)
        if inner.type == "call_expression":
            return self.called(node, inner)
        changed = name_set(stream(inner)) | self.side_effects(inner)
        return self.unknown(inner, *changed)

    def called(self, node: Node, call: Node) -> list[ast.stmt]:
        """Return a call that stands alone: a switch macro, a check, an answer, or a change."""
        for way in (self.macro, self.ending, self.effect):
            found = way(node, call)
            if found is not None:
                return found
        return self.unknown(call, *name_set(call))

    def macro(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Return what a macro of the source stands for; one that may return is not known."""
        name, given = called_name(call), arguments(call)
        if self.is_inlined(call):
            return self.inline()
        if name not in self.files.macros:
            return None
        macro = self.files.macros[name]
        if any(argument.type == "lambda_expression" for argument in given):
            return self.switched(call, macro)
        if name in CHECKS or not any(e.type == "return_statement" for e in walk(macro.body)):
            return None
        lost = self.at(ast.Return(self.opaque(call, *sorted(name_set(call)))), node)
        self.lost.append(lost)
        return [lost]

    def ending(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Return a check, or the answer that a call is."""
        function, name, given = part(call, "function"), called_name(call), arguments(call)
        if name in CHECKS and given:
            return [self.at(ast.Assert(self.test(given[0]), None), node)]
        if name in self.meaning.sinks:
            return [self.at(ast.Return(self.sunk(function, self.meaning.sinks[name])), node)]
        if name in self.meaning.answers:
            return [self.answer(call, name)]
        if name in self.meaning.tails:
            return [self.at(ast.Return(self.expr(call)), node)]
        return None

    def effect(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Return what a call changes."""
        function, name = part(call, "function"), called_name(call)
        attribute = self.attribute(call)
        if attribute is not None:
            return [self.assign(*attribute, node)]
        if name in SILENT or name in self.meaning.harmless:
            return []
        if self.hands_on(call):
            return [self.at(ast.Expr(self.expr(call)), node)]
        if words(function) == "std::swap":
            return [self.swapped(call)]
        return self.cleared(node, call) or self.appended(node, call)

    def cleared(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Return what `memset(&params, 0, ...)` does to a structure."""
        given = arguments(call)
        target = words(given[0]).lstrip("&") if given else ""
        if called_name(call) != "memset" or target not in self.meaning.records:
            return None
        return [self.assign(target, self.at(ast.Tuple([], ast.Load()), call), node)]

    def appended(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Return what `v.push_back(x)` does to a vector."""
        function, name, given = part(call, "function"), called_name(call), arguments(call)
        if function.type == "field_expression" and name in ENDS and len(given) == 1:
            group = self.expr(part(function, "argument"))
            method = self.at(ast.Attribute(group, ENDS[name], ast.Load()), node)
            appended = self.at(ast.Call(method, [self.expr(given[0])], []), node)
            return [self.at(ast.Expr(appended), node)]
        return None

    def swapped(self, call: Node) -> ast.stmt:
        sides = [self.expr(argument) for argument in arguments(call)]
        names = [side.id for side in sides if isinstance(side, ast.Name)]
        if len(names) != 2 or len(sides) != 2:
            return self.at(ast.Expr(self.opaque(call, *sorted(name_set(call)))), call)
        targets: list[ast.expr] = [self.at(ast.Name(name, ast.Store()), call) for name in names]
        pair = self.at(ast.Tuple(targets, ast.Store()), call)
        return self.at(
            ast.Assign([pair], self.at(ast.Tuple([*reversed(sides)], ast.Load()), call)), call
        )

    def sunk(self, function: Node, places: tuple[int, ...]) -> ast.expr:
        node = function
        for place in places:
            found = [part for part in inside(node) if part.type == "template_argument_list"]
            parts = list(children(found[0])) if found else []
            if place >= len(parts):
                return self.opaque(function)
            node = parts[place]
        return self.expr(plain(node))

    def switched(self, call: Node, macro: Macro) -> list[ast.stmt]:
        """Translate a switch macro: its own body, around the function that it was given."""
        given = arguments(call)
        function = next(argument for argument in given if argument.type == "lambda_expression")
        own = [node for node in walk(macro.body) if node.type == "lambda_expression"]
        if len(own) != 1:
            return self.unknown(call, *name_set(call))
        values = {
            name: self.expr(each)
            for name, each in zip(macro.parameters, given, strict=False)
            if name != "..." and each.type != "lambda_expression"
        }
        bound, place = self.bound, self.place
        self.bound = {**bound, **values}
        self.inlined.append(function)
        self.place = given[0]
        try:
            return self.block(part(own[0], "body"))
        finally:
            self.bound, self.place = bound, place
            self.inlined.pop()

    def is_inlined(self, call: Node) -> bool:
        function = call.child_by_field_name("function") if call.type == "call_expression" else None
        return bool(self.inlined) and words(function) == "__VA_ARGS__"

    def inline(self) -> list[ast.stmt]:
        """Translate the function that a switch macro was given."""
        function, place = self.inlined.pop(), self.place
        self.place = None
        try:
            return self.block(part(function, "body"))
        finally:
            self.place = place
            self.inlined.append(function)


def _own_returns(body: list[ast.stmt]) -> Iterator[ast.Return]:
    for statement in body:
        if isinstance(statement, ast.Return):
            yield statement
        elif not isinstance(statement, ast.FunctionDef):
            for name in ("body", "orelse"):
                yield from _own_returns(getattr(statement, name, []))
