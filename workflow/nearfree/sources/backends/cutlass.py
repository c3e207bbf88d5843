"""CUTLASS: the kernels that a dispatch by rows launches, and the rows of their tiles.

A dispatch names a kernel by its type. The type is resolved in the release's own source, down to the
tile's shape. A kernel with swapped operands has the rows of its input on the tile's second axis.
"""

import re
from collections.abc import Iterator, Mapping

from tree_sitter import Node

from nearfree.errors import MovedError, SourceError
from nearfree.sources.cpp.edits import Edit, edited
from nearfree.sources.cpp.nodes import called_name, part, plain, template_arguments
from nearfree.sources.cpp.source import CppFiles, children, function_name, parse, text_of, walk

LAUNCH = re.compile(r"(fallback_)?cutlass_gemm_caller(_\w+)?")
"""Functions that launch the kernel named by their first template argument."""
DISPATCH = re.compile(r"(\w+_)?dispatch")
SHAPES = ("Shape", "GemmShape")
TILES = ("TileShape", "MmaTileShape")
SWAPPED = "swap_ab_"
ROWS = "TileSizeM_"
"""Names of template parameters: the tile's shape, whether operands are swapped, the tile's rows."""
_SCOPES = {"compound_statement", "field_declaration_list", "declaration_list", "translation_unit"}
_TYPES = {"type_descriptor", "dependent_type", "template_argument"}


def with_rows(files: Mapping[str, str]) -> CppFiles:
    """Return C++ files in which each launch is replaced by the rows of its kernel's tile.

    The replacement returns from the dispatch. A struct's static `dispatch` becomes a free function,
    `<struct>_dispatch`.
    """
    kernels = Kernels(files)
    return CppFiles({path: kernels.written(path) for path in files}, quoted=files)


class Kernels:
    """The kernel types in one release's files."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self.trees = {path: parse(text) for path, text in files.items()}
        self._structs: dict[str, list[tuple[str, Node]]] = {}
        for path, tree in self.trees.items():
            for node in walk(tree):
                if node.type == "struct_specifier" and node.child_by_field_name("body"):
                    name = text_of(node.child_by_field_name("name"))
                    self._structs.setdefault(name, []).append((path, node))

    def written(self, path: str) -> str:
        """Return a file's text with launches replaced by rows; lines keep their numbers."""
        tree = self.trees[path]
        dispatches = (
            dispatch
            for dispatch in walk(tree)
            if dispatch.type == "function_definition"
            and DISPATCH.fullmatch(function_name(dispatch))
        )
        edits = [edit for dispatch in dispatches for node in walk(dispatch)
                 for edit in self._launch(path, node)]  # fmt: skip
        return edited(self.files[path], [*edits, *_lifted(tree)])

    def _launch(self, path: str, node: Node) -> Iterator[Edit]:
        if node.type != "call_expression" or not LAUNCH.fullmatch(called_name(node)):
            return
        arguments = template_arguments(part(node, "function"))
        if arguments:
            is_returned = node.parent is not None and node.parent.type == "return_statement"
            rows = self.rows(path, arguments[0])
            yield Edit(
                node.start_byte, node.end_byte, f"{rows}" if is_returned else f"return {rows}"
            )

    def rows(self, path: str, kernel: Node) -> int:
        """Return the rows of a kernel's tile, from the type that names the kernel."""
        row_counts = {self._rows_of(*template) for template in self._kernels(path, kernel)}
        if len(row_counts) != 1:
            raise _unknown(path, kernel)
        return row_counts.pop()

    def _kernels(self, path: str, node: Node) -> Iterator[tuple[str, Node]]:
        """Yield the templates that a type resolves to, each with its file: one per case."""
        node = _plain(node)
        if node.type == "qualified_identifier":
            scope, name = part(node, "scope"), _plain(part(node, "name"))
            if text_of(scope) in {"vllm", "c3x"}:
                yield from self._kernels(path, name)
                return
            home, struct = self._struct(path, text_of(scope).split("<")[0])
            yield from self._kernels(home, _alias(part(struct, "body"), text_of(name), path))
        elif node.type == "type_identifier":
            yield from self._kernels(path, _alias(node, text_of(node), path))
        elif node.type == "template_type" and text_of(part(node, "name")) == "conditional_t":
            for case in list(children(part(node, "arguments")))[1:]:
                yield from self._kernels(path, case)
        elif node.type in {"template_type", "template_function"}:
            yield path, node
        else:
            raise _unknown(path, node)

    def _rows_of(self, path: str, node: Node) -> int:
        arguments = list(children(part(node, "arguments")))
        home, struct = self._struct(path, text_of(part(node, "name")))
        parameters = [_parameter(parameter) for parameter in _template(struct)]
        if ROWS in parameters:
            index = parameters.index(ROWS)
            if index < len(arguments):
                return _size(home, arguments[index])
            return _size(home, part(_template(struct)[index], "default_value"))
        tile_index = next((number for number, name in enumerate(parameters) if name in TILES), None)
        if tile_index is None or tile_index >= len(arguments):
            raise _unknown(home, struct)
        swap_index = parameters.index(SWAPPED) if SWAPPED in parameters else len(arguments)
        swapped = swap_index < len(arguments) and text_of(arguments[swap_index]) == "true"
        return self._shape(path, arguments[tile_index])[int(swapped)]

    def _shape(self, path: str, node: Node) -> list[int]:
        shape = _plain(node)
        if shape.type == "type_identifier":
            return self._shape(path, _alias(shape, text_of(shape), path))
        while shape.type == "qualified_identifier":
            shape = _plain(part(shape, "name"))
        template_types = {"template_type", "template_function"}
        if shape.type not in template_types or text_of(part(shape, "name")) not in SHAPES:
            raise _unknown(path, shape)
        return [_size(path, size) for size in children(part(shape, "arguments"))]

    def _struct(self, path: str, name: str) -> tuple[str, Node]:
        """Return a struct's definition: the one in the same file, otherwise the only one."""
        definitions = self._structs.get(name, [])
        candidates = [
            definition for definition in definitions if definition[0] == path
        ] or definitions
        if len(candidates) != 1:
            raise MovedError(f"{path}: {len(candidates)} structures {name}")
        return candidates[0]


