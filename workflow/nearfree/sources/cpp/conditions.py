"""What a preprocessor leaves of a C or C++ file, as far as the questioner's facts decide it.

A compiler's macros for a CPU's instructions are facts of a question. A condition that asks for one
that is not decided yet says so, and the reader reads on for both answers; a condition on a macro
of which nothing is known is an error.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from nearfree.errors import MOVED, SourceError

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
"""Macros that a compiler defines for a CPU's instructions, and the facts that say so."""
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
"""What a compiler takes for granted: who has the first has the second."""
ABSENT = re.compile(
    r"__(ARM|arm|aarch64|riscv|POWER|powerpc|ppc|s390|VXE|MMA__|loongarch|wasm|mips)\w*"
    r"|_M_ARM\w*|_MSC_VER|_WIN32|__APPLE__|GGML_NNPA|__MINGW32__|__cpp_\w+"
)
"""Macros of other processors, systems and compilers: of x86-64 on Linux none is defined."""
PRESENT = frozenset({"__x86_64__", "__GNUC__", "__cplusplus", "__linux__"})
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_NUMBER = re.compile(r"\b(\d+)[uUlL]*\b")
_COMMENT = re.compile(r"//.*|/\*.*?\*/", re.DOTALL)
_COMPARED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_DEEPEST = 20
Guard = tuple[int, str, bool]
"""Line and text of a condition, and whether it must hold."""


def decided(fact: str, known: Mapping[str, bool]) -> bool | None:
    """Return whether a fact holds where others do, None where they leave it open."""
    if fact in known:
        return known[fact]
    for each, held in known.items():
        lower: str | None = each
        while held and lower is not None:
            lower = IMPLIED.get(lower)
            if lower == fact:
                return True
    above = IMPLIED.get(fact)
    return False if above is not None and decided(above, known) is False else None


class OpenConditionError(Exception):
    """A condition asks for a fact that is not decided."""

    def __init__(self, fact: str, line: int) -> None:
        super().__init__(fact)
        self.fact = fact
        self.line = line


