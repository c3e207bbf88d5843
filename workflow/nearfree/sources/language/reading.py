"""Read one rule in both ways, compare them, and say what the rule means.

The two ways must give the same value at every point of a dense grid and next to every constant
that the source compares with; a single difference refuses the rule.
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
MOST_POINTS = 20_000
"""Points of one context; a source with constants for more is hostile."""
MOST_STEPS = 20_000_000
"""Steps of the interpreter at all points together."""
POWERS = frozenset(1 << exponent for exponent in range(FARTHEST.bit_length()))


@dataclass(frozen=True)
class Reading:
    """What to read: a function of a program, one entry of its answer, over some inputs."""

    rule: str
    program: Program
    root: str
    axis: str | None
    """The input that thresholds are looked for on: tokens, rows or a length; None if there is
    none, as for a rule on names."""
    contexts: Sequence[Mapping[str, Any]]
    """Values of all other inputs, a mapping a context; the rule's meaning is what it says there."""
    also: Sequence[Mapping[str, Any]] = ()
    """Further contexts at which the two ways are compared: modes that few users run."""
    key: str | None = None
    """The entry of interest, where the answer is a dictionary."""
    absent: bool = False
    """Whether a way may leave that entry out; the rule then says None there."""
    whole: bool = True
    """Whether the interpreter runs all of the function; else only what the answer depends on."""
    dense: Sequence[int] = field(default=DENSE)
    """Values of the axis that are compared whatever the source says."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Inputs that are never smaller than a number, such as sizes; the rule speaks of no others."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of all inputs."""
        axis = [] if self.axis is None else [self.axis]
        return tuple(dict.fromkeys([*axis, *self.contexts[0]]))


def read_rule(reading: Reading, package: str, version: str) -> RuleExtracted:
    """Return a rule, read in both ways.

    Raises
    ------
    SourceError
        A construct outside the known set, one nested too deeply, or the two ways differ.
    """
    try:
        return _read(reading, package, version)
    except (RecursionError, MemoryError) as error:
        raise UnknownConstructError(f"{reading.root} is nested too deeply") from error


def _read(reading: Reading, package: str, version: str) -> RuleExtracted:
    functions = dict(reading.program.functions)
    for name in functions if not reading.whole else [reading.root]:
        key = reading.key if name == reading.root else None
        functions[name] = slice_to(
            functions[name], key, absent=reading.absent, checks=reading.whole
        )
    program = Program(functions, reading.program.constants)
    branches, called = enumerate_paths(program, reading.root, set(reading.inputs), reading.least)
    helpers = tuple(ast.unparse(functions[name]) for name in sorted(reached(program, called)))
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
    second = reading.program if reading.whole else program
    points, meaning = _compared(reading, Rule(rule), second)
    used = _used(rule)
    inputs = tuple(name for name in reading.inputs if name in used)
    return msgspec.structs.replace(rule, points=points, meaning=meaning, inputs=inputs)


def _used(rule: RuleExtracted) -> set[str]:
    texts = {text for branch in rule.branches for text in (*branch.when, branch.value)}
    return names_in(*map(parse, texts))


def reached(program: Program, names: set[str]) -> set[str]:
    """Return functions with those that they call in turn."""
    found, waiting = set(names), list(names)
    while waiting:
        more = called_in(program.functions[waiting.pop()]) & program.functions.keys() - found
        found |= more
        waiting += more
    return found


_COMPARED: dict[str, tuple[int, str]] = {}
"""What a comparison gave, by the rule's text: most releases do not change a rule's text."""


def _compared(reading: Reading, rule: Rule, program: Program) -> tuple[int, str]:
    texts = [f"{name}: {ast.unparse(each)}" for name, each in sorted(program.functions.items())]
    texts += [f"{name} = {ast.unparse(each)}" for name, each in sorted(program.constants.items())]
    texts += [reading.root, str(reading.key), repr(reading.axis), repr(reading.contexts)]
    texts += [repr(reading.also), repr(reading.dense), repr((reading.whole, reading.absent))]
    branches = [(branch.when, branch.value) for branch in rule.rule.branches]
    texts += [repr(sorted(reading.least.items())), repr(branches), *rule.rule.functions]
    key = sha256("\0".join(texts).encode())
    if key not in _COMPARED:
        _COMPARED[key] = _compare(reading, rule, program)
    return _COMPARED[key]


