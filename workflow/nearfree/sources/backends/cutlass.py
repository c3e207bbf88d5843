"""CUTLASS: which products a dispatch by rows launches, and the rows that one of their tiles holds.

A dispatch names a kernel by its type. The type is looked up in the release's own text, down to the
tile's shape; a kernel whose operands are swapped holds the rows of its input on the second axis.
"""

import re
from collections.abc import Iterator, Mapping

from tree_sitter import Node

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.nodes import called_name, part, plain, template_arguments
from nearfree.sources.cpp.source import (
    CppFiles,
    children,
    function_name,
    parse,
    walk,
    words,
)
from nearfree.sources.cpp.written import Edit, written

LAUNCH = re.compile(r"(fallback_)?cutlass_gemm_caller(_\w+)?")
"""Functions that launch the kernel which their first template argument names."""
DISPATCH = re.compile(r"(\w+_)?dispatch")
SHAPES = ("Shape", "GemmShape")
TILES = ("TileShape", "MmaTileShape")
SWAPPED = "swap_ab_"
ROWS = "TileSizeM_"
"""Names of template parameters that say the tile, whether operands are swapped, or rows alone."""
_SCOPES = {
    "compound_statement",
    "field_declaration_list",
    "declaration_list",
    "translation_unit",
}
_TYPES = {"type_descriptor", "dependent_type", "template_argument"}


def with_rows(files: Mapping[str, str]) -> CppFiles:
    """Return C++ files in which a launch is the rows of the kernel's tile, and ends a dispatch.

    A structure's static `dispatch` becomes a function of its own, `<structure>_dispatch`.

    Raises
    ------
    SourceError
        A kernel's type is not of the known form.
    """
    kernels = Kernels(files)
    return CppFiles({path: kernels.written(path) for path in files}, quoted=files)


class Kernels:
    """The kernels' types of one release's files."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self.trees = {path: parse(text) for path, text in files.items()}
        self._structs: dict[str, list[tuple[str, Node]]] = {}
        for path, tree in self.trees.items():
            for node in walk(tree):
                if node.type == "struct_specifier" and node.child_by_field_name("body"):
                    name = words(node.child_by_field_name("name"))
                    self._structs.setdefault(name, []).append((path, node))

    def written(self, path: str) -> str:
        """Return a file's text with rows for launches, on the lines where they stand."""
        tree = self.trees[path]
        dispatches = (
            each
            for each in walk(tree)
            if each.type == "function_definition" and DISPATCH.fullmatch(function_name(each))
        )
        edits = [edit for each in dispatches for node in walk(each)
                 for edit in self._launch(path, node)]  # fmt: skip
        return written(self.files[path], [*edits, *_lifted(tree)])

    def _launch(self, path: str, node: Node) -> Iterator[Edit]:
        if node.type != "call_expression" or not LAUNCH.fullmatch(called_name(node)):
            return
        given = template_arguments(part(node, "function"))
        if given:
            ended = node.parent is not None and node.parent.type == "return_statement"
            rows = self.rows(path, given[0])
            yield Edit(node.start_byte, node.end_byte, f"{rows}" if ended else f"return {rows}")

    def rows(self, path: str, kernel: Node) -> int:
        """Return the rows of a tile of a kernel, from the type that names it."""
        found = {self._rows_of(*each) for each in self._kernels(path, kernel)}
        if len(found) != 1:
            raise _unknown(path, kernel)
        return found.pop()

    def _kernels(self, path: str, node: Node) -> Iterator[tuple[str, Node]]:
        """Yield the templates that a type stands for, with the file of each: one a case."""
        node = _plain(node)
        if node.type == "qualified_identifier":
            scope, name = part(node, "scope"), _plain(part(node, "name"))
            if words(scope) in {"vllm", "c3x"}:
                yield from self._kernels(path, name)
                return
            home, struct = self._struct(path, words(scope).split("<")[0])
            yield from self._kernels(home, _alias(part(struct, "body"), words(name), path))
        elif node.type == "type_identifier":
            yield from self._kernels(path, _alias(node, words(node), path))
        elif node.type == "template_type" and words(part(node, "name")) == "conditional_t":
            for each in list(children(part(node, "arguments")))[1:]:
                yield from self._kernels(path, each)
        elif node.type in {"template_type", "template_function"}:
            yield path, node
        else:
            raise _unknown(path, node)

    def _rows_of(self, path: str, node: Node) -> int:
        given = list(children(part(node, "arguments")))
        home, struct = self._struct(path, words(part(node, "name")))
        names = [_parameter(each) for each in _template(struct)]
        if ROWS in names:
            place = names.index(ROWS)
            spelled = given[place : place + 1] or _template(struct)[place : place + 1]
            return _size(
                home, part(spelled[0], "default_value") if place >= len(given) else spelled[0]
            )
        tile = next((number for number, name in enumerate(names) if name in TILES), None)
        if tile is None or tile >= len(given):
            raise _unknown(home, struct)
        turned = names.index(SWAPPED) if SWAPPED in names else len(given)
        swapped = turned < len(given) and words(given[turned]) == "true"
        return self._shape(path, given[tile])[int(swapped)]

    def _shape(self, path: str, node: Node) -> list[int]:
        inner = _plain(node)
        if inner.type == "type_identifier":
            return self._shape(path, _alias(inner, words(inner), path))
        while inner.type == "qualified_identifier":
            inner = _plain(part(inner, "name"))
        kinds = {"template_type", "template_function"}
        if inner.type not in kinds or words(part(inner, "name")) not in SHAPES:
            raise _unknown(path, inner)
        return [_size(path, each) for each in children(part(inner, "arguments"))]

    def _struct(self, path: str, name: str) -> tuple[str, Node]:
        """Return a structure's definition: that of the same file, else the only one."""
        found = self._structs.get(name, [])
        mine = [each for each in found if each[0] == path] or found
        if len(mine) != 1:
            raise SourceError(f"{path}: {len(mine)} structures {name}", remedy=MOVED)
        return mine[0]


