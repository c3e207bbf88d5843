"""The lines that a preprocessor keeps of a C or C++ file, as far as the given facts decide it.

A compiler's macros for a CPU's instruction sets are facts. A condition that depends on an undecided
fact raises an error that names it, and the reader then reads on for both answers. A condition on an
unknown macro is an error.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from nearfree.errors import MovedError, SourceError
from nearfree.sources.language.expressions import COMPARISONS, OPERATORS

DIRECTIVE = re.compile(
    r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif|define|undef)\b[ \t]*(.*)", re.DOTALL
)
FACTS = {
    f"__{fact.upper()}__": fact
    for fact in (
        *("avx", "avx2", "fma", "f16c", "avxvnni"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx512vnni"),
    )
}
"""Macros that a compiler defines for a CPU's instruction sets, and the facts' names."""
IMPLIED = {
    "avx512bf16": "avx512bw",
    "avx512vnni": "avx512f",
    "avx512bw": "avx512f",
    "avx512dq": "avx512f",
    "avx512vl": "avx512f",
    "avx512f": "avx2",
    "avxvnni": "avx2",
    "avx2": "avx",
    "fma": "avx",
    "f16c": "avx",
}
"""Facts that imply another: a CPU with the first has the second."""
ABSENT = re.compile(
    r"__(ARM|arm|aarch64|riscv|POWER|powerpc|ppc|s390|VXE|MMA__|loongarch|wasm|mips)\w*"
    r"|_M_ARM\w*|_MSC_VER|_WIN32|__APPLE__|GGML_NNPA|__MINGW32__|__cpp_\w+"
)
"""Macros of other processors, systems and compilers: x86-64 on Linux defines none of them."""
PRESENT = frozenset({"__x86_64__", "__GNUC__", "__cplusplus", "__linux__"})
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_NUMBER = re.compile(r"\b(\d+)[uUlL]*\b")
_COMMENT = re.compile(r"//.*|/\*.*?\*/", re.DOTALL)
_DEPTH_LIMIT = 20
Guard = tuple[int, str, bool]
"""A condition's line, its text, and whether it must hold."""


def implications(fact: str) -> Iterator[str]:
    """Yield a fact, and all facts that it implies."""
    implied: str | None = fact
    while implied is not None:
        yield implied
        implied = IMPLIED.get(implied)


def truth_of_fact(fact: str, facts: Mapping[str, bool]) -> bool | None:
    """Return whether a fact holds, given other facts; None if they leave it open."""
    if any(holds and fact in implications(other) for other, holds in facts.items()):
        return True
    return False if any(facts.get(each) is False for each in implications(fact)) else None


class OpenConditionError(Exception):
    """A condition depends on a fact that is not decided."""

    def __init__(self, fact: str, line: int) -> None:
        super().__init__(fact)
        self.fact = fact
        self.line = line


