"""Translate a C++ function into normal form: Python syntax trees with the positions of the source.

A closed set of constructs is translated. Anything else becomes a call of `opaque`, which has no
value: it is harmless if the rule does not depend on it, and else an error that names it. Nothing is
compiled.
"""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from nearfree.errors import SourceError
from nearfree.sources.cpp.expressions import Meaning
from nearfree.sources.cpp.nodes import (
    arguments,
    called_name,
    changed_names,
    identifiers,
    name_set,
    part,
    plain,
    stream,
)
from nearfree.sources.cpp.source import (
    CppFiles,
    Definition,
    Macro,
    children,
    function_name,
    parameter_names,
    template_parameters,
    text_of,
    walk,
)
from nearfree.sources.cpp.statements import Statements
from nearfree.sources.cpp.types import kind_named
from nearfree.sources.language.program import Function, Text

CHECKS = {"TORCH_CHECK", "STD_TORCH_CHECK", "FLASHINFER_CHECK", "CHECK"}
SILENT = {"reserve", "printf", "C10_CUDA_CHECK"}
ENDS = {"push_back": "append", "emplace_back": "append"}


def translate(files: CppFiles, definition: Definition, meaning: Meaning | None = None) -> Function:
    """Return a C++ function in normal form; template parameters come first.

    Raises
    ------
    SourceError
        It is nested too deeply.
    """
    try:
        return _Translator(files, definition.text, meaning or Meaning()).function(definition.node)
    except (RecursionError, MemoryError) as error:
        raise SourceError(
            f"{definition.text.path}: {function_name(definition.node)} is nested too deeply"
        ) from error


