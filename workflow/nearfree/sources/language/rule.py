"""An extracted rule, ready to answer: which branch applies to these inputs, and its value."""

import ast
import copy
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from nearfree.errors import EvidenceError, SourceError
from nearfree.log.events import Branch, RuleExtracted
from nearfree.sources.language.closures import NO_VALUE, Closures, Run, UnsettledError
from nearfree.sources.language.expressions import (
    UnknownConstructError,
    evaluate,
    parse,
    variables,
)
from nearfree.sources.language.helpers import Helpers, typed
from nearfree.sources.language.statements import REFUSED

Parsed = tuple[Branch, list[ast.expr], ast.expr]
"""A branch, its conditions and its value; branches share the trees of conditions."""


class Branches:
    """Branches that are evaluated at many inputs.

    Parameters
    ----------
    branches
        The branches.
    closures
        What turns their conditions and values into closures.

    Raises
    ------
    UnsettledError
        They have a part that is only evaluated the slow way.
    """

    def __init__(self, branches: Sequence[Parsed], closures: Closures) -> None:
        places: dict[ast.expr, int] = {}
        self._branches: list[tuple[Branch, list[int], Run]] = []
        for branch, when, value in branches:
            used = [places.setdefault(condition, len(places)) for condition in when]
            self._branches.append((branch, used, closures.of(value)))
        self._conditions = [closures.of(each) for each in places]

    def value(self, inputs: Mapping[str, Any]) -> tuple[Any, Branch]:
        """Return the value at some inputs, and the one branch that applies.

        Raises
        ------
        UnsettledError, or what a mistake in a rule raises (`NO_VALUE`)
            No branch applies, or more than one, or there is no plain value.
        """
        held: list[bool | None] = [None] * len(self._conditions)
        found: tuple[Any, Branch] | None = None
        for branch, when, value in self._branches:
            for place in when:
                holds = held[place]
                if holds is None:
                    holds = held[place] = bool(self._conditions[place](inputs))
                if not holds:
                    break
            else:
                if found is not None:
                    raise UnsettledError
                found = value(inputs), branch
        if found is None:
            raise UnsettledError
        return found


class Answer(NamedTuple):
    """A rule's value, and the branch that it comes from."""

    value: Any
    branch: Branch


class _Refusal(UnsettledError):  # noqa: N818  # the backend's, not an error of this package
    """A helper of the backend ends in an error, so the whole call does."""


class Rule:
    """The branches of one rule, parsed once, when they are first needed."""

    def __init__(self, rule: RuleExtracted) -> None:
        self.rule = rule
        self._fixed: dict[str, Any] = {}
        self._kept: dict[object, Rule] = {}

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
        # Branches share conditions and values: one tree for each text, evaluated once a point.
        branches = self.rule.branches
        trees = {text: parse(text) for branch in branches for text in (*branch.when, branch.value)}
        return [
            (branch, [trees[text] for text in branch.when], trees[branch.value])
            for branch in branches
        ]

    def specialised(self, fixed: Mapping[str, Any]) -> "Rule":
        """Return the rule with only the branches that some inputs leave open.

        A caller evaluates it with those inputs as they are here, and with others. A condition that
        has no value at these inputs stays: an earlier one may rule it out.
        """
        branches: list[Parsed] = []
        decided: dict[ast.expr, bool | None] = {}
        for branch, when, value in self.branches:
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
                branches.append((branch, rest, value))
        narrow = copy.copy(self)
        for name in ("open_inputs", "_quick", "closures"):
            vars(narrow).pop(name, None)
        # What helpers were called with is known to both.
        vars(narrow).update(branches=branches, _helpers=self._helpers, _kept={})
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
        return stop if stop in [self._decided(part, fixed) for part in node.values] else None

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
        try:
            return (
                self._slowly(inputs) if self._quick is None else Answer(*self._quick.value(inputs))
            )
        except NO_VALUE:
            return self._slowly(inputs)

    @cached_property
    def closures(self) -> Closures:
        """What turns its expressions into closures."""
        return Closures(self._fixed, lambda name, arguments, _: self._call(name, arguments))

    @cached_property
    def _quick(self) -> Branches | None:
        try:
            return Branches(self.branches, self.closures)
        except NO_VALUE:
            return None

    def _slowly(self, inputs: Mapping[str, Any]) -> Answer:
        found, refusing = [], []
        held: dict[ast.expr, bool] = {}
        for branch, when, value in self.branches:
            try:
                if all(self._holds(condition, inputs, held) for condition in when):
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
        value = self._helpers.value(name, arguments)
        if isinstance(value, str) and value == REFUSED:
            raise _Refusal
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
