"""Parts of ggml's sources: functions between their lines, under the facts that conditions ask for.

A rule is read from a few functions of one file. What the preprocessor leaves of them depends on the
CPU's instructions; the rule is read once for each way that it can decide, and says which way holds.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.conditions import Conditions, OpenConditionError
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Function, Program, Text, copied

BUILT = {
    "GGML_CPU_GENERIC": False,
    "GGML_USE_LLAMAFILE": True,
    "GGML_USE_OPENMP": True,
    "GGML_SIMD": True,
    "LMUL": False,
}
"""What a build for x86-64 with ggml's own defaults defines."""
_OLDER = ("avx", "avx2", "fma", "f16c")
_NEWER = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx512vnni")
FLAGS: tuple[Mapping[str, bool], ...] = (
    dict.fromkeys([*_OLDER, *_NEWER, "avxvnni"], False),
    dict.fromkeys(["avx", "fma", "f16c"], True)
    | dict.fromkeys(["avx2", *_NEWER, "avxvnni"], False),
    dict.fromkeys([*_OLDER, *_NEWER[:4]], True) | dict.fromkeys([*_NEWER[4:], "avxvnni"], False),
    dict.fromkeys(_OLDER, True) | dict.fromkeys([*_NEWER, "avxvnni"], False),
    dict.fromkeys([*_OLDER, *_NEWER], True) | {"avxvnni": False},
)
"""What CPUs have at which the rules are tried: no vectors, Ivy Bridge's, and later ones."""
ABSENT = "absent"
Span = tuple[int, int]
Tree = TypeVar("Tree", bound=ast.AST)
Made = Callable[[str], tuple[Program, str]]


def span(path: str, text: str, head: str, *, after: str | None = None) -> Span:
    """Return the first and the last line of a function or a structure.

    Parameters
    ----------
    head
        A regular expression that its first line begins with; one line alone may, but for
        declarations, which end on that line.
    after
        A regular expression of an earlier line: the first such function after it is meant.

    Raises
    ------
    SourceError
        There is none, or there are several.
    """
    lines = text.split("\n")
    begin = 0
    if after is not None:
        begin, _ = span(path, text, after)
    found = [
        number
        for number, line in enumerate(lines[begin:], begin)
        if re.match(head, line) and not line.rstrip().endswith(";")
    ]
    if not found or (len(found) > 1 and after is None):
        raise SourceError(f"{path} has {len(found)} times what begins {head!r}", remedy=MOVED)
    first = found[0]
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    for number in range(first + 1, len(lines)):
        if re.fullmatch(rf"{indent}\}};?[ \t]*(//.*)?", lines[number]):
            return first + 1, number + 1
    raise SourceError(f"{path}: what begins at line {first + 1} has no end", remedy=MOVED)


def body_of(path: str, text: str, head: str, *, after: str | None = None) -> tuple[str, int]:
    """Return the lines of a function or a structure, found as `span` does, and the first's number.

    Raises
    ------
    SourceError
        There is none, or there are several.
    """
    first, last = span(path, text, head, after=after)
    return "\n".join(text.split("\n")[first - 1 : last]), first


def flagged(
    path: str, text: str, spans: Sequence[Span], made: Made, *, optional: bool = False
) -> tuple[Program, str]:
    """Return what functions of a file mean, whatever the facts that conditions ask for.

    Parameters
    ----------
    spans
        The lines that are read; the first of them hold the rule itself.
    made
        What reads a text that holds what is compiled of them, each on its own line.
    optional
        Whether the first may be left out of what is compiled; the rule is None there.

    Raises
    ------
    SourceError
        A condition is not of the known form.
    """
    conditions = Conditions(path, text, BUILT)
    shown = Text(path, text)
    helpers: dict[str, Function] = {}
    constants: dict[str, ast.expr] = {}

    def read(known: Mapping[str, bool]) -> Function:
        try:
            alone = conditions.compiled(known, spans)
        except OpenConditionError as open_condition:
            asked = open_condition
        else:
            return compiled(alone)
        ways = [read({**known, asked.fact: answer}) for answer in (True, False)]
        if _text(ways[0]) == _text(ways[1]):
            return ways[0]
        test = _placed(ast.Name(asked.fact, ast.Load()), shown, asked.line)
        both = _placed(ast.If(test, ways[0].body, ways[1].body), shown, asked.line)
        named = ways[0] if ways[0].name != ABSENT else ways[1]
        whole = ast.FunctionDef(named.name, named.args, [both], [], None)
        return _placed(whole, shown, asked.line)

    def compiled(alone: str) -> Function:
        if optional and not alone.split("\n")[spans[0][0] - 1].strip():
            nothing = ast.arguments([], [], None, [], [], None, [])
            value = _placed(ast.Constant(value=None), shown, spans[0][0])
            answer = _placed(ast.Return(value), shown, spans[0][0])
            function = ast.FunctionDef(ABSENT, nothing, [answer], [], None)
            return _placed(function, shown, spans[0][0])
        program, root = made(alone)
        constants.update(program.constants)
        return _joined(helpers, program, root)

    function = read({})
    return Program({**helpers, function.name: function}, constants), function.name


def _joined(helpers: dict[str, Function], program: Program, root: str) -> Function:
    """Add a program's helpers to others; return its root, which calls them by their names there.

    One that differs from another of the same name gets a name of its own.
    """
    renamed: dict[str, str] = {}
    for name, function in program.functions.items():
        if name == root:
            continue
        final, number = name, 1
        while final in helpers and _text(helpers[final]) != _text(function):
            number += 1
            final = f"{name}_{number}"
        if final != name:
            function = copied(function)  # noqa: PLW2901 (the other one stays as it is)
            function.name = renamed[name] = final
        helpers.setdefault(final, function)
    main = copied(program.functions[root])
    for tree in (main, *helpers.values()) if renamed else ():
        for node in nodes_of(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in renamed:
                if tree is not main:
                    raise SourceError(f"{called.id} is called by several functions", remedy=MOVED)
                called.id = renamed[called.id]
    return main


def _text(function: Function) -> str:
    return ast.unparse(ast.Module([*function.body], []))


def _placed(node: Tree, text: Text, line: int) -> Tree:
    """Return a node that stands on a line of a file."""
    node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
    node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    node.origin = text  # type: ignore[attr-defined]
    return node


def composed(name: str, parts: Sequence[tuple[int, str]], answer: str, parameters: str = "") -> str:
    """Return a function of some lines of a file, each on its own line, and an answer.

    Parameters
    ----------
    parts
        What stands on which lines, in order.
    answer
        The expression that it returns, on the last line of all; nothing where it is empty.
    """
    line, text = 1, ""
    for number, (first, code) in enumerate(parts):
        text += "\n" * (first - line) + ("" if number else f"int64_t {name}({parameters}) {{ ")
        line = max(first, line)
        text += f"{code} "
        line += code.count("\n")
    return f"{text}{f'return {answer};' if answer else ''} }}\n"


def found_in(path: str, text: str, pattern: str, first: int = 1) -> tuple[re.Match[str], int]:
    """Return the one place where a pattern is found, and its line.

    Raises
    ------
    SourceError
        It is found nowhere, or several times.
    """
    places = list(re.finditer(pattern, text, re.MULTILINE))
    if len(places) != 1:
        raise SourceError(
            f"{path} has {len(places)} times what is read as {pattern!r}", remedy=MOVED
        )
    return places[0], first + text.count("\n", 0, places[0].start())
