"""An extracted rule, ready to answer: which branch applies to these inputs, and its value."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearfree.errors import EvidenceError, SourceError
from nearfree.events.types import Branch, RuleExtracted
from nearfree.sources.expressions import UnknownConstructError, evaluate, parse, variables
from nearfree.sources.interpret import Interpreter
from nearfree.sources.program import Program


@dataclass(frozen=True)
class Answer:
    """A rule's value, and the branch that it comes from."""

    value: Any
    branch: Branch


class Rule:
    """The branches of one rule, parsed once."""

    def __init__(self, rule: RuleExtracted) -> None:
        self.rule = rule
        self.functions: dict[str, ast.FunctionDef] = {}
        self._called: dict[tuple[object, ...], Any] = {}
        for text in rule.functions:
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef):
                    self.functions[node.name] = node
        self._branches = [
            (branch, [parse(text) for text in branch.when], parse(branch.value))
            for branch in rule.branches
        ]

    def specialised(self, fixed: Mapping[str, Any]) -> "Rule":
        """Return the rule with only the branches that some inputs leave open."""
        narrow = Rule.__new__(Rule)
        narrow.rule, narrow.functions = self.rule, self.functions
        narrow._called = self._called
        narrow._branches = []
        for branch, when, value in self._branches:
            decided = [variables(each) <= fixed.keys() for each in when]
            if all(
                self._evaluate(each, fixed)
                for each, known in zip(when, decided, strict=True)
                if known
            ):
                rest = [each for each, known in zip(when, decided, strict=True) if not known]
                narrow._branches.append((branch, rest, value))
        return narrow

    def missing(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the inputs that an answer still depends on where some are given."""
        narrow = self.specialised(inputs)._branches
        left = [node for _, when, value in narrow for node in (*when, value)]
        return {name for node in left for name in variables(node)} - inputs.keys()

    def value(self, inputs: Mapping[str, Any]) -> Answer:
        """Return the value at some inputs, and its branch.

        Raises
        ------
        EvidenceError
            No branch applies; the inputs are outside of what the rule speaks of.
        SourceError
            Two branches apply: the rule was misread.
        """
        found = [
            (branch, value)
            for branch, when, value in self._branches
            if all(self._evaluate(each, inputs) for each in when)
        ]
        if len(found) != 1:
            given = ", ".join(f"{name}={inputs.get(name)}" for name in self.rule.inputs)
            error = SourceError if found else EvidenceError
            raise error(
                f"{self.rule.package} {self.rule.version}: {len(found)} branches of"
                f" {self.rule.rule} apply at {given}",
                remedy="Report it; nothing is answered",
            )
        branch, value = found[0]
        return Answer(self._evaluate(value, inputs), branch)

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
                remedy="Say more of the device or the layer",
            ) from error

    def _call(self, name: str, arguments: list[Any]) -> Any:
        key = (name, *arguments)
        if key not in self._called:
            self._called[key] = Interpreter(Program(self.functions), {}).call(name, arguments)
        return self._called[key]
