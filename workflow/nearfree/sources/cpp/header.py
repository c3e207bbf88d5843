"""C headers of a library: the fields of its structures and the types of its functions.

Only what crosses a call is told: a field or parameter is a number of some width, a pointer, an
array of numbers, or a structure by its name; an enumeration is a 32-bit number.
"""

import re
from collections.abc import Iterable, Mapping

from tree_sitter import Node

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.source import children, parse, walk, words

NUMBERS = {
    "bool": "bool", "char": "i8", "int8_t": "i8", "uint8_t": "u8", "int16_t": "i16",
    "uint16_t": "u16", "int": "i32", "int32_t": "i32", "uint32_t": "u32", "unsigned": "u32",
    "int64_t": "i64", "uint64_t": "u64", "size_t": "size", "float": "f32", "double": "f64",
    "void": "void",
}  # fmt: skip
"""The code of each plain type; `size` is as wide as a pointer."""
POINTER = "pointer"
STRUCT = "struct "
_UNKNOWN = "?"
"""What a name means that two type definitions give."""
_NAMES = ("field_identifier", "type_identifier", "identifier")
_PACKED = re.compile(
    r"#[ \t]*pragma[ \t]+pack\b|\b_?[aA]lignas\b"
    r"|\b__attribute__[ \t]*\(\([ \t]*_*(?:packed|aligned)"
)
"""What lays a structure out in another way than its fields say."""
_QUALIFIERS = re.compile(r"\b(?:const|struct|enum|extern)\b")