class Conditions:
    """One file, line by line, with the conditions of each line.

    `built` are macros of the release's build: whether it defines them.

    Raises
    ------
    SourceError
        A condition has no end, or a directive ends none.
    """

    def __init__(self, path: str, text: str, built: Mapping[str, bool] | None = None) -> None:
        self.path = path
        self.lines = text.split("\n")
        self.built = built or {}
        self.guards: list[tuple[Guard, ...]] = []
        self.directives: set[int] = set()
        self._read()

    def _read(self) -> None:
        stack: list[list[Guard]] = []
        index = 0
        while index < len(self.lines):
            first = index
            logical = self.lines[index]
            while logical.endswith("\\") and index + 1 < len(self.lines):
                index += 1
                logical = logical[:-1] + " " + self.lines[index]
            index += 1
            directive = DIRECTIVE.match(logical)
            if directive is not None:
                expression = " ".join(_COMMENT.sub(" ", directive[2]).split())
                self._directive(stack, directive[1], expression, first + 1)
            guards = tuple(guard for level in stack for guard in level)
            for line_index in range(first, index):
                self.guards.append(guards)
                if directive is not None:
                    self.directives.add(line_index)
        if stack:
            raise MovedError(f"{self.path}: a condition has no end")

    def _directive(self, stack: list[list[Guard]], kind: str, expression: str, line: int) -> None:
        match kind:
            case "if":
                stack.append([(line, expression, True)])
            case "ifdef" | "ifndef":
                stack.append(
                    [(line, f"defined({expression.split(maxsplit=1)[0]})", kind == "ifdef")]
                )
            case "elif" | "else" if stack:
                stack[-1][-1] = (*stack[-1][-1][:2], not stack[-1][-1][2])
                if kind == "elif":
                    stack[-1].append((line, expression, True))
            case "endif" if stack:
                stack.pop()
            case "elif" | "else" | "endif":
                raise MovedError(f"{self.path}:{line} ends no condition")

    @cached_property
    def _defines(self) -> dict[str, list[tuple[int, str | None]]]:
        """Each macro that the file defines or undefines: line indices, and values or None."""
        definitions: dict[str, list[tuple[int, str | None]]] = {}
        for index in sorted(self.directives):
            match = DIRECTIVE.match(self.lines[index])
            if match and match[1] in {"define", "undef"}:
                name, _, value = match[2].strip().partition(" ")
                value = " ".join(_COMMENT.sub(" ", value).split())
                definitions.setdefault(name, []).append(
                    (index, value if match[1] == "define" else None)
                )
        return definitions

    def compiled(self, facts: Mapping[str, bool], spans: Sequence[tuple[int, int]]) -> str:
        """Return the compiled lines of some spans, each on its own line; all others are empty.

        Facts are decided ones, by name; spans are first and last lines, counted from 1.

        Raises
        ------
        OpenConditionError
            A condition depends on an undecided fact.
        SourceError
            A condition has an unknown form, or depends on an unknown macro.
        """
        lines = []
        for index, line in enumerate(self.lines):
            is_kept = index not in self.directives and any(
                first <= index + 1 <= last for first, last in spans
            )
            lines.append(line if is_kept and self.holds(index, facts) else "")
        return "\n".join(lines)

    def holds(self, index: int, facts: Mapping[str, bool], depth: int = 0) -> bool:
        """Return whether the line at an index, counted from 0, is compiled."""
        if depth > _DEPTH_LIMIT:
            raise MovedError(f"{self.path}:{index + 1}: its macros have no end")
        return all(
            self._truth(text, line, index, facts, depth) is expected
            for line, text, expected in self.guards[index]
        )

    def _truth(
        self, text: str, line: int, index: int, facts: Mapping[str, bool], depth: int
    ) -> bool:
        try:
            expression = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", r"_d_\1\2_", text)
            expression = _NUMBER.sub(r"\1", expression)
            expression = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and "))
            tree = ast.parse(expression.replace("||", " or ").strip(), mode="eval").body
        except SyntaxError as error:
            raise self._odd(text, line) from error
        return bool(self._value(tree, line, index, facts, depth))

    def _value(
        self, node: ast.expr, line: int, index: int, facts: Mapping[str, bool], depth: int
    ) -> int:
        def value_of(operand: ast.expr) -> int:
            return self._value(operand, line, index, facts, depth)

        match node:
            case ast.BoolOp(op=op):
                combine = all if isinstance(op, ast.And) else any
                return int(combine(value_of(operand) for operand in node.values))
            case ast.UnaryOp(op=ast.Not()):
                return int(not value_of(node.operand))
            case ast.Compare(ops=[op], comparators=[right]) if isinstance(op, COMPARISONS):
                return int(OPERATORS[type(op)](value_of(node.left), value_of(right)))
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name):
                is_defined_test = name.startswith("_d_")
                macro_value = self._macro(
                    name[3:-1] if is_defined_test else name, line, index, facts, depth
                )
                return int(macro_value is not None) if is_defined_test else macro_value or 0
        raise self._odd(ast.unparse(node), line)

    def _macro(
        self, name: str, line: int, index: int, facts: Mapping[str, bool], depth: int
    ) -> int | None:
        """Return the number that a macro has at a line; None where it is not defined."""
        if name in self._defines:
            value: str | None = None
            for define_index, text in self._defines[name]:
                if define_index < index and self.holds(define_index, facts, depth + 1):
                    value = text
            if value and not value.isdecimal():
                raise MovedError(f"{self.path}: {name} is no number")
            return None if value is None else int(value or 1)
        if name in FACTS:
            holds = truth_of_fact(FACTS[name], facts)
            if holds is None:
                raise OpenConditionError(FACTS[name], line)
            return 1 if holds else None
        if name in self.built:
            return 1 if self.built[name] else None
        if name in PRESENT:
            return 1
        if ABSENT.fullmatch(name):
            return None
        raise MovedError(f"{self.path}:{line} depends on {name}, of which nothing is known")

    def _odd(self, text: str, line: int) -> SourceError:
        return MovedError(f"{self.path}:{line}: the condition {text!r} is of no known form")
