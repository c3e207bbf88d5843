"""Read one rule with both readers, compare them, and hash the rule's meaning.

Path enumeration and the interpreter must give the same value at every point of a dense grid and
next to every constant that the source compares with. A single difference refuses the rule.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nearfree.errors import SourceError
from nearfree.log.events import Branch, Quote, RuleExtracted
from nearfree.log.line import sha256
from nearfree.sources.language.expressions import UnknownConstructError, parse, same
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.interpret import Interpreter
from nearfree.sources.language.paths import enumerate_paths
from nearfree.sources.language.program import Program, called_in, names_in
from nearfree.sources.language.rule import Rule
from nearfree.sources.language.slicing import slice_to

DENSE = range(1, 161)
FARTHEST = 1 << 17
POINTS_LIMIT = 20_000
"""Limit of points per context; a source with more constants is hostile."""
STEPS_LIMIT = 20_000_000
"""Limit of the interpreter's steps at all points together."""
POWERS = frozenset(1 << exponent for exponent in range(FARTHEST.bit_length()))


@dataclass(frozen=True)
class Reading:
    """What to read: a function of a program, one entry of its answer, and its inputs."""

    rule: str
    program: Program
    root: str
    axis: str | None
    """The input whose thresholds matter: tokens, rows or a length; None if the rule has none, as a
    rule on names."""
    contexts: Sequence[Mapping[str, Any]]
    """Values of all other inputs, one mapping per context; they define the rule's meaning."""
    extra_contexts: Sequence[Mapping[str, Any]] = ()
    """Further contexts at which the readers are compared: modes that few users run."""
    key: str | None = None
    """The entry of interest, where the answer is a dictionary."""
    may_be_absent: bool = False
    """Whether a path may leave the entry out; the rule's value there is None."""
    interpret_whole: bool = True
    """Whether the interpreter runs the whole function, or only what the answer depends on."""
    dense: Sequence[int] = field(default=DENSE)
    """Values of the axis at which the readers are always compared."""
    minimums: Mapping[str, int] = field(default_factory=dict)
    """Lower bounds of inputs, such as sizes; the rule covers no smaller values."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of all inputs."""
        axis = [] if self.axis is None else [self.axis]
        return tuple(dict.fromkeys([*axis, *self.contexts[0]]))


def read_rule(reading: Reading, package: str, version: str) -> RuleExtracted:
    """Return a rule on which both readers agree.

    Raises
    ------
    SourceError
        A construct is outside the known set or nested too deeply, or the readers differ.
    """
    try:
        return _read(reading, package, version)
    except (RecursionError, MemoryError) as error:
        raise UnknownConstructError(f"{reading.root} is nested too deeply") from error


def _read(reading: Reading, package: str, version: str) -> RuleExtracted:
    functions = dict(reading.program.functions)
    for name in functions if not reading.interpret_whole else [reading.root]:
        key = reading.key if name == reading.root else None
        functions[name] = slice_to(
            functions[name], key, absent=reading.may_be_absent, checks=reading.interpret_whole
        )
    program = Program(functions, reading.program.constants)
    branches, looping = enumerate_paths(
        program, reading.root, set(reading.inputs), reading.minimums
    )
    helpers = tuple(ast.unparse(functions[name]) for name in sorted(reachable(program, looping)))
    rule = RuleExtracted(
        package=package,
        version=version,
        rule=reading.rule,
        symbol=reading.root,
        inputs=reading.inputs,
        branches=tuple(branches),
        functions=helpers,
        meaning="",
        points=0,
    )
    interpreted_program = reading.program if reading.interpret_whole else program
    points, meaning = _cached_comparison(reading, Rule(rule), interpreted_program)
    texts = {text for branch in rule.branches for text in (*branch.when, branch.value)}
    used = names_in(*map(parse, texts))
    inputs = tuple(name for name in reading.inputs if name in used)
    return msgspec.structs.replace(rule, points=points, meaning=meaning, inputs=inputs)


def reachable(program: Program, names: set[str]) -> set[str]:
    """Return the given functions and all functions that they call, directly or not."""
    functions, waiting = set(names), list(names)
    while waiting:
        callees = called_in(program.functions[waiting.pop()]) & program.functions.keys() - functions
        functions |= callees
        waiting += callees
    return functions


_COMPARISONS: dict[str, tuple[int, str]] = {}
"""Results of comparisons, by a hash of their inputs: most releases leave a rule unchanged."""


def _cached_comparison(reading: Reading, rule: Rule, program: Program) -> tuple[int, str]:
    """Return the number of points compared and the rule's meaning; cached for equal inputs."""
    texts = [f"{name}: {ast.unparse(tree)}" for name, tree in sorted(program.functions.items())]
    texts += [f"{name} = {ast.unparse(tree)}" for name, tree in sorted(program.constants.items())]
    texts += [reading.root, str(reading.key), repr(reading.axis), repr(reading.contexts)]
    texts += [
        repr(reading.extra_contexts),
        repr(reading.dense),
        repr((reading.interpret_whole, reading.may_be_absent)),
    ]
    branches = [(branch.when, branch.value) for branch in rule.rule.branches]
    texts += [repr(sorted(reading.minimums.items())), repr(branches), *rule.rule.functions]
    key = sha256("\0".join(texts).encode())
    if key not in _COMPARISONS:
        _COMPARISONS[key] = _compare(reading, rule, program)
    return _COMPARISONS[key]


