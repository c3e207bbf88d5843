"""An extracted rule as a function of its inputs: the branch that applies, and its value."""

import ast
import copy
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from nearfree.errors import EvidenceError, NearfreeError, SourceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.language.closures import NO_VALUE, Closures, no_value, refuse_call
from nearfree.sources.language.expressions import (
    Run,
    UnknownConstructError,
    parse,
    truth_of,
    variables,
)
from nearfree.sources.language.interpret import Helpers, typed
from nearfree.sources.language.statements import REFUSED

Parsed = tuple[Branch, list[ast.expr], ast.expr]
"""A branch, its conditions and its value; branches share the trees of equal conditions."""


class Answer(NamedTuple):
    """A rule's value, and the branch that gives it."""

    value: Any
    branch: Branch


_ABSENT = ...
"""Placeholder of an input that is not given."""
_CACHED_VALUES_LIMIT = 1 << 14
"""Limit of the answers that a rule caches."""


class _HelperRefusalError(UnknownConstructError):
    """A helper of the backend ends in an error, so the whole call does."""


class Rule:
    """The branches of one rule; each text is parsed once, at its first use."""

    def __init__(self, rule: RuleExtracted) -> None:
        self.rule = rule
        self._fixed: dict[str, Any] = {}
        self._narrowed: dict[object, Rule] = {}
        self._values: dict[object, Answer] = {}
        self._trees: dict[str, ast.expr] = {}
        self.open_inputs = frozenset(rule.inputs)  # of all branches; `specialised` recomputes it

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The helpers, by name."""
        trees = [node for text in self.rule.functions for node in parse_functions(text)]
        return {node.name: node for node in trees}

    @cached_property
    def _helpers(self) -> Helpers:
        return Helpers(self.functions)

    @cached_property
    def branches(self) -> list[Parsed]:
        """The branches that are still open."""
        return [(branch, when, self._tree(branch.value)) for branch, when in self._open]

    @cached_property
    def _open(self) -> list[tuple[Branch, list[ast.expr]]]:
        """The open branches and their conditions, without values, which are the longest texts."""
        return [(branch, list(map(self._tree, branch.when))) for branch in self.rule.branches]

    def _tree(self, text: str) -> ast.expr:
        # Branches share conditions and values: one tree per text, evaluated once per point.
        tree = self._trees.get(text)
        if tree is None:
            tree = self._trees[text] = parse(text)
        return tree

    def specialised(self, fixed: Mapping[str, Any]) -> "Rule":
        """Return the rule with only the branches that some inputs leave open.

        The caller evaluates it at these inputs and at any values of the others. A condition without
        a value at these inputs stays: an earlier condition may make it unreachable.
        """
        open_branches: list[tuple[Branch, list[ast.expr]]] = []
        decided: dict[ast.expr, bool | None] = {}
        for branch, conditions in self._open:
            open_conditions = []
            for condition in conditions:
                if condition not in decided:
                    decided[condition] = self._decided(condition, fixed)
                holds = decided[condition]
                if holds is False:
                    break
                if holds is None:
                    open_conditions.append(condition)
            else:
                open_branches.append((branch, open_conditions))
        narrowed = copy.copy(self)
        for name in ("branches", "open_inputs", "closures", "_compiled_branches", "_input_names"):
            vars(narrowed).pop(name, None)
        # Both share the cached results of helpers.
        vars(narrowed).update(_open=open_branches, _helpers=self._helpers, _narrowed={}, _values={})
        vars(narrowed).update(_fixed={**self._fixed, **fixed})
        return narrowed

    def narrowed(self, inputs: Mapping[str, Any], varying: Collection[str]) -> "Rule":
        """Return the rule specialised for all inputs that do not vary from point to point.

        It is cached: for equal inputs it costs one look-up.
        """
        names = [name for name in self.open_inputs if name in inputs and name not in varying]
        key = (*names, typed([inputs[name] for name in names]))
        if key not in self._narrowed:
            self._narrowed[key] = self.specialised({name: inputs[name] for name in names})
        return self._narrowed[key]

    def _decided(self, node: ast.expr, fixed: Mapping[str, Any]) -> bool | None:
        if not variables(node) <= fixed.keys():
            return truth_of(node, lambda part: self._decided(part, fixed))
        try:
            return bool(self.closures.closure(node)(fixed))
        except NO_VALUE:
            return None

    @cached_property
    def open_inputs(self) -> frozenset[str]:
        """The inputs that the open branches read."""
        nodes = {node for _, when, value in self.branches for node in (*when, value)}
        return frozenset(name for node in nodes for name in variables(node))

    def missing(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the inputs without which the given ones do not determine an answer."""
        if self.open_inputs <= inputs.keys():
            return set()
        return set(self.specialised(inputs).open_inputs - inputs.keys())

    def value(self, inputs: Mapping[str, Any]) -> Answer:
        """Return the value at some inputs, and its branch.

        Raises
        ------
        EvidenceError
            No branch applies: the inputs are outside the rule's domain.
        SourceError
            Two branches apply: the rule was misread.
        """
        key = typed([inputs.get(name, _ABSENT) for name in self._input_names])
        answer = self._values.get(key)
        if answer is None:
            if len(self._values) >= _CACHED_VALUES_LIMIT:
                self._values.clear()
            answer = self._values[key] = self._evaluated(inputs)
        return answer

    @cached_property
    def _input_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.open_inputs))

    def _evaluated(self, inputs: Mapping[str, Any]) -> Answer:
        truths: dict[ast.expr, bool] = {}
        applicable, refusing_branches = [], []
        for branch, conditions, value in self._compiled_branches:
            try:
                for condition, closure in conditions:
                    holds = truths.get(condition)
                    if holds is None:
                        holds = truths[condition] = bool(closure(inputs))
                    if not holds:
                        break
                else:
                    applicable.append((branch, value))
            except _HelperRefusalError:
                refusing_branches.append(branch)
            except NO_VALUE as error:
                raise self._no_value(condition, inputs, error) from error
        if refusing_branches and not applicable:
            return Answer(REFUSED, refusing_branches[0])
        if len(applicable) != 1:
            point = ", ".join(f"{name}={inputs.get(name)}" for name in self.rule.inputs)
            raise (SourceError if applicable else EvidenceError)(
                f"{self.rule.package} {self.rule.version}: {len(applicable)} branches of"
                f" {self.rule.rule} apply at {point}",
                remedy="Report it; nothing is answered",
            )
        branch, value = applicable[0]
        try:
            return Answer(self.closures.closure(value)(inputs), branch)
        except _HelperRefusalError:
            return Answer(REFUSED, branch)
        except NO_VALUE as error:
            raise self._no_value(value, inputs, error) from error

    def _no_value(
        self, node: ast.expr, inputs: Mapping[str, Any], error: Exception
    ) -> NearfreeError:
        missing = sorted(variables(node) - inputs.keys() - self._fixed.keys())
        if not missing:
            return no_value(node, inputs, error)
        return EvidenceError(
            f"{self.rule.rule} of {self.rule.package} {self.rule.version} depends on"
            f" {', '.join(missing)}, which is not known",
            remedy="Name the device with --device, or give --sm",
        )

    @cached_property
    def _compiled_branches(self) -> list[tuple[Branch, list[tuple[ast.expr, Run]], ast.expr]]:
        closure = self.closures.closure
        return [
            (branch, [(condition, closure(condition)) for condition in conditions], value)
            for branch, conditions, value in self.branches
        ]

    @cached_property
    def closures(self) -> Closures:
        """Turns the rule's expressions into closures."""
        return Closures(self._fixed, self._call, self.rule.inputs)

    def _call(self, name: str, arguments: list[Any], names: Mapping[str, Any]) -> Any:
        if name in names or not self.functions:
            return refuse_call(name, arguments, names)
        value = self._helpers.value(name, arguments)
        if isinstance(value, str) and value == REFUSED:
            raise _HelperRefusalError(f"{name} refuses")
        return value


def parse_functions(text: str) -> list[ast.FunctionDef]:
    """Return the helper functions of a recorded text.

    Raises
    ------
    UnknownConstructError
        It is no Python.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnknownConstructError(f"{text[:80]!r} is no function") from error
    return [statement for statement in body if isinstance(statement, ast.FunctionDef)]
