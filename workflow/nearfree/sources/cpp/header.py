"""C headers of a library: the fields of its structures and the types of its functions.

Only what matters across a call is read. A field or parameter is a number of some width, a pointer,
an array of numbers, or a structure by its name; an enumeration is a 32-bit number.
"""

import re
from collections.abc import Iterable, Mapping

from tree_sitter import Node

from nearfree.errors import MovedError
from nearfree.sources.cpp.source import children, parse, text_of, walk

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
"""The meaning of a name that has conflicting type definitions."""
_NAMES = ("field_identifier", "type_identifier", "identifier")
_PACKED = re.compile(
    r"#[ \t]*pragma[ \t]+pack\b|\b_?[aA]lignas\b"
    r"|\b__attribute__[ \t]*\(\([ \t]*_*(?:packed|aligned)"
)
"""Directives that change a structure's layout from its fields' default one."""
_QUALIFIERS = re.compile(r"\b(?:const|struct|enum|extern)\b")


class Header:
    """One or more headers of a release, parsed as C.

    Raises
    ------
    SourceError
        A requested type is not declared in the headers, or has an unknown form.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._structs: dict[str, list[Node]] = {}
        self._enums: set[str] = set()
        self._sized_enums: set[str] = set()  # enumerations that declare their own width
        self._aliases: dict[str, str] = {}
        self._functions: dict[str, list[tuple[str, Node]]] = {}
        for path, content in files.items():
            if packed := _PACKED.search(content):
                raise MovedError(f"{path} has a layout of its own: {packed[0]}")
            for node in walk(parse(_as_c(content)), children):
                self._record_declaration(node)

    def _record_declaration(self, node: Node) -> None:
        name = text_of(node.child_by_field_name("name"))
        body = node.child_by_field_name("body")
        if node.type == "struct_specifier" and name and body is not None:
            self._structs.setdefault(name, []).append(node)
        elif node.type == "enum_specifier" and name:
            self._enums.add(name)
            if node.child_by_field_name("base") is not None:
                self._sized_enums.add(name)
        elif node.type == "type_definition":
            self._record_alias(node)
        elif node.type in {"declaration", "function_definition"}:
            type_name, declarator = text_of(node.child_by_field_name("type")), _declarator(node)
            while declarator is not None and declarator.type == "pointer_declarator":
                type_name = f"{type_name} *"
                declarator = declarator.child_by_field_name("declarator")
            if declarator is not None and declarator.type == "function_declarator":
                function_name = text_of(declarator.child_by_field_name("declarator"))
                self._functions.setdefault(function_name, []).append((type_name, declarator))

    def _record_alias(self, node: Node) -> None:
        type_node, declarator = node.child_by_field_name("type"), _declarator(node)
        if type_node is None or declarator is None:
            return
        if declarator.type == "type_identifier":
            target = text_of(type_node.child_by_field_name("name")) or text_of(type_node)
            earlier = self._aliases.setdefault(text_of(declarator), target)
            if earlier != target:
                self._aliases[text_of(declarator)] = _UNKNOWN
        elif declarator.type in {"pointer_declarator", "function_declarator"}:
            name = _pointer_name(declarator)
            if name:
                self._aliases[name] = "void *"

    def struct(self, name: str) -> list[tuple[str, str]]:
        """Return a structure's fields in order: the type's code, and the name."""
        if name not in self._structs:
            raise MovedError(f"the header states no fields of {name}")
        definitions = [self._fields(name, node) for node in self._structs[name]]
        if any(fields != definitions[0] for fields in definitions):
            raise MovedError(f"the header states {name} in several ways")
        return definitions[0]

    def _fields(self, name: str, specifier: Node) -> list[tuple[str, str]]:
        fields: list[tuple[str, str]] = []
        *heads, body = children(specifier)
        if [member.type for member in heads] != ["type_identifier"]:
            raise MovedError(f"{name} is no plain structure: {text_of(specifier):.60}")
        for member in children(body):
            declarators = member.children_by_field_name("declarator")
            type_node = member.child_by_field_name("type")
            others = [other for other in children(member) if other not in (type_node, *declarators)]
            is_field = member.type == "field_declaration" and declarators
            if not is_field or any(other.type != "type_qualifier" for other in others):
                raise MovedError(f"{name} has a part that is no plain field: {text_of(member):.60}")
            fields += [
                self._field(text_of(type_node), declarator, name) for declarator in declarators
            ]
        return fields

    def function(self, name: str) -> tuple[str, list[str]]:
        """Return the code of a function's return type, and those of its parameters."""
        if name not in self._functions:
            raise MovedError(f"the header declares no function {name}")
        declarations = [
            self._types(type_name, declarator) for type_name, declarator in self._functions[name]
        ]
        if any(types != declarations[0] for types in declarations):
            raise MovedError(f"the header declares {name} in several ways")
        return declarations[0]

    def _types(self, returned_type: str, declarator: Node) -> tuple[str, list[str]]:
        parameters = declarator.child_by_field_name("parameters")
        codes = []
        if text_of(parameters).endswith("...)"):
            raise MovedError(f"{text_of(declarator):.60} takes any number of values")
        for parameter in [] if parameters is None else children(parameters):
            type_name = text_of(parameter.child_by_field_name("type"))
            declarator_text = text_of(parameter.child_by_field_name("declarator"))
            is_pointer = "*" in declarator_text or "[" in declarator_text
            codes.append(POINTER if is_pointer else self._code(type_name))
        return self._code(returned_type), [] if codes == ["void"] else codes

    def reached(self, names: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
        """Return structures by name, with those that they contain."""
        structures: dict[str, list[tuple[str, str]]] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in structures:
                structures[name] = self.struct(name)
                codes = (code for code, _ in structures[name])
                waiting += [code.removeprefix(STRUCT) for code in codes if code.startswith(STRUCT)]
        return structures

    def _field(self, type_name: str, declarator: Node, owner: str) -> tuple[str, str]:
        """Return the code and the name of a field from its type and its declarator."""
        inner = declarator.child_by_field_name("declarator")
        if declarator.type == "field_identifier":
            return self._code(type_name), text_of(declarator)
        size = text_of(declarator.child_by_field_name("size"))
        if size.isdigit() and inner is not None and inner.type == "field_identifier":
            return f"{self._code(type_name)}[{size}]", text_of(inner)
        if name := _pointer_name(declarator):
            return POINTER, name
        raise MovedError(f"a field of {owner} has an unknown form: {text_of(declarator):.60}")

    def _code(self, text: str) -> str:
        """Return the code of a type from its text."""
        type_name = " ".join(_QUALIFIERS.sub(" ", text).split())
        for _ in range(8):  # aliases of aliases
            if "{" in type_name:
                break
            if "*" in type_name:
                return POINTER
            if type_name in NUMBERS:
                return NUMBERS[type_name]
            if type_name in self._enums - self._sized_enums:
                return "i32"
            if type_name in self._structs and self._aliases.get(type_name, type_name) == type_name:
                return f"{STRUCT}{type_name}"
            if type_name not in self._aliases:
                break
            type_name = " ".join(_QUALIFIERS.sub(" ", self._aliases[type_name]).split())
        raise MovedError(f"{text!r:.80} is a type of an unknown form")


def _as_c(content: str) -> str:
    """Return a header as C reads it, without export macros."""
    content = re.sub(r"#ifdef[ \t]+__cplusplus\n.*?#endif", "", content, flags=re.DOTALL)
    text = re.sub(r"\b(?:LLAMA_API|GGML_API|GGML_BACKEND_API|GGML_CALL)\b", "", content)
    return re.sub(r"^(\s*)DEPRECATED\(", r"\1// DEPRECATED(", text, flags=re.MULTILINE)


def _declarator(node: Node) -> Node | None:
    return node.child_by_field_name("declarator")


def _pointer_name(node: Node | None) -> str:
    """Return the name that a declarator makes a pointer, to data or to a function; else ""."""
    is_pointer = False
    while node is not None and node.type == "pointer_declarator":
        is_pointer, node = True, _declarator(node)
    if node is None:
        return ""
    if node.type in _NAMES:
        return text_of(node) if is_pointer else ""
    inner = _declarator(node)
    if node.type == "function_declarator" and inner is not None:
        parts = list(children(inner))
        return _pointer_name(parts[0]) if inner.type == "parenthesized_declarator" and parts else ""
    return ""