def _lifted(tree: Node) -> Iterator[Edit]:
    """Yield what makes a static `dispatch` of a structure a function outside of it."""
    for struct in walk(tree):
        body = struct.child_by_field_name("body")
        if struct.type != "struct_specifier" or body is None:
            continue
        methods = [
            each
            for each in walk(body)
            if each.type == "function_definition" and _method_name(each) is not None
        ]
        if methods:
            name = words(struct.child_by_field_name("name"))
            yield Edit(struct.start_byte, body.start_byte + 1, "")
            end = struct.next_sibling
            yield Edit(body.end_byte - 1, end.end_byte if end is not None else body.end_byte, "")
            for method in methods:
                label, around = _method_name(method), method.parent
                if label is not None and around is not None:
                    given = part(part(method, "declarator"), "parameters")
                    yield Edit(label.start_byte, given.end_byte, f"{name}_dispatch()")
                    yield Edit(around.start_byte, method.start_byte, "")
    for node in walk(tree):
        called = words(node.child_by_field_name("function"))
        owner = re.match(r"(\w+)::dispatch<", called)
        if node.type == "call_expression" and owner:
            yield Edit(node.start_byte, node.end_byte, f"{owner[1]}_dispatch()")


def _method_name(method: Node) -> Node | None:
    spec = method.child_by_field_name("declarator")
    name = spec.child_by_field_name("declarator") if spec is not None else None
    return name if words(name) == "dispatch" else None


def _alias(node: Node, name: str, path: str) -> Node:
    """Return what a type's name stands for where a node uses it: the nearest scope's."""
    around: Node | None = node
    while around is not None:
        if around.type in _SCOPES:
            found = [
                each
                for each in children(around)
                if each.type == "alias_declaration"
                and words(each.child_by_field_name("name")) == name
            ]
            if len(found) == 1:
                return part(found[0], "type")
            if found:
                break
        around = around.parent
    raise _unknown(path, node)


def _size(path: str, node: Node) -> int:
    """Return a number of a shape: `_64`, `64`, `Int<64>`, or `Int<TILE_N>` of a constant."""
    text = words(node)
    inner = re.fullmatch(r"Int<(\w+)>", text)
    text = (inner[1] if inner else text).lstrip("_")
    if text.isdecimal():
        return int(text)
    around: Node | None = node
    while around is not None:
        for each in children(around) if around.type in _SCOPES else ():
            found = re.fullmatch(rf"constexpr int {text} = (\d+);", words(each))
            if found:
                return int(found[1])
        around = around.parent
    raise _unknown(path, node)


def _template(struct: Node) -> list[Node]:
    """Return a structure's template parameters."""
    around = struct.parent
    spec = around.child_by_field_name("parameters") if around is not None else None
    return [] if spec is None else list(children(spec))


def _parameter(node: Node) -> str:
    """Return the name of a template parameter."""
    return re.split(r"\s*=", words(node))[0].split()[-1]


def _plain(node: Node) -> Node:
    while node.type in _TYPES:
        node = plain(node) if node.type != "dependent_type" else next(children(node))
    return node


def _unknown(path: str, node: Node) -> SourceError:
    return SourceError(
        f"{path}:{node.start_point[0] + 1}: a kernel of an unknown form, {words(node):.80}",
        remedy=MOVED,
    )