class _Translator(Statements):
    def __init__(self, files: CppFiles, text: Text, meaning: Meaning) -> None:
        super().__init__(files, text, meaning)
        self.macro_lambdas: list[Node] = []

    def function(self, node: Node) -> Function:
        names = [name for name, _ in template_parameters(node) if name]
        own_parameters = parameter_names(node)
        body = part(node, "body")
        self.return_kind = kind_named(text_of(node.child_by_field_name("type")))
        self.reassigned = changed_names(body)
        self.fields = name_set(body) - {text_of(identifier) for identifier in identifiers(body)}
        for name in names:
            self.declare(name, "")
        for name, _, kind in own_parameters:
            self.declare(name, kind_named(kind))
        default_values = [
            self.expr(default) for _, default, _ in own_parameters if default is not None
        ]
        function = self.define(
            function_name(node),
            [*names, *(name for name, _, _ in own_parameters)],
            body,
            default_values,
        )
        if self.answer_returns:
            for return_ in _own_returns(function.body):
                if return_ not in self.answer_returns and return_ not in self.unknown_returns:
                    return_.value = None
        return function

    def s_return_statement(self, node: Node) -> list[ast.stmt]:
        """Return the function's result, or the body of the lambda of a switch macro."""
        inner = next(iter(children(node)), None)
        if inner is not None and self.is_lambda_call(inner):
            return self.inline_lambda()
        return super().s_return_statement(node)

    def s_expression_statement(self, node: Node) -> list[ast.stmt]:
        """Translate an assignment or a call; other expressions make their names unknown."""
        inner = next(iter(children(node)), None)
        if inner is None:
            return []
        if inner.type == "assignment_expression":
            return self.assignment(node, inner)
        if inner.type == "call_expression":
            return self.call_statement(node, inner)
        changed = name_set(stream(inner)) | self.side_effects(inner)
        return self.unknown(inner, *changed)

    def call_statement(self, node: Node, call: Node) -> list[ast.stmt]:
        """Translate a call statement: a switch macro, a check, an answer, or a change."""
        for translate_call in (self.macro, self.check_or_answer, self.call_effect):
            statements = translate_call(node, call)
            if statements is not None:
                return statements
        return self.unknown(call, *name_set(call))

    def macro(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Translate a macro of the source; one that may return is unknown. None for other calls."""
        name, args = called_name(call), arguments(call)
        if self.is_lambda_call(call):
            return self.inline_lambda()
        if name not in self.files.macros:
            return None
        macro = self.files.macros[name]
        if any(argument.type == "lambda_expression" for argument in args):
            return self.expand_switch_macro(call, macro)
        if name in CHECKS or not any(
            part_.type == "return_statement" for part_ in walk(macro.body)
        ):
            return None
        unknown_return = self.at(ast.Return(self.opaque(call, *sorted(name_set(call)))), node)
        self.unknown_returns.append(unknown_return)
        return [unknown_return]

    def check_or_answer(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Translate a check, or a call that gives the answer; None for other calls."""
        function, name, args = part(call, "function"), called_name(call), arguments(call)
        if name in CHECKS and args:
            return [self.at(ast.Assert(self.test(args[0]), None), node)]
        if name in self.meaning.sinks:
            return [self.at(ast.Return(self.sink_answer(function, self.meaning.sinks[name])), node)]
        if name in self.meaning.answers:
            return [self.answer(call, name)]
        if name in self.meaning.tails:
            return [self.at(ast.Return(self.expr(call)), node)]
        return None

    def call_effect(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Translate the changes that a call makes; None if they are unknown."""
        function, name = part(call, "function"), called_name(call)
        attribute = self.attribute(call)
        if attribute is not None:
            return [self.assign(*attribute, node)]
        if name in SILENT or name in self.meaning.harmless:
            return []
        if self.passes_record(call):
            return [self.at(ast.Expr(self.expr(call)), node)]
        if text_of(function) == "std::swap":
            return [self.swap_statement(call)]
        return self.record_reset(node, call) or self.append_statement(node, call)

    def record_reset(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Translate `memset(&params, 0, ...)` of a structure; None for other calls."""
        args = arguments(call)
        target = text_of(args[0]).lstrip("&") if args else ""
        if called_name(call) != "memset" or target not in self.meaning.records:
            return None
        return [self.assign(target, self.at(ast.Tuple([], ast.Load()), call), node)]

    def append_statement(self, node: Node, call: Node) -> list[ast.stmt] | None:
        """Translate `v.push_back(x)` of a vector; None for other calls."""
        function, name, args = part(call, "function"), called_name(call), arguments(call)
        if function.type == "field_expression" and name in ENDS and len(args) == 1:
            vector = self.expr(part(function, "argument"))
            method = self.at(ast.Attribute(vector, ENDS[name], ast.Load()), node)
            appended = self.at(ast.Call(method, [self.expr(args[0])], []), node)
            return [self.at(ast.Expr(appended), node)]
        return None

    def swap_statement(self, call: Node) -> ast.stmt:
        operands = [self.expr(argument) for argument in arguments(call)]
        names = [operand.id for operand in operands if isinstance(operand, ast.Name)]
        if len(names) != 2 or len(operands) != 2:
            return self.at(ast.Expr(self.opaque(call, *sorted(name_set(call)))), call)
        targets: list[ast.expr] = [self.at(ast.Name(name, ast.Store()), call) for name in names]
        targets_tuple = self.at(ast.Tuple(targets, ast.Store()), call)
        values = self.at(ast.Tuple([*reversed(operands)], ast.Load()), call)
        return self.at(ast.Assign([targets_tuple], values), call)

    def sink_answer(self, function: Node, indices: tuple[int, ...]) -> ast.expr:
        """Return the template argument that a sink's indices lead to, as the answer."""
        node = function
        for index in indices:
            lists = (part_ for part_ in walk(node) if part_.type == "template_argument_list")
            outermost = next(lists, None)
            listed_arguments = [] if outermost is None else [*children(outermost)]
            if index >= len(listed_arguments):
                return self.opaque(function)
            node = listed_arguments[index]
        return self.expr(plain(node))

    def expand_switch_macro(self, call: Node, macro: Macro) -> list[ast.stmt]:
        """Translate a switch macro: its own body, around the lambda that it takes."""
        args = arguments(call)
        function = next(argument for argument in args if argument.type == "lambda_expression")
        lambdas = [node for node in walk(macro.body) if node.type == "lambda_expression"]
        if len(lambdas) != 1:
            return self.unknown(call, *name_set(call))
        argument_values = {
            name: self.expr(arg)
            for name, arg in zip(macro.parameters, args, strict=False)
            if name != "..." and arg.type != "lambda_expression"
        }
        substitutions, macro_site = self.substitutions, self.macro_site
        self.substitutions = {**substitutions, **argument_values}
        self.macro_lambdas.append(function)
        self.macro_site = args[0]
        try:
            return self.block(part(lambdas[0], "body"))
        finally:
            self.substitutions, self.macro_site = substitutions, macro_site
            self.macro_lambdas.pop()

    def is_lambda_call(self, call: Node) -> bool:
        """Return whether a call in a switch macro's body is that of its lambda."""
        function = call.child_by_field_name("function") if call.type == "call_expression" else None
        return bool(self.macro_lambdas) and text_of(function) == "__VA_ARGS__"

    def inline_lambda(self) -> list[ast.stmt]:
        """Translate the body of the lambda that a switch macro takes."""
        function, macro_site = self.macro_lambdas.pop(), self.macro_site
        self.macro_site = None
        try:
            return self.block(part(function, "body"))
        finally:
            self.macro_site = macro_site
            self.macro_lambdas.append(function)


def _own_returns(body: list[ast.stmt]) -> Iterator[ast.Return]:
    for statement in body:
        if isinstance(statement, ast.Return):
            yield statement
        elif not isinstance(statement, ast.FunctionDef):
            for block in ("body", "orelse"):
                yield from _own_returns(getattr(statement, block, []))