def _compare(reading: Reading, rule: Rule, program: Program) -> tuple[int, str]:
    points, steps, answers = 0, 0, []
    conditions = {condition for branch in rule.rule.branches for condition in branch.when}
    limits = frozenset(_numbers(map(parse, conditions)))
    for number, context in enumerate([*reading.contexts, *reading.also]):
        special = rule.specialised(context)
        values: dict[int, Any] = {}
        interpreter = Interpreter(program)
        runs = program.runs.setdefault((reading.root, repr((reading.axis, context))), {})
        for place in axis_points(reading, context, limits):
            inputs = dict(context) if reading.axis is None else {**context, reading.axis: place}
            first = special.value(inputs).value
            if place not in runs:
                runs[place] = interpreter.run(reading.root, inputs), interpreter.steps
            second = _interpreted(reading, runs[place][0])
            steps += runs[place][1]
            if steps > MOST_STEPS:
                raise UnknownConstructError(f"{reading.root} takes too many steps to compare")
            if not same(first, second):
                shown = ", ".join(f"{name}={value}" for name, value in inputs.items())
                raise SourceError(
                    f"{reading.root}: the two ways of reading differ at {shown}:"
                    f" {first!r} by its branches, {second!r} step by step",
                    remedy="Report it; the rule is not used",
                )
            values[place] = first
        points += len(values)
        if number < len(reading.contexts):
            answers.append([dict(context), _answers(reading, values)])
    return points, sha256(msgspec.json.encode(answers, order="deterministic"))[:16]


def _answers(reading: Reading, values: Mapping[int, Any]) -> list[tuple[int, Any]]:
    """Return what does not depend on how a source spells its thresholds.

    That is the values at the points that are always compared, and the steps, where a value that
    holds gives way to another one.
    """
    fixed = {*POWERS, *reading.dense, 0}
    steps = {
        place
        for place, value in values.items()
        if place - 1 in values
        and values[place - 1] != value
        and values.get(place - 2, value) == values[place - 1]
        and values.get(place + 1) == value
    }
    return [(place, value) for place, value in values.items() if place in fixed | steps]


def _interpreted(reading: Reading, value: Any) -> Any:
    if reading.key is not None and isinstance(value, dict):
        if reading.key not in value and not reading.absent:
            raise UnknownConstructError(f"{reading.root} sets no {reading.key}")
        return value.get(reading.key)
    return value


def axis_points(
    reading: Reading, context: Mapping[str, Any], limits: frozenset[int] = frozenset()
) -> list[int]:
    """Return where a rule is compared: densely, and at every constant and its neighbours.

    A threshold may be a constant, an input, or a product or quotient of such; so those of each
    pair count too. `limits` are further constants, such as those that a source computes.
    """
    if reading.axis is None:
        return [0]
    program = reading.program
    constants = limits | set(_numbers([*program.functions.values(), *program.constants.values()]))
    numbers = constants | {value for value in context.values() if isinstance(value, int)}
    marks = set(numbers)
    for left in numbers:
        for right in context.values():
            if isinstance(right, int) and right > 1:
                marks |= {left * right, left // right, -(-left // right)}
    near = {mark + step for mark in marks if mark <= 2 * FARTHEST for step in (-2, -1, 0, 1, 2)}
    points = sorted({p for p in near | POWERS | set(reading.dense) if 1 <= p <= FARTHEST})
    if len(points) > MOST_POINTS:
        raise UnknownConstructError(f"{reading.root} has too many constants to compare")
    return points


def _numbers(trees: Iterable[ast.AST]) -> Iterator[int]:
    for tree in trees:
        for node in nodes_of(tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, int | float) and abs(value) <= FARTHEST * FARTHEST:
                yield int(value)


def shown(branch: Branch) -> str:
    """Return a branch's conditions as one text."""
    parts = [f"({condition})" if " or " in condition else condition for condition in branch.when]
    return " and ".join(parts) or "always"


@dataclass(frozen=True)
class Mechanism:
    """One link from a rule to the kernel: what must hold, and the lines that say so, if any."""

    name: str
    says: str
    quotes: tuple[Quote, ...] = ()


def recorded(mechanism: Mechanism, package: str, version: str) -> RuleExtracted:
    """Return a mechanism as a rule without inputs: its value is what it says, or `absent`."""
    says = mechanism.says if mechanism.quotes else "absent"
    return RuleExtracted(
        package=package,
        version=version,
        rule=f"mechanism_{mechanism.name}",
        symbol=mechanism.name,
        inputs=(),
        branches=(Branch(when=(), value=repr(says), quotes=mechanism.quotes),),
        meaning=sha256(msgspec.json.encode([mechanism.name, says]))[:16],
        points=0,
    )
