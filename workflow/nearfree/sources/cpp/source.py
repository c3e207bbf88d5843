"""C++ and CUDA sources: parse them, and find functions, macros and template parameters by name.

Of an `#ifdef` block, the part for an undefined name is read: what a build without options compiles.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from nearfree.errors import MovedError, SourceError
from nearfree.log.events import Quote
from nearfree.sources.language.program import Text

LANGUAGE = Language(tree_sitter_cuda.language())
BYTES_LIMIT = 4 << 20
TYPE_ALIAS = re.compile(rb"\busing\s+\w+\s*=[^;{}]*;")
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
NUMBER_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)[ \t]*$", re.MULTILINE)
_ENCLOSING = {
    "translation_unit",
    "namespace_definition",
    "declaration_list",
    "template_declaration",
    "linkage_specification",
}
_DECLARATORS = {"function_declarator", "abstract_function_declarator", "lambda_declarator"}


@dataclass(frozen=True)
class Macro:
    """A function-like macro: its parameters, and its body as a syntax tree."""

    parameters: tuple[str, ...]
    body: Node


@dataclass(frozen=True)
class Definition:
    """The definition of a function, and its file."""

    node: Node
    text: Text

    def quote(self, part: Node) -> Quote:
        """Return the quote of a part's lines."""
        return self.text.quote(part.start_point[0] + 1, part.end_point[0] + 1)


def parse(content: str) -> Node:
    """Return the syntax tree of a piece of C++ or CUDA."""
    raw = content.encode()
    if len(raw) > BYTES_LIMIT:
        raise SourceError("a source file is larger than 4 MB", remedy="It is not read")
    return Parser(LANGUAGE).parse(raw).root_node


def text_of(node: Node | None) -> str:
    """Return a node's text, with blanks collapsed."""
    return "" if node is None or node.text is None else " ".join(node.text.decode().split())


def children(node: Node) -> Iterator[Node]:
    """Yield a node's compiled children: no comments, and `#ifdef` as if nothing were defined."""
    for child in node.named_children:
        if child.type == "comment":
            continue
        if child.type == "preproc_ifdef":
            yield from _compiled_branch(child)
        else:
            yield child


def _compiled_branch(node: Node) -> Iterator[Node]:
    """Yield the compiled part of an `#ifdef`; an `#elif` stays, since it is unknown."""
    alternative = node.child_by_field_name("alternative")
    if node.children[0].type == "#ifndef":
        others = (node.child_by_field_name("name"), alternative)
        yield from (child for child in children(node) if child not in others)
    elif alternative is not None:
        yield from children(alternative) if alternative.type == "preproc_else" else [alternative]


def walk(node: Node, parts: Callable[[Node], Iterable[Node]] = children) -> Iterator[Node]:
    """Yield a node and all its descendants in order; only the compiled ones by default."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting += reversed([*parts(inner)])


class CppFiles:
    """The parsed C++ files of one release, by path.

    `quoted` are the files to quote from, line by line, if the parsed ones were edited.
    """

    def __init__(self, files: Mapping[str, str], quoted: Mapping[str, str] | None = None) -> None:
        quoted_files = files if quoted is None else quoted
        self.texts = {path: Text(path, quoted_files[path]) for path in files}
        self._parsed = files
        self._trees: dict[str, Node] = {}

    def tree(self, path: str) -> Node:
        """Return a file's syntax tree."""
        if path not in self._trees:
            content = self._parsed[path]
            root = parse(content)
            self._trees[path] = (
                parse(_without_broken_aliases(content, root)) if root.has_error else root
            )
        return self._trees[path]

    @cached_property
    def _definitions(self) -> dict[str, list[Definition]]:
        definitions: dict[str, list[Definition]] = {}
        for path, text in sorted(self.texts.items()):
            try:
                for node in walk(self.tree(path), _enclosed):
                    if node.type == "function_definition":
                        definitions.setdefault(function_name(node), []).append(
                            Definition(node, text)
                        )
            except RecursionError as error:
                raise SourceError(
                    f"{path} is nested too deeply", remedy="It is not read: report it"
                ) from error
        return definitions

    def locate(self, *names: str) -> Definition:
        """Return the one definition that has one of the names.

        Raises
        ------
        SourceError
            There is none, there are several, or the one does not parse.
        """
        definitions = [
            definition for name in names for definition in self._definitions.get(name, [])
        ]
        if len(definitions) != 1:
            locations = ", ".join(
                f"{definition.text.path}:{definition.node.start_point[0] + 1}"
                for definition in definitions
            )
            raise MovedError(
                f"{' or '.join(names)} must be defined once; it is defined {locations or 'nowhere'}"
            )
        if definitions[0].node.has_error:
            raise SourceError(f"{definitions[0].text.path}: {names[0]} does not parse as C++")
        self._check_conditions(definitions[0])
        return definitions[0]

    def _check_conditions(self, definition: Definition) -> None:
        """Refuse a function with an `#ifdef` of a macro that these files define somewhere."""
        for descendant in walk(definition.node, lambda node: node.named_children):
            name = text_of(descendant.child_by_field_name("name"))
            if descendant.type == "preproc_ifdef" and name in self._defined:
                raise SourceError(
                    f"{definition.text.path}: {function_name(definition.node)} depends on {name},"
                    " which is defined in some places"
                )

    @cached_property
    def _defined(self) -> set[str]:
        texts = (text.content for text in self.texts.values())
        return {name for text in texts for name in DEFINE.findall(text)}

    @cached_property
    def numbers(self) -> dict[str, str]:
        """Values of macros that `#define` makes an integer, by name; only unambiguous ones."""
        definitions = [
            pair for text in self.texts.values() for pair in NUMBER_MACRO.findall(text.content)
        ]
        return {
            name: number
            for name, number in definitions
            if len({value for other, value in definitions if other == name}) == 1
        }

    def defines(self, name: str) -> bool:
        """Return whether a function of that name is defined exactly once."""
        return len(self._definitions.get(name, [])) == 1

    def definitions(self, name: str) -> list[Definition]:
        """Return all definitions of a name: the specialisations of a template share one."""
        return self._definitions.get(name, [])

    @cached_property
    def macros(self) -> dict[str, Macro]:
        """Function-like macros by name, aliases resolved."""
        macros: dict[str, Macro] = {}
        aliases: dict[str, str] = {}
        for path in sorted(self.texts):
            if "#define" not in self.texts[path].content:
                continue
            for node in walk(self.tree(path)):
                name = text_of(node.child_by_field_name("name"))
                value = node.child_by_field_name("value")
                if node.type == "preproc_function_def" and value is not None:
                    parameter_list = node.child_by_field_name("parameters")
                    listed = [] if parameter_list is None else parameter_list.children
                    parameters = tuple(
                        text_of(parameter) for parameter in listed if parameter.type not in "(),"
                    )
                    macros[name] = Macro(parameters, _macro_body(value))
                elif node.type == "preproc_def" and value is not None:
                    aliases[name] = text_of(value)
        for name, target in aliases.items():
            if target in macros:
                macros[name] = macros[target]
        return macros