class Header:
    """One or more headers of a release, read as C.

    Raises
    ------
    SourceError
        A type that is asked for is none of those that the headers state.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._structs: dict[str, list[Node]] = {}
        self._enums: set[str] = set()
        self._wide: set[str] = set()  # enumerations that say their own width
        self._aliases: dict[str, str] = {}
        self._functions: dict[str, list[tuple[str, Node]]] = {}
        for path, content in files.items():
            if found := _PACKED.search(content):
                raise SourceError(f"{path} has a layout of its own: {found[0]}", remedy=MOVED)
            for node in walk(parse(_plain(content)), children):
                self._take(node)

    def _take(self, node: Node) -> None:
        name = words(node.child_by_field_name("name"))
        body = node.child_by_field_name("body")
        if node.type == "struct_specifier" and name and body is not None:
            self._structs.setdefault(name, []).append(node)
        elif node.type == "enum_specifier" and name:
            self._enums.add(name)
            if node.child_by_field_name("base") is not None:
                self._wide.add(name)
        elif node.type == "type_definition":
            self._alias(node)
        elif node.type in {"declaration", "function_definition"}:
            kind, declarator = words(node.child_by_field_name("type")), _declarator(node)
            while declarator is not None and declarator.type == "pointer_declarator":
                kind, declarator = f"{kind} *", declarator.child_by_field_name("declarator")
            if declarator is not None and declarator.type == "function_declarator":
                called = words(declarator.child_by_field_name("declarator"))
                self._functions.setdefault(called, []).append((kind, declarator))

    def _alias(self, node: Node) -> None:
        kind, declarator = node.child_by_field_name("type"), _declarator(node)
        if kind is None or declarator is None:
            return
        if declarator.type == "type_identifier":
            meant = words(kind.child_by_field_name("name")) or words(kind)
            known = self._aliases.setdefault(words(declarator), meant)
            if known != meant:
                self._aliases[words(declarator)] = _UNKNOWN
        elif declarator.type in {"pointer_declarator", "function_declarator"}:
            name = _pointed(declarator)
            if name:
                self._aliases[name] = "void *"

    def struct(self, name: str) -> list[tuple[str, str]]:
        """Return a structure's fields, in order: the code of the type, and the name."""
        if name not in self._structs:
            raise SourceError(f"the header states no fields of {name}", remedy=MOVED)
        stated = [self._fields(name, node) for node in self._structs[name]]
        if any(fields != stated[0] for fields in stated):
            raise SourceError(f"the header states {name} in several ways", remedy=MOVED)
        return stated[0]

    def _fields(self, name: str, specifier: Node) -> list[tuple[str, str]]:
        fields: list[tuple[str, str]] = []
        *around, body = children(specifier)
        if [node.type for node in around] != ["type_identifier"]:
            raise SourceError(f"{name} is no plain structure: {words(specifier):.60}", remedy=MOVED)
        for node in children(body):
            declared = node.children_by_field_name("declarator")
            kind = node.child_by_field_name("type")
            rest = [each for each in children(node) if each not in (kind, *declared)]
            plain = node.type == "field_declaration" and declared
            if not plain or any(each.type != "type_qualifier" for each in rest):
                raise SourceError(
                    f"{name} has a part that is no plain field: {words(node):.60}", remedy=MOVED
                )
            fields += [self._field(words(kind), declarator, name) for declarator in declared]
        return fields

    def function(self, name: str) -> tuple[str, list[str]]:
        """Return the code of what a function returns, and those of its parameters."""
        if name not in self._functions:
            raise SourceError(f"the header declares no function {name}", remedy=MOVED)
        declared = [self._types(kind, node) for kind, node in self._functions[name]]
        if any(types != declared[0] for types in declared):
            raise SourceError(f"the header declares {name} in several ways", remedy=MOVED)
        return declared[0]

    def _types(self, kind: str, declarator: Node) -> tuple[str, list[str]]:
        listed = declarator.child_by_field_name("parameters")
        codes = []
        if words(listed).endswith("...)"):
            raise SourceError(f"{words(declarator):.60} takes any number of values", remedy=MOVED)
        for node in [] if listed is None else children(listed):
            plain = words(node.child_by_field_name("type"))
            inner = words(node.child_by_field_name("declarator"))
            codes.append(POINTER if "*" in inner or "[" in inner else self._code(plain))
        return self._code(kind), [] if codes == ["void"] else codes

    def reached(self, names: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
        """Return structures by name, with those that stand inside of them."""
        known: dict[str, list[tuple[str, str]]] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in known:
                known[name] = self.struct(name)
                codes = (code for code, _ in known[name])
                waiting += [c.removeprefix(STRUCT) for c in codes if c.startswith(STRUCT)]
        return known

    def _field(self, plain: str, declarator: Node, owner: str) -> tuple[str, str]:
        """Return the code and the name of a field, given its type without the declarator."""
        inner = declarator.child_by_field_name("declarator")
        if declarator.type == "field_identifier":
            return self._code(plain), words(declarator)
        size = words(declarator.child_by_field_name("size"))
        if size.isdigit() and inner is not None and inner.type == "field_identifier":
            return f"{self._code(plain)}[{size}]", words(inner)
        if name := _pointed(declarator):
            return POINTER, name
        raise SourceError(
            f"a field of {owner} has an unknown form: {words(declarator):.60}", remedy=MOVED
        )

    def _code(self, text: str) -> str:
        """Return the code of a type as it is written."""
        plain = " ".join(_QUALIFIERS.sub(" ", text).split())
        for _ in range(8):  # aliases of aliases
            if "{" in plain:
                break
            if "*" in plain:
                return POINTER
            if plain in NUMBERS:
                return NUMBERS[plain]
            if plain in self._enums - self._wide:
                return "i32"
            if plain in self._structs and self._aliases.get(plain, plain) == plain:
                return f"{STRUCT}{plain}"
            if plain not in self._aliases:
                break
            plain = " ".join(_QUALIFIERS.sub(" ", self._aliases[plain]).split())
        raise SourceError(f"{text!r:.80} is a type of an unknown form", remedy=MOVED)


def _plain(content: str) -> str:
    """Return a header as C reads it, without the words that say how a function is exported."""
    content = re.sub(r"#ifdef[ \t]+__cplusplus\n.*?#endif", "", content, flags=re.DOTALL)
    text = re.sub(r"\b(?:LLAMA_API|GGML_API|GGML_BACKEND_API|GGML_CALL)\b", "", content)
    return re.sub(r"^(\s*)DEPRECATED\(", r"\1// DEPRECATED(", text, flags=re.MULTILINE)


def _declarator(node: Node) -> Node | None:
    return node.child_by_field_name("declarator")


def _pointed(node: Node | None) -> str:
    """Return the name that a declarator makes a pointer, to data or to a function; else nothing."""
    starred = False
    while node is not None and node.type == "pointer_declarator":
        starred, node = True, _declarator(node)
    if node is None:
        return ""
    if node.type in _NAMES:
        return words(node) if starred else ""
    inner = _declarator(node)
    if node.type == "function_declarator" and inner is not None:
        held = list(children(inner))
        return _pointed(held[0]) if inner.type == "parenthesized_declarator" and held else ""
    return ""
