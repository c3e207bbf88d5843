"""Functions of ggml's C++ sources, located by their lines and read under preprocessor conditions.

A rule is read from a few functions of one file. The preprocessor's result depends on the CPU's
instruction sets. So the rule is read once per outcome of the conditions, and branches on them.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from nearfree.errors import MovedError
from nearfree.sources.cpp.conditions import Conditions, OpenConditionError
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import (
    Function,
    Program,
    Text,
    at,
    copied,
    made_function,
    statement_at,
)
from nearfree.sources.language.reading import Reading

BUILD_DEFINITIONS = {
    "GGML_CPU_GENERIC": False,
    "GGML_USE_LLAMAFILE": True,
    "GGML_USE_OPENMP": True,
    "GGML_SIMD": True,
    "LMUL": False,
}
"""Preprocessor definitions of a build for x86-64 with ggml's own defaults."""
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
"""Instruction sets of the CPUs at which rules are compared: none, Ivy Bridge's, later ones."""
ABSENT = "absent"
Span = tuple[int, int]
ReadProgram = Callable[[str], tuple[Program, str]]


def span(path: str, text: str, head: str, *, after: str | None = None) -> Span:
    """Return the first and the last line of a function or a struct.

    Parameters
    ----------
    head
        A regular expression that matches the start of its first line. Only one line may match,
        not counting declarations, which end on that line.
    after
        A regular expression of an earlier line: the first match after it is taken.

    Raises
    ------
    SourceError
        No line matches, or several do.
    """
    lines = text.split("\n")
    start = 0
    if after is not None:
        start, _ = span(path, text, after)
    starts = [
        number
        for number, line in enumerate(lines[start:], start)
        if re.match(head, line) and not line.rstrip().endswith(";")
    ]
    if not starts or (len(starts) > 1 and after is None):
        raise MovedError(f"{path} has {len(starts)} definitions {head!r}")
    first = starts[0]
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    for number in range(first + 1, len(lines)):
        if re.fullmatch(rf"{indent}\}};?[ \t]*(//.*)?", lines[number]):
            return first + 1, number + 1
    raise MovedError(f"{path}: what begins at line {first + 1} has no end")


def body_of(path: str, text: str, head: str, *, after: str | None = None) -> tuple[str, int]:
    """Return the text of a function or a struct, located as by `span`, and its first line."""
    first, last = span(path, text, head, after=after)
    return "\n".join(text.split("\n")[first - 1 : last]), first


def program_by_flags(
    path: str,
    text: str,
    spans: Sequence[Span],
    read_program: ReadProgram,
    *,
    optional: bool = False,
) -> tuple[Program, str]:
    """Return the program of some functions of a file, branching on preprocessor conditions.

    Parameters
    ----------
    spans
        The lines of the functions; the first span holds the rule itself.
    read_program
        Reads the compiled text of the spans, whose lines keep their numbers.
    optional
        Whether conditions may exclude the first span; the rule is then None.
    """
    conditions = Conditions(path, text, BUILD_DEFINITIONS)
    source = Text(path, text)
    helpers: dict[str, Function] = {}
    constants: dict[str, ast.expr] = {}

    def read(facts: Mapping[str, bool]) -> Function:
        try:
            compiled_text = conditions.compiled(facts, spans)
        except OpenConditionError as open_condition:
            condition = open_condition
        else:
            return compiled(compiled_text)
        branches = [read({**facts, condition.fact: answer}) for answer in (True, False)]
        if _text(branches[0]) == _text(branches[1]):
            return branches[0]
        place = _place(source, condition.line)
        test = at(ast.Name(condition.fact, ast.Load()), place)
        branch_statement = at(ast.If(test, branches[0].body, branches[1].body), place)
        named_branch = branches[0] if branches[0].name != ABSENT else branches[1]
        function = made_function(named_branch.name, (), [branch_statement], place)
        function.args = named_branch.args
        return function

    def compiled(compiled_text: str) -> Function:
        if optional and not compiled_text.split("\n")[spans[0][0] - 1].strip():
            place = _place(source, spans[0][0])
            return made_function(ABSENT, (), [statement_at("return None", place)], place)
        program, root = read_program(compiled_text)
        constants.update(program.constants)
        return _joined(helpers, program, root)

    function = read({})
    return Program({**helpers, function.name: function}, constants), function.name


def _joined(helpers: dict[str, Function], program: Program, root: str) -> Function:
    """Add a program's functions to `helpers`; return its root, which calls them by their new names.

    A function that differs from one of the same name in `helpers` is renamed.
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
            function = copied(function)  # noqa: PLW2901 (the original is not changed)
            function.name = renamed[name] = final
        helpers.setdefault(final, function)
    root_function = copied(program.functions[root])
    for tree in (root_function, *helpers.values()) if renamed else ():
        for node in nodes_of(tree):
            callee = node.func if isinstance(node, ast.Call) else None
            if isinstance(callee, ast.Name) and callee.id in renamed:
                if tree is not root_function:
                    raise MovedError(f"{callee.id} is called by several functions")
                callee.id = renamed[callee.id]
    return root_function


def _text(function: Function) -> str:
    return ast.unparse(ast.Module([*function.body], []))


def _place(text: Text, line: int) -> ast.stmt:
    """Return a statement on a line of a file, whose position others take."""
    place = ast.Pass(lineno=line, end_lineno=line, col_offset=0, end_col_offset=0)
    place.origin = text  # type: ignore[attr-defined]
    return place


def prefixed(readings: list[Reading], folder: str) -> list[Reading]:
    """Return readings whose quotes name files below a folder; an empty folder changes none."""
    texts: dict[Text, Text] = {}
    for reading in readings:
        for function in reading.program.functions.values():
            for node in nodes_of(function):
                text = getattr(node, "origin", None)
                if isinstance(text, Text) and folder and not text.path.startswith(folder):
                    new = texts.setdefault(text, Text(folder + text.path, text.content))
                    node.origin = new  # type: ignore[attr-defined]
    return readings


def composed(name: str, pieces: Sequence[tuple[int, str]], answer: str) -> str:
    """Return a C++ function made of some pieces of a file, on their lines, and a result.

    Parameters
    ----------
    pieces
        First line and code of each piece, in order.
    answer
        The expression that it returns, on the last line; no return statement if empty.
    """
    line, text = 1, ""
    for number, (first, code) in enumerate(pieces):
        text += "\n" * (first - line) + ("" if number else f"int64_t {name}() {{ ")
        line = max(first, line)
        text += f"{code} "
        line += code.count("\n")
    return f"{text}{f'return {answer};' if answer else ''} }}\n"


def only_match(path: str, text: str, pattern: str, first: int = 1) -> tuple[re.Match[str], int]:
    """Return the only match of a pattern, and its line.

    Raises
    ------
    SourceError
        The pattern matches nowhere, or several times.
    """
    matches = list(re.finditer(pattern, text, re.MULTILINE))
    if len(matches) != 1:
        raise MovedError(f"{path} has {len(matches)} matches of {pattern!r}")
    return matches[0], first + text.count("\n", 0, matches[0].start())