def _without_broken_aliases(content: str, root: Node) -> str:
    """Return a source without those type aliases that do not parse.

    The grammar fails on comparisons among template arguments. A type carries no number; if a rule
    needs the alias after all, its name is unknown.
    """
    raw = content.encode()
    error_nodes = walk(root, lambda node: [child for child in node.children if child.has_error])
    broken = [
        (node.start_byte, node.end_byte) for node in error_nodes if node.is_error or node.is_missing
    ]
    for alias in TYPE_ALIAS.finditer(raw):
        if any(start < alias.end() and alias.start() < end for start, end in broken):
            blank = re.sub(rb"[^\n]", b" ", alias.group())
            raw = raw[: alias.start()] + blank + raw[alias.end() :]
    return raw.decode()


def _macro_body(value: Node) -> Node:
    plain = (value.text or b"").decode().replace("\\\n", " ").replace("\\\r\n", " ")
    return parse(f"void body() {{ {plain}; }}")


def _enclosed(node: Node) -> Iterator[Node]:
    """Yield the children of a namespace, a template or the like; none of any other node."""
    return children(node) if node.type in _ENCLOSING else iter(())


def declarator(node: Node) -> Node:
    """Return the declarator of a function: its name and its parameters."""
    inner = node.child_by_field_name("declarator")
    while inner is not None and inner.type not in _DECLARATORS:
        inner = inner.child_by_field_name("declarator") or next(iter(inner.named_children), None)
    return inner or node


def function_name(node: Node) -> str:
    """Return a function's name, without template arguments and namespaces."""
    name = declarator(node).child_by_field_name("declarator")
    if name is not None and name.type == "template_function":
        name = name.child_by_field_name("name")
    return text_of(name).rsplit("::", 1)[-1]


def specialised_for(node: Node) -> list[Node]:
    """Return the template arguments of a function's specialisation."""
    name = declarator(node).child_by_field_name("declarator")
    while name is not None and name.type == "qualified_identifier":
        name = name.child_by_field_name("name")
    listed = name.child_by_field_name("arguments") if name is not None else None
    return [] if listed is None else list(children(listed))


def template_parameters(node: Node) -> list[tuple[str, Node | str]]:
    """Return name and default of each of a function template's parameters, in order.

    A default is a node, or a text: `deduced` for a type (which carries no number), `unknown` for a
    number without a default, `...` for any number of parameters. An unnamed parameter has an empty
    name.
    """
    parent = node.parent
    if parent is None or parent.type != "template_declaration":
        return []
    parameter_list = parent.child_by_field_name("parameters")
    parameters: list[tuple[str, Node | str]] = []
    for parameter in children(parameter_list) if parameter_list is not None else []:
        name = text_of(
            parameter.child_by_field_name("declarator") or (None, *parameter.named_children)[-1]
        )
        default = parameter.child_by_field_name("default_value")
        if "variadic" in parameter.type:
            parameters.append((name, "..."))
        elif parameter.type == "optional_parameter_declaration" and default is not None:
            parameters.append((name, default))
        else:
            parameters.append(
                (name, "deduced" if "type_parameter" in parameter.type else "unknown")
            )
    return parameters


def namespaces(node: Node) -> set[str]:
    """Return the namespaces that enclose a function."""
    names: set[str] = set()
    ancestor = node.parent
    while ancestor is not None:
        if ancestor.type == "namespace_definition":
            names |= set(text_of(ancestor.child_by_field_name("name")).split("::"))
        ancestor = ancestor.parent
    return names


def parameter_nodes(node: Node) -> list[Node]:
    """Return the declarations of a function's parameters."""
    parameter_list = declarator(node).child_by_field_name("parameters")
    kinds = {"parameter_declaration", "optional_parameter_declaration"}
    if parameter_list is None:
        return []
    return [child for child in parameter_list.named_children if child.type in kinds]


def parameter_names(node: Node) -> list[tuple[str, Node | None, str]]:
    """Return name, default and type of each of a function's parameters."""
    parameters = []
    for parameter in parameter_nodes(node):
        name = parameter.child_by_field_name("declarator")
        while name is not None and name.type != "identifier":
            name = name.child_by_field_name("declarator") or (None, *name.named_children)[-1]
        kind = text_of(parameter.child_by_field_name("type"))
        parameters.append((text_of(name), parameter.child_by_field_name("default_value"), kind))
    return parameters