def _lifted(tree: Node) -> Iterator[Edit]:
    """Yield the edits that move a struct's static `dispatch` out of it, into a free function."""
    for struct in walk(tree):
        body = struct.child_by_field_name("body")
        if struct.type != "struct_specifier" or body is None:
            continue
        methods = [
            function
            for function in walk(body)
            if function.type == "function_definition" and _method_name(function) is not None
        ]
        if methods:
            name = text_of(struct.child_by_field_name("name"))
            yield Edit(struct.start_byte, body.start_byte + 1, "")
            end = struct.next_sibling
            yield Edit(body.end_byte - 1, end.end_byte if end is not None else body.end_byte, "")
            for method in methods:
                label, declaration = _method_name(method), method.parent
                if label is not None and declaration is not None:
                    parameters = part(part(method, "declarator"), "parameters")
                    yield Edit(label.start_byte, parameters.end_byte, f"{name}_dispatch()")
                    yield Edit(declaration.start_byte, method.start_byte, "")
    for node in walk(tree):
        callee = text_of(node.child_by_field_name("function"))
        owner = re.match(r"(\w+)::dispatch<", callee)
        if node.type == "call_expression" and owner:
            yield Edit(node.start_byte, node.end_byte, f"{owner[1]}_dispatch()")


def _method_name(method: Node) -> Node | None:
    declarator = method.child_by_field_name("declarator")
    name = declarator.child_by_field_name("declarator") if declarator is not None else None
    return name if text_of(name) == "dispatch" else None


def _alias(node: Node, name: str, path: str) -> Node:
    """Return the type that a name aliases at a node, by the innermost scope."""
    for scope in _scopes(node):
        aliases = [
            child
            for child in children(scope)
            if child.type == "alias_declaration"
            and text_of(child.child_by_field_name("name")) == name
        ]
        if len(aliases) == 1:
            return part(aliases[0], "type")
        if aliases:
            break
    raise _unknown(path, node)


def _scopes(node: Node) -> Iterator[Node]:
    """Yield the scopes around a node, the innermost first."""
    scope: Node | None = node
    while scope is not None:
        if scope.type in _SCOPES:
            yield scope
        scope = scope.parent


def _size(path: str, node: Node) -> int:
    """Return a number of a shape: `_64`, `64`, `Int<64>`, or `Int<TILE_N>` of a constant."""
    text = text_of(node)
    constant = re.fullmatch(r"Int<(\w+)>", text)
    text = (constant[1] if constant else text).lstrip("_")
    if text.isdecimal():
        return int(text)
    for scope in _scopes(node):
        for statement in children(scope):
            match = re.fullmatch(rf"constexpr int {text} = (\d+);", text_of(statement))
            if match:
                return int(match[1])
    raise _unknown(path, node)


def _template(struct: Node) -> list[Node]:
    """Return a struct's template parameters."""
    declaration = struct.parent
    parameters = declaration.child_by_field_name("parameters") if declaration is not None else None
    return [] if parameters is None else list(children(parameters))


def _parameter(node: Node) -> str:
    """Return the name of a template parameter."""
    return re.split(r"\s*=", text_of(node))[0].split()[-1]


def _plain(node: Node) -> Node:
    while node.type in _TYPES:
        node = plain(node) if node.type != "dependent_type" else next(children(node))
    return node


def _unknown(path: str, node: Node) -> SourceError:
    return MovedError(
        f"{path}:{node.start_point[0] + 1}: a kernel of an unknown form, {text_of(node):.80}"
    )
