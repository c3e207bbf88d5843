"""C++ and CUDA sources: parse them, and find functions, macros and template parameters by name.

Of `#ifdef` blocks the part for an undefined name is read: what a build without options compiles.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from nearfree.errors import MOVED, SourceError
from nearfree.sources.language.program import Text

LANGUAGE = Language(tree_sitter_cuda.language())
MOST_BYTES = 4 << 20
ALIAS = re.compile(rb"\busing\s+\w+\s*=[^;{}]*;")
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
NUMBER = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)[ \t]*$", re.MULTILINE)
_AROUND = {
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
class Found:
    """A function's definition, and the file that it stands in."""

    node: Node
    text: Text


def parse(content: str) -> Node:
    """Return the syntax tree of a piece of C++ or CUDA."""
    raw = content.encode()
    if len(raw) > MOST_BYTES:
        raise SourceError("a source file is larger than 4 MB", remedy="It is not read")
    return Parser(LANGUAGE).parse(raw).root_node


def words(node: Node | None) -> str:
    """Return a node's text, with blanks collapsed."""
    return "" if node is None or node.text is None else " ".join(node.text.decode().split())


def children(node: Node) -> Iterator[Node]:
    """Yield a node's parts that are compiled: no comments, `#ifdef` as if nothing is defined."""
    for child in node.named_children:
        if child.type == "comment":
            continue
        if child.type == "preproc_ifdef":
            yield from _chosen(child)
        else:
            yield child


def _chosen(node: Node) -> Iterator[Node]:
    """Yield the part of an `#ifdef` that is compiled; an `#elif` stays, for nobody knows it."""
    unless = node.children[0].type == "#ifndef"
    alternative = node.child_by_field_name("alternative")
    if unless:
        name, rest = node.child_by_field_name("name"), [alternative]
        for child in children(node):
            if child != name and child not in rest:
                yield child
    elif alternative is not None:
        yield from children(alternative) if alternative.type == "preproc_else" else [alternative]


def walk(node: Node, parts: Callable[[Node], Iterable[Node]] = children) -> Iterator[Node]:
    """Yield a node and all of its parts, in order; the compiled ones unless told otherwise."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting += reversed([*parts(inner)])


class CppFiles:
    """The parsed C++ files of one release, by path.

    Parameters
    ----------
    quoted
        The same files as they are quoted, line by line, where parts are parsed as written
        otherwise.
    """

    def __init__(self, files: Mapping[str, str], quoted: Mapping[str, str] | None = None) -> None:
        shown = files if quoted is None else quoted
        self.texts = {path: Text(path, shown[path]) for path in files}
        self._parsed = files
        self._trees: dict[str, Node] = {}

    def tree(self, path: str) -> Node:
        """Return a file's syntax tree."""
        if path not in self._trees:
            content = self._parsed[path]
            root = parse(content)
            self._trees[path] = parse(_plain(content, root)) if root.has_error else root
        return self._trees[path]

    @cached_property
    def _definitions(self) -> dict[str, list[Found]]:
        found: dict[str, list[Found]] = {}
        for path, text in sorted(self.texts.items()):
            try:
                for node in walk(self.tree(path), _around):
                    if node.type == "function_definition":
                        found.setdefault(function_name(node), []).append(Found(node, text))
            except RecursionError as error:
                raise SourceError(
                    f"{path} is nested too deeply", remedy="It is not read: report it"
                ) from error
        return found

    def locate(self, *names: str) -> Found:
        """Return the one definition that has one of the names.

        Raises
        ------
        SourceError
            None or several, or one that does not parse.
        """
        found = [each for name in names for each in self._definitions.get(name, [])]
        if len(found) != 1:
            places = ", ".join(f"{f.text.path}:{f.node.start_point[0] + 1}" for f in found)
            raise SourceError(
                f"{' or '.join(names)} must be defined once; it is defined {places or 'nowhere'}",
                remedy=MOVED,
            )
        if found[0].node.has_error:
            raise SourceError(f"{found[0].text.path}: {names[0]} does not parse as C++")
        self._check_conditions(found[0])
        return found[0]

    def _check_conditions(self, found: Found) -> None:
        """Refuse a function that asks for a macro which these files define, in a place or not."""
        for part in walk(found.node, lambda node: node.named_children):
            name = words(part.child_by_field_name("name"))
            if part.type == "preproc_ifdef" and name in self._defined:
                raise SourceError(
                    f"{found.text.path}: {function_name(found.node)} depends on {name}, which is"
                    " defined in some places"
                )

    @cached_property
    def _defined(self) -> set[str]:
        texts = (text.content for text in self.texts.values())
        return {name for text in texts for name in DEFINE.findall(text)}

    @cached_property
    def numbers(self) -> dict[str, str]:
        """Names that `#define` makes a whole number, with it; none that two lines define."""
        found = [pair for text in self.texts.values() for pair in NUMBER.findall(text.content)]
        return {
            name: number for name, number in found if len({n for m, n in found if m == name}) == 1
        }

    def defines(self, name: str) -> bool:
        """Return whether a function of that name is defined once."""
        return len(self._definitions.get(name, [])) == 1

    def definitions(self, name: str) -> list[Found]:
        """Return all definitions of a name: a template's specialisations share one."""
        return self._definitions.get(name, [])

    @cached_property
    def macros(self) -> dict[str, Macro]:
        """Function-like macros, aliases of them resolved."""
        found: dict[str, Macro] = {}
        aliases: dict[str, str] = {}
        for path in sorted(self.texts):
            if "#define" not in self.texts[path].content:
                continue
            for node in walk(self.tree(path)):
                name = words(node.child_by_field_name("name"))
                value = node.child_by_field_name("value")
                if node.type == "preproc_function_def" and value is not None:
                    spec = node.child_by_field_name("parameters")
                    parts = [] if spec is None else spec.children
                    given = tuple(words(part) for part in parts if part.type not in "(),")
                    found[name] = Macro(given, _body(value))
                elif node.type == "preproc_def" and value is not None:
                    aliases[name] = words(value)
        for name, other in aliases.items():
            if other in found:
                found[name] = found[other]
        return found