class Conditions:
    """One file, line by line, with the conditions that each line stands under.

    Parameters
    ----------
    built
        Macros that the release's build defines, or does not.

    Raises
    ------
    SourceError
        A directive has no end, or no beginning.
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
        number = 0
        while number < len(self.lines):
            first = number
            logical = self.lines[number]
            while logical.endswith("\\") and number + 1 < len(self.lines):
                number += 1
                logical = logical[:-1] + " " + self.lines[number]
            number += 1
            found = DIRECTIVE.match(logical)
            if found is not None:
                rest = " ".join(_COMMENT.sub(" ", found[2]).split())
                self._directive(stack, found[1], rest, first + 1)
            around = tuple(guard for each in stack for guard in each)
            for place in range(first, number):
                self.guards.append(around)
                if found is not None:
                    self.directives.add(place)
        if stack:
            raise SourceError(f"{self.path}: a condition has no end", remedy=MOVED)

    def _directive(self, stack: list[list[Guard]], kind: str, rest: str, line: int) -> None:
        match kind:
            case "if":
                stack.append([(line, rest, True)])
            case "ifdef" | "ifndef":
                stack.append([(line, f"defined({rest.split(maxsplit=1)[0]})", kind == "ifdef")])
            case "elif" | "else" if stack:
                stack[-1][-1] = (*stack[-1][-1][:2], not stack[-1][-1][2])
                if kind == "elif":
                    stack[-1].append((line, rest, True))
            case "endif" if stack:
                stack.pop()
            case "elif" | "else" | "endif":
                raise SourceError(f"{self.path}:{line} ends no condition", remedy=MOVED)

    @cached_property
    def _defines(self) -> dict[str, list[tuple[int, str | None]]]:
        """Each macro that the file defines or takes back: lines, and what it stands for."""
        found: dict[str, list[tuple[int, str | None]]] = {}
        for place in sorted(self.directives):
            match = DIRECTIVE.match(self.lines[place])
            if match and match[1] in {"define", "undef"}:
                name, _, value = match[2].strip().partition(" ")
                value = " ".join(_COMMENT.sub(" ", value).split())
                found.setdefault(name, []).append((place, value if match[1] == "define" else None))
        return found

    def compiled(self, known: Mapping[str, bool], spans: Sequence[tuple[int, int]]) -> str:
        """Return the file with nothing but what is compiled of some lines, each on its own line.

        Parameters
        ----------
        known
            Facts that are decided.
        spans
            First and last lines of what is kept.

        Raises
        ------
        OpenConditionError
            A fact that it depends on is not among those that are known.
        SourceError
            A condition is of no known form, or asks for an unknown macro.
        """
        kept = []
        for place, line in enumerate(self.lines):
            inside = place not in self.directives and any(a <= place + 1 <= b for a, b in spans)
            kept.append(line if inside and self.holds(place, known) else "")
        return "\n".join(kept)

    def holds(self, place: int, known: Mapping[str, bool], depth: int = 0) -> bool:
        """Return whether a line, counted from 0, is compiled."""
        if depth > _DEEPEST:
            raise SourceError(f"{self.path}:{place + 1}: its macros have no end", remedy=MOVED)
        return all(
            self._truth(text, line, place, known, depth) is wanted
            for line, text, wanted in self.guards[place]
        )

    def _truth(
        self, text: str, line: int, place: int, known: Mapping[str, bool], depth: int
    ) -> bool:
        try:
            spelled = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", r"_d_\1\2_", text)
            spelled = _NUMBER.sub(r"\1", spelled)
            spelled = re.sub(r"!(?!=)", " not ", spelled.replace("&&", " and "))
            tree = ast.parse(spelled.replace("||", " or ").strip(), mode="eval").body
        except SyntaxError as error:
            raise self._odd(text, line) from error
        return bool(self._value(tree, line, place, known, depth))

    def _value(
        self, node: ast.expr, line: int, place: int, known: Mapping[str, bool], depth: int
    ) -> int:
        def inner(each: ast.expr) -> int:
            return self._value(each, line, place, known, depth)

        match node:
            case ast.BoolOp(op=op):
                whole = all if isinstance(op, ast.And) else any
                return int(whole(inner(each) for each in node.values))
            case ast.UnaryOp(op=ast.Not()):
                return int(not inner(node.operand))
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return int(_COMPARED[type(op)](inner(node.left), inner(right)))
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name):
                asked = name.startswith("_d_")
                found = self._macro(name[3:-1] if asked else name, line, place, known, depth)
                return int(found is not None) if asked else found or 0
        raise self._odd(ast.unparse(node), line)

    def _macro(
        self, name: str, line: int, place: int, known: Mapping[str, bool], depth: int
    ) -> int | None:
        """Return the number that a macro stands for at a line; None where it is not defined."""
        if name in self._defines:
            value: str | None = None
            for where, text in self._defines[name]:
                if where < place and self.holds(where, known, depth + 1):
                    value = text
            if value is None:
                return None
            return int(value) if value.isdecimal() else 1 if not value else self._odd_macro(name)
        if name in FACTS:
            held = decided(FACTS[name], known)
            if held is None:
                raise OpenConditionError(FACTS[name], line)
            return 1 if held else None
        if name in self.built:
            return 1 if self.built[name] else None
        if name in PRESENT:
            return 1
        if ABSENT.fullmatch(name):
            return None
        raise SourceError(
            f"{self.path}:{line} depends on {name}, of which nothing is known", remedy=MOVED
        )

    def _odd_macro(self, name: str) -> int:
        raise SourceError(f"{self.path}: {name} is no number", remedy=MOVED)

    def _odd(self, text: str, line: int) -> SourceError:
        return SourceError(
            f"{self.path}:{line}: the condition {text!r} is of no known form", remedy=MOVED
        )
