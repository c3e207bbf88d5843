"""An extracted rule, ready to answer: which branch applies to these inputs, and its value."""

import ast
import copy
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from nearfree.errors import EvidenceError, NearfreeError, SourceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.language.closures import NO_VALUE, Closures, Run, no_value, unknown
from nearfree.sources.language.expressions import (
    UnknownConstructError,
    parse,
    truth_of,
    variables,
)
from nearfree.sources.language.interpret import Helpers, typed
from nearfree.sources.language.statements import REFUSED

Parsed = tuple[Branch, list[ast.expr], ast.expr]
"""A branch, its conditions and its value; branches share the trees of conditions."""


class Answer(NamedTuple):
    """A rule's value, and the branch that it comes from."""

    value: Any
    branch: Branch


_ABSENT = ...
"""What stands for an input that is not given."""
_MOST_VALUES = 1 << 14
"""Answers that a rule keeps at most."""


class _RefusalError(UnknownConstructError):
    """A helper of the backend ends in an error, so the whole call does."""


class Rule:
    """The branches of one rule, each text parsed once, when it is first needed."""

    def __init__(self, rule: RuleExtracted) -> None:
        self.rule = rule
        self._fixed: dict[str, Any] = {}
        self._kept: dict[object, Rule] = {}
        self._values: dict[object, Answer] = {}
        self._trees: dict[str, ast.expr] = {}
        self.open_inputs = frozenset(rule.inputs)  # of all branches: those of some are counted

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
        """The branches that are open."""
        return [(branch, when, self._tree(branch.value)) for branch, when in self._open]

    @cached_property
    def _open(self) -> list[tuple[Branch, list[ast.expr]]]:
        """The branches that are open, without their values, which are the longest texts."""
        return [(branch, list(map(self._tree, branch.when))) for branch in self.rule.branches]

    def _tree(self, text: str) -> ast.expr:
        # Branches share conditions and values: one tree for each text, evaluated once a point.
        tree = self._trees.get(text)
        if tree is None:
            tree = self._trees[text] = parse(text)
        return tree

    def specialised(self, fixed: Mapping[str, Any]) -> "Rule":
        """Return the rule with only the branches that some inputs leave open.

        A caller evaluates it with those inputs as they are here, and with others. A condition that
        has no value at these inputs stays: an earlier one may rule it out.
        """
        left: list[tuple[Branch, list[ast.expr]]] = []
        decided: dict[ast.expr, bool | None] = {}
        for branch, when in self._open:
            rest = []
            for condition in when:
                if condition not in decided:
                    decided[condition] = self._decided(condition, fixed)
                holds = decided[condition]
                if holds is False:
                    break
                if holds is None:
                    rest.append(condition)
            else:
                left.append((branch, rest))
        narrow = copy.copy(self)
        for name in ("branches", "open_inputs", "closures", "_ready", "_asked"):
            vars(narrow).pop(name, None)
        # What helpers were called with is known to both.
        vars(narrow).update(_open=left, _helpers=self._helpers, _kept={}, _values={})
        vars(narrow).update(_fixed={**self._fixed, **fixed})
        return narrow

    def steady(self, inputs: Mapping[str, Any], varying: Collection[str]) -> "Rule":
        """Return the rule specialised for all of its inputs but those that vary by the point.

        It is kept, so that it costs no more than looking it up where the others are the same.
        """
        names = [name for name in self.open_inputs if name in inputs and name not in varying]
        key = (*names, typed([inputs[name] for name in names]))
        if key not in self._kept:
            self._kept[key] = self.specialised({name: inputs[name] for name in names})
        return self._kept[key]

    def _decided(self, node: ast.expr, fixed: Mapping[str, Any]) -> bool | None:
        if not variables(node) <= fixed.keys():
            return truth_of(node, lambda part: self._decided(part, fixed))
        try:
            return bool(self.closures.kept(node)(fixed))
        except NO_VALUE:
            return None

    @cached_property
    def open_inputs(self) -> frozenset[str]:
        """The inputs that its open branches rest on."""
        nodes = {node for _, when, value in self.branches for node in (*when, value)}
        return frozenset(name for node in nodes for name in variables(node))

    def missing(self, inputs: Mapping[str, Any]) -> set[str]:
        """Return the inputs that an answer still depends on where some are given."""
        if self.open_inputs <= inputs.keys():
            return set()
        return set(self.specialised(inputs).open_inputs - inputs.keys())

    def value(self, inputs: Mapping[str, Any]) -> Answer:
        """Return the value at some inputs, and its branch.

        Raises
        ------
        EvidenceError
            No branch applies; the inputs are outside of what the rule speaks of.
        SourceError
            Two branches apply: the rule was misread.
        """
        key = typed([inputs.get(name, _ABSENT) for name in self._asked])
        found = self._values.get(key)
        if found is None:
            if len(self._values) >= _MOST_VALUES:
                self._values.clear()
            found = self._values[key] = self._evaluated(inputs)
        return found

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        return tuple(sorted(self.open_inputs))

    def _evaluated(self, inputs: Mapping[str, Any]) -> Answer:
        held: dict[ast.expr, bool] = {}
        found, refusing = [], []
        for branch, when, value in self._ready:
            try:
                for part, run in when:
                    holds = held.get(part)
                    if holds is None:
                        holds = held[part] = bool(run(inputs))
                    if not holds:
                        break
                else:
                    found.append((branch, value))
            except _RefusalError:
                refusing.append(branch)
            except NO_VALUE as error:
                raise self._no_value(part, inputs, error) from error
        if refusing and not found:
            return Answer(REFUSED, refusing[0])
        if len(found) != 1:
            given = ", ".join(f"{name}={inputs.get(name)}" for name in self.rule.inputs)
            raise (SourceError if found else EvidenceError)(
                f"{self.rule.package} {self.rule.version}: {len(found)} branches of"
                f" {self.rule.rule} apply at {given}",
                remedy="Report it; nothing is answered",
            )
        branch, value = found[0]
        try:
            return Answer(self.closures.kept(value)(inputs), branch)
        except _RefusalError:
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
    def _ready(self) -> list[tuple[Branch, list[tuple[ast.expr, Run]], ast.expr]]:
        kept = self.closures.kept
        return [
            (branch, [(part, kept(part)) for part in when], value)
            for branch, when, value in self.branches
        ]

    @cached_property
    def closures(self) -> Closures:
        """What turns its expressions into closures."""
        return Closures(self._fixed, self._call, self.rule.inputs)

    def _call(self, name: str, arguments: list[Any], names: Mapping[str, Any]) -> Any:
        if name in names or not self.functions:
            return unknown(name, arguments, names)
        value = self._helpers.value(name, arguments)
        if isinstance(value, str) and value == REFUSED:
            raise _RefusalError(f"{name} refuses")
        return value


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
    return [statement for statement in body if isinstance(statement, ast.FunctionDef)]
