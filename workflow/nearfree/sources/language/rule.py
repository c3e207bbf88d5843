"""An extracted rule, ready to answer: which branch applies to these inputs, and its value."""

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearfree.errors import EvidenceError, SourceError
from nearfree.events.types import Branch, RuleExtracted
from nearfree.sources.language.expressions import UnknownConstructError, evaluate, parse, variables
from nearfree.sources.language.interpret import REFUSED, Interpreter
from nearfree.sources.language.program import Program


@dataclass(frozen=True)
class Answer:
    """A rule's value, and the branch that it comes from."""

    value: Any
    branch: Branch


class _Refusal(Exception):  # noqa: N818  # the backend's, not an error of this package
    """A helper of the backend ends in an error, so the whole call does."""


_Parsed = tuple[Branch, list[ast.expr], ast.expr]


class Rule:
    """The branches of one rule, parsed once."""

    def __init__(self, rule: RuleExtracted) -> None:
        self.rule = rule
        self.functions: dict[str, ast.FunctionDef] = {}
        self._called: dict[tuple[str, str], Any] = {}
        for text in rule.functions:
            for node in parse_functions(text):
                self.functions[node.name] = node
        # Branches share conditions: one tree for each text, so that it is evaluated once a point.
        texts = {text for branch in rule.branches for text in branch.when}
        trees = {text: parse(text) for text in texts}
        self._branches: list[_Parsed] = [
            (branch, [trees[text] for text in branch.when], parse(branch.value))
            for branch in rule.branches
        ]

    def specialised(self, fixed: Mapping[str, Any]) -> "Rule":
        """Return the rule with only the branches that some inputs leave open.

        A condition that has no value at these inputs stays: an earlier one may rule it out.
        """
        narrow = copy.copy(self)
        narrow._branches = []  # noqa: SLF001  # a copy of this very class
        decided: dict[ast.expr, bool | None] = {}
        for branch, when, value in self._branches:
            rest = []
            for each in when:
                if each not in decided:
                    decided[each] = self._decided(each, fixed)
                holds = decided[each]
                if holds is False:
                    break
                if holds is None:
                    rest.append(each)
            else:
                narrow._branches.append((branch, rest, value))  # noqa: SLF001
        return narrow

    def _decided(self, node: ast.expr, fixed: Mapping[str, Any]) -> bool | None:
        if not variables(node) <= fixed.keys():
            return self._partly(node, fixed)
        try:
            return bool(self._evaluate(node, fixed))
        except (UnknownConstructError, _Refusal):
            return None

    def _partly(self, node: ast.expr, fixed: Mapping[str, Any]) -> bool | None:
        """Return what a part decides for the whole: `False and x` does not hold for any x."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._decided(node.operand, fixed)
            return None if inner is None else not inner
        if not isinstance(node, ast.BoolOp):
            return None
        stop = isinstance(node.op, ast.Or)
        return stop if stop in [self._decided(each, fixed) for each in node.values] else None

    def asked(self) -> set[str]:
        """Return the inputs that its open branches ask for."""
        nodes = {node for _, when, value in self._branches for node in (*when, value)}
        return {name for node in nodes for name in variables(node)}

    def missing(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the inputs that an answer still depends on where some are given."""
        return self.specialised(inputs).asked() - inputs.keys()

    def value(self, inputs: Mapping[str, Any]) -> Answer:
        """Return the value at some inputs, and its branch.

        Raises
        ------
        EvidenceError
            No branch applies; the inputs are outside of what the rule speaks of.
        SourceError
            Two branches apply: the rule was misread.
        """
        found, refusing = [], []
        held: dict[ast.expr, bool] = {}
        for branch, when, value in self._branches:
            try:
                if all(self._holds(each, inputs, held) for each in when):
                    found.append((branch, value))
            except _Refusal:
                refusing.append(branch)
        if refusing and not found:
            return Answer(REFUSED, refusing[0])
        if len(found) != 1:
            given = ", ".join(f"{name}={inputs.get(name)}" for name in self.rule.inputs)
            error = SourceError if found else EvidenceError
            raise error(
                f"{self.rule.package} {self.rule.version}: {len(found)} branches of"
                f" {self.rule.rule} apply at {given}",
                remedy="Report it; nothing is answered",
            )
        branch, value = found[0]
        try:
            return Answer(self._evaluate(value, inputs), branch)
        except _Refusal:
            return Answer(REFUSED, branch)

    def _holds(self, node: ast.expr, inputs: Mapping[str, Any], held: dict[ast.expr, bool]) -> bool:
        if node not in held:
            held[node] = bool(self._evaluate(node, inputs))
        return held[node]

    def _evaluate(self, node: ast.expr, inputs: Mapping[str, Any]) -> Any:
        try:
            return evaluate(node, inputs, self._call if self.functions else None)
        except UnknownConstructError as error:
            missing = sorted(variables(node) - inputs.keys())
            if not missing:
                raise
            raise EvidenceError(
                f"{self.rule.rule} of {self.rule.package} {self.rule.version} depends on"
                f" {', '.join(missing)}, which is not known",
                remedy="Name the device with --device, or give --sm",
            ) from error

    def _call(self, name: str, arguments: list[Any]) -> Any:
        key = (name, repr(arguments))
        if key not in self._called:
            self._called[key] = Interpreter(Program(self.functions), {}).call(name, arguments)
        if isinstance(self._called[key], str) and self._called[key] == REFUSED:
            raise _Refusal
        return self._called[key]


def parse_functions(text: str) -> list[ast.FunctionDef]:
    """Return the helpers that a recorded text holds.

    Raises
    ------
    UnknownConstructError
        It is no Python.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnknownConstructError(f"{text[:80]!r} is no function") from error
    return [each for each in body if isinstance(each, ast.FunctionDef)]