def _compare(reading: Reading, rule: Rule, program: Program) -> tuple[int, str]:
    """Compare the readers at all points; return the number of points and the rule's meaning."""
    points, steps, answers = 0, 0, []
    conditions = {condition for branch in rule.rule.branches for condition in branch.when}
    limits = frozenset(_integers(map(parse, conditions)))
    for index, context in enumerate([*reading.contexts, *reading.extra_contexts]):
        specialised = rule.specialised(context)
        values: dict[int, Any] = {}
        interpreter = Interpreter(program)
        runs = program.runs.setdefault((reading.root, repr((reading.axis, context))), {})
        for position in axis_points(reading, context, limits):
            inputs = dict(context) if reading.axis is None else {**context, reading.axis: position}
            branch_value = specialised.value(inputs).value
            if position not in runs:
                runs[position] = interpreter.run(reading.root, inputs), interpreter.steps
            interpreted_value = _entry_of_interest(reading, runs[position][0])
            steps += runs[position][1]
            if steps > STEPS_LIMIT:
                raise UnknownConstructError(f"{reading.root} takes too many steps to compare")
            if not same(branch_value, interpreted_value):
                point = ", ".join(f"{name}={value}" for name, value in inputs.items())
                raise SourceError(
                    f"{reading.root}: the two readers differ at {point}:"
                    f" {branch_value!r} by its branches, {interpreted_value!r} by the interpreter",
                    remedy="Report it; the rule is not used",
                )
            values[position] = branch_value
        points += len(values)
        if index < len(reading.contexts):
            answers.append([dict(context), _meaningful_answers(reading, values)])
    return points, sha256(msgspec.json.encode(answers, order="deterministic"))[:16]


def _meaningful_answers(reading: Reading, values: Mapping[int, Any]) -> list[tuple[int, Any]]:
    """Return the answers that do not depend on how a source writes its thresholds.

    These are the values at the points that are always compared, and those at steps, where one value
    that holds is followed by another that holds.
    """
    always_compared = {*POWERS, *reading.dense, 0}
    steps = {
        position
        for position, value in values.items()
        if position - 1 in values
        and values[position - 1] != value
        and values.get(position - 2, value) == values[position - 1]
        and values.get(position + 1) == value
    }
    return [
        (position, value)
        for position, value in values.items()
        if position in always_compared | steps
    ]


def _entry_of_interest(reading: Reading, value: Any) -> Any:
    """Return the entry that is read of an interpreted dictionary; other values as they are."""
    if reading.key is not None and isinstance(value, dict):
        if reading.key not in value and not reading.may_be_absent:
            raise UnknownConstructError(f"{reading.root} sets no {reading.key}")
        return value.get(reading.key)
    return value


def axis_points(
    reading: Reading, context: Mapping[str, Any], limits: frozenset[int] = frozenset()
) -> list[int]:
    """Return the points at which a rule is compared: a dense grid, and around every constant.

    A threshold may be a constant, an input, or a product or quotient of the two, so those of each
    pair count, too. `limits` are further constants, such as those that a source computes.
    """
    if reading.axis is None:
        return [0]
    program = reading.program
    constants = limits | set(_integers([*program.functions.values(), *program.constants.values()]))
    numbers = constants | {value for value in context.values() if isinstance(value, int)}
    thresholds = set(numbers)
    for number in numbers:
        for factor in context.values():
            if isinstance(factor, int) and factor > 1:
                thresholds |= {number * factor, number // factor, -(-number // factor)}
    nearby = {
        threshold + offset
        for threshold in thresholds
        if threshold <= 2 * FARTHEST
        for offset in (-2, -1, 0, 1, 2)
    }
    points = sorted(
        {point for point in nearby | POWERS | set(reading.dense) if 1 <= point <= FARTHEST}
    )
    if len(points) > POINTS_LIMIT:
        raise UnknownConstructError(f"{reading.root} has too many constants to compare")
    return points


def _integers(trees: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the numbers in some trees, truncated to integers, that are not too large."""
    for tree in trees:
        for node in nodes_of(tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, int | float) and abs(value) <= FARTHEST * FARTHEST:
                yield int(value)


def condition_text(branch: Branch) -> str:
    """Return a branch's conditions as one text."""
    parts = [f"({condition})" if " or " in condition else condition for condition in branch.when]
    return " and ".join(parts) or "always"


@dataclass(frozen=True)
class Mechanism:
    """One link from a rule to the kernel: what must hold, and the source lines that show it."""

    name: str
    statement: str
    quotes: tuple[Quote, ...] = ()


def mechanism_rule(mechanism: Mechanism, package: str, version: str) -> RuleExtracted:
    """Return a mechanism as a rule without inputs: its value is the statement, or `absent`."""
    statement = mechanism.statement if mechanism.quotes else "absent"
    return RuleExtracted(
        package=package,
        version=version,
        rule=f"mechanism_{mechanism.name}",
        symbol=mechanism.name,
        inputs=(),
        branches=(Branch(when=(), value=repr(statement), quotes=mechanism.quotes),),
        meaning=sha256(msgspec.json.encode([mechanism.name, statement]))[:16],
        points=0,
    )