def _plain(content: str, root: Node) -> str:
    """Return a source without those type aliases that do not parse.

    The grammar stumbles over comparisons among template arguments. A type carries no number; a
    rule that needs the alias after all finds its name unknown.
    """
    raw = content.encode()
    suspects = walk(root, lambda node: [child for child in node.children if child.has_error])
    broken = [(e.start_byte, e.end_byte) for e in suspects if e.is_error or e.is_missing]
    for found in ALIAS.finditer(raw):
        if any(start < found.end() and found.start() < end for start, end in broken):
            blank = re.sub(rb"[^\n]", b" ", found.group())
            raw = raw[: found.start()] + blank + raw[found.end() :]
    return raw.decode()


def _body(value: Node) -> Node:
    plain = (value.text or b"").decode().replace("\\\n", " ").replace("\\\r\n", " ")
    return parse(f"void body() {{ {plain}; }}")


def _around(node: Node) -> Iterator[Node]:
    """Yield what stands in a namespace, a template or the like; of all else nothing."""
    return children(node) if node.type in _AROUND else iter(())


def declarator(node: Node) -> Node:
    """Return the declarator of a function: its name and its parameters."""
    found = node.child_by_field_name("declarator")
    while found is not None and found.type not in _DECLARATORS:
        found = found.child_by_field_name("declarator") or next(iter(found.named_children), None)
    return found or node


def function_name(node: Node) -> str:
    """Return a function's name, without template arguments and namespaces."""
    name = declarator(node).child_by_field_name("declarator")
    if name is not None and name.type == "template_function":
        name = name.child_by_field_name("name")
    return words(name).rsplit("::", 1)[-1]


def specialised_for(node: Node) -> list[Node]:
    """Return the template arguments that a specialisation of a function is for."""
    name = declarator(node).child_by_field_name("declarator")
    while name is not None and name.type == "qualified_identifier":
        name = name.child_by_field_name("name")
    given = name.child_by_field_name("arguments") if name is not None else None
    return [] if given is None else list(children(given))


def template_parameters(node: Node) -> list[tuple[str, Node | str]]:
    """Return name and default of each of a function template's parameters, in order.

    A type is no number: where a call does not spell it out it is `deduced`. A number without a
    default is `unknown` then, and `...` stands for any number of parameters. A parameter that is
    not named has an empty name.
    """
    parent = node.parent
    if parent is None or parent.type != "template_declaration":
        return []
    spec = parent.child_by_field_name("parameters")
    found: list[tuple[str, Node | str]] = []
    for each in children(spec) if spec is not None else []:
        name = words(each.child_by_field_name("declarator") or (None, *each.named_children)[-1])
        default = each.child_by_field_name("default_value")
        if "variadic" in each.type:
            found.append((name, "..."))
        elif each.type == "optional_parameter_declaration" and default is not None:
            found.append((name, default))
        else:
            found.append((name, "deduced" if "type_parameter" in each.type else "unknown"))
    return found


def returned_type(node: Node) -> str:
    """Return the name of the type that a function returns, without qualifiers."""
    return words(node.child_by_field_name("type"))


def namespaces(node: Node) -> set[str]:
    """Return the namespaces that a function stands in."""
    found: set[str] = set()
    around = node.parent
    while around is not None:
        if around.type == "namespace_definition":
            found |= set(words(around.child_by_field_name("name")).split("::"))
        around = around.parent
    return found


def parameter_nodes(node: Node) -> list[Node]:
    """Return the declarations of a function's parameters."""
    spec = declarator(node).child_by_field_name("parameters")
    kinds = {"parameter_declaration", "optional_parameter_declaration"}
    return [] if spec is None else [child for child in spec.named_children if child.type in kinds]


def parameter_names(node: Node) -> list[tuple[str, Node | None, str]]:
    """Return name, default and type of each of a function's parameters."""
    found = []
    for each in parameter_nodes(node):
        name = each.child_by_field_name("declarator")
        while name is not None and name.type != "identifier":
            name = name.child_by_field_name("declarator") or (None, *name.named_children)[-1]
        kind = words(each.child_by_field_name("type"))
        found.append((words(name), each.child_by_field_name("default_value"), kind))
    return found
