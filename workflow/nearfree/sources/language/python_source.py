"""Python sources: find a function by its name, and everything that it reaches.

A name must have exactly one definition among the files; none or several are an error.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from nearfree.errors import MovedError, SourceError
from nearfree.sources.language.cuts import assignments
from nearfree.sources.language.expressions import UnknownConstructError, name_of
from nearfree.sources.language.functions import BUILTINS, OWN, nodes_of
from nearfree.sources.language.program import (
    HARMLESS_DECORATORS,
    Function,
    Leaves,
    Program,
    Text,
    at,
    bound_by,
    copied,
    defaults,
    names_in,
    parameters,
    replace_leaves,
    set_origin,
)

Defined = TypeVar("Defined", ast.FunctionDef, ast.ClassDef)
Kind = TypeVar("Kind", bound=ast.AST)


class Modules:
    """The parsed Python files of one release.

    A file that does not parse is an error only where it is needed.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def tree(self, path: str) -> ast.Module:
        """Return a file's syntax tree."""
        return _parse(path, self.files[path])

    def definitions(self, kind: type[Defined], *texts: str) -> Iterator[tuple[str, Defined]]:
        """Yield the functions or classes of the files that contain one of some texts."""
        for path, content in sorted(self.files.items()):
            if any(text in content for text in texts):
                for node in self.tree(path).body:
                    if isinstance(node, kind):
                        yield path, node

    def nodes(self, kind: type[Kind], *texts: str, end: str = "") -> Iterator[tuple[str, Kind]]:
        """Yield all nodes of a kind, with their files, as far as texts and a path's end say."""
        for path, content in sorted(self.files.items()):
            if path.endswith(end) and (not texts or any(text in content for text in texts)):
                yield from (
                    (path, node) for node in nodes_of(self.tree(path)) if isinstance(node, kind)
                )

    def locate(self, names: Iterable[str]) -> tuple[str, Function]:
        """Return the one function that has one of the names, with its file."""
        wanted = set(names)
        texts = [f"def {name}" for name in wanted]
        candidates = self.definitions(ast.FunctionDef, *texts)
        definitions = [(path, node) for path, node in candidates if node.name in wanted]
        binding_count = sum(
            _bindings(path, self.files[path])[node.name] for path, node in definitions
        )
        if len(definitions) != 1 or binding_count != 1:
            locations = (
                ", ".join(f"{path}:{node.lineno}" for path, node in definitions) or "nowhere"
            )
            note = " and set again" if len(definitions) == 1 else ""
            raise MovedError(
                f"{' or '.join(sorted(wanted))} must be defined once; it is defined"
                f" {locations}{note}"
            )
        return definitions[0]

    def find(self, name: str) -> tuple[str, Function] | None:
        """Return the one function of a name, with its file; None if no file defines it."""
        if not any(f"def {name}(" in content for content in self.files.values()):
            return None
        return self.locate([name])

    def program(self, names: Iterable[str], leaves: Leaves) -> tuple[Program, str]:
        """Return a function's program, everything that it reaches included, and its name."""
        return self.program_of(*self.locate(names), leaves)

    def program_of(self, path: str, root: Function, leaves: Leaves) -> tuple[Program, str]:
        """Return the program of a function of a file, or of a cut of one, and its name."""
        functions: dict[str, Function] = {}
        constants: dict[str, ast.expr] = {}
        definition_of: dict[str, tuple[str, str]] = {}
        waiting = [(path, root)]
        while waiting:
            current_path, function = waiting.pop()
            functions[function.name] = self._prepared(function, leaves)
            for name in _free_names(functions[function.name]):
                definition = self._reached(current_path, name)
                if definition is None:
                    continue
                found_path, value = definition
                location = (found_path, value.name if isinstance(value, ast.FunctionDef) else name)
                if definition_of.setdefault(name, location) != location or location[1] != name:
                    raise UnknownConstructError(f"{name} stands for several things", function)
                if isinstance(value, ast.FunctionDef) and name not in functions:
                    waiting.append((found_path, value))
                elif isinstance(value, ast.expr):
                    constants[name] = value
        for function in functions.values():
            _PositionalArguments(functions).visit(function)
        return Program(functions, constants), root.name

    def methods(self, owner: str, name: str) -> list[tuple[str, Function]]:
        """Return the methods of a name of all classes of a name, with their files."""
        return [
            (path, node)
            for path, class_ in self.definitions(ast.ClassDef, f"class {owner}")
            if class_.name == owner
            for node in class_.body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]

    def method(self, owner: str, name: str) -> tuple[str, Function] | None:
        """Return a method of the one class of a name, with its file; None if there is none."""
        methods = self.methods(owner, name)
        return methods[0] if len(methods) == 1 else None

    def function_assigning(self, name: str) -> tuple[str, Function] | None:
        """Return the one function that assigns a name, with its file; None if none does.

        Raises
        ------
        SourceError
            Several functions assign it.
        """
        functions = self.definitions(ast.FunctionDef, f"{name} = ")
        assigning = [(path, node) for path, node in functions if assignments(node, name)]
        if len(assigning) > 1:
            raise SourceError(
                f"{name} is assigned in {' and '.join(node.name for _, node in assigning)}"
            )
        return assigning[0] if assigning else None

    def _prepared(self, function: Function, leaves: Leaves) -> Function:
        """Return a copy of a function, ready to be read; refuse decorators that change it."""
        for decorator in function.decorator_list:
            text = ast.unparse(decorator).split("(")[0]
            if text not in HARMLESS_DECORATORS:
                raise UnknownConstructError(f"{function.name} is decorated by {text}", decorator)
        return replace_leaves(_HelperNameGuard().visit(copied(function)), leaves)

    def _reached(self, path: str, name: str) -> tuple[str, Function | ast.expr] | None:
        """Return the function or constant that a name stands for in a file, with its file."""
        bound = _bindings(path, self.files[path])
        if name in BUILTINS:
            if bound[name]:
                raise UnknownConstructError(f"{path} gives {name} another meaning")
            return None
        constant = _constants(path, self.files[path]).get(name)
        if constant is not None:
            return path, constant
        if any(
            isinstance(statement, ast.FunctionDef) and statement.name == name
            for statement in self.tree(path).body
        ):
            return Modules({path: self.files[path]}).locate([name])
        imports = _imports(path, self.files[path]).get(name, [])
        if len(imports) != 1 or bound[name] > 1:
            return None
        module, original_name, relative = imports[0]
        try:
            target_path, function = self.locate([original_name])
        except SourceError:
            return None
        package_path = module.replace(".", "/")
        return (target_path, function) if relative or target_path.startswith(package_path) else None


@lru_cache(maxsize=64)
def _parse(path: str, content: str) -> ast.Module:
    """Return a file's tree; it is cached, so a caller copies what it changes."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(
            f"{path} is not Python of a version that can be read: {error}",
            remedy="If the release is good, read it with a newer Python",
        ) from error
    set_origin(tree, Text(path, content))
    return tree


@lru_cache(maxsize=64)
def _constants(path: str, content: str) -> dict[str, ast.expr]:
    """Return the values of a file's module-level names that are bound once and never changed."""
    tree = _parse(path, content)
    binding_counts = _bindings(path, content).copy()
    for node in nodes_of(tree):
        if isinstance(node, ast.Global):
            binding_counts.update(node.names)
        may_change = isinstance(node, ast.Attribute) or (
            isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        )
        if may_change and isinstance(node.value, ast.Name):  # type: ignore[attr-defined]
            binding_counts[node.value.id] += 1  # type: ignore[attr-defined]
    values = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and value is not None and binding_counts[target.id] == 1:
            values[target.id] = value
    return values


@lru_cache(maxsize=64)
def _bindings(path: str, content: str) -> Counter[str]:
    """Return how often each name is bound in a file's own scope, conditional code included."""
    tree = _parse(path, content)
    counts: Counter[str] = Counter()
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        children = [] if isinstance(node, _SCOPES) else [*ast.iter_child_nodes(node)]
        if isinstance(getattr(node, "name", None), str) and not isinstance(node, _SCOPES):
            counts[node.name] += 1  # type: ignore[attr-defined]
        if children:
            waiting += children
        else:
            counts.update(bound_by(node))
    for node in nodes_of(tree):
        if isinstance(node, ast.Global):
            counts.update(node.names)
    return counts


_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.Import,
    ast.ImportFrom,
    ast.Name,
)


@lru_cache(maxsize=64)
def _imports(path: str, content: str) -> dict[str, list[tuple[str, str, bool]]]:
    """Return the imports of each name: module, original name, and whether it is relative."""
    imports: dict[str, list[tuple[str, str, bool]]] = {}
    for node in nodes_of(_parse(path, content)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported = (node.module or "", alias.name, node.level > 0)
                imports.setdefault(alias.asname or alias.name, []).append(imported)
    return imports


class _HelperNameGuard(ast.NodeTransformer):
    """Renames calls of a source's own `quotient` or `join`, which mean something else in rules."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in OWN:
            node.func.id += "_of_the_source"
        return node


class _PositionalArguments(ast.NodeTransformer):
    """Turns keyword arguments of calls into positional ones."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not node.keywords or not isinstance(node.func, ast.Name):
            return node
        function = self.functions.get(node.func.id)
        if function is None:
            return node
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        default_values = defaults(function)
        added = []
        for name in parameters(function)[len(node.args) :]:
            value = keywords.pop(name) if name in keywords else default_values.get(name)
            if value is None or (
                value is default_values.get(name) and not isinstance(value, ast.Constant)
            ):
                return node
            added.append(value)
            if not keywords:
                node.args, node.keywords = [*node.args, *added], []
                break
        return node


def _free_names(function: Function) -> set[str]:
    """Return the names that a function reads and does not bind."""
    bound = {node.arg for node in nodes_of(function) if isinstance(node, ast.arg)}
    bound |= names_in(function, context=ast.Store)
    bound |= {node.name for node in nodes_of(function) if isinstance(node, ast.FunctionDef)}
    return (names_in(*function.body) - bound) | names_in(*defaults(function).values())


def find_record(modules: Modules, name: str) -> "RecordTuples | None":
    """Return what turns the one record of a name into tuples; None if there is no such class.

    Raises
    ------
    SourceError
        It is defined more than once.
    """
    classes = modules.definitions(ast.ClassDef, f"class {name}")
    definitions = [node for _, node in classes if node.name == name]
    if len(definitions) > 1:
        raise MovedError(f"{name} is defined {len(definitions)} times")
    return RecordTuples(definitions[0]) if definitions else None


class RecordTuples(ast.NodeTransformer):
    """Turns a class that only declares fields into tuples; `visit` changes a tree in place."""

    def __init__(self, node: ast.ClassDef) -> None:
        self.name = node.name
        self.fields: dict[str, ast.expr | None] = {}
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.fields[statement.target.id] = statement.value
            elif not (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            ):
                raise UnknownConstructError(f"{node.name} holds more than fields", statement)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the tuple that a construction of the record gives."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id != self.name:
            return node
        names = list(self.fields)
        arguments = dict(zip(names, node.args, strict=False))
        arguments |= {
            keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None
        }
        values = [arguments.pop(name, default) for name, default in self.fields.items()]
        if arguments or None in values or len(node.args) > len(names):
            raise UnknownConstructError(f"{name_of(node)} does not fit its fields", node)
        return at(ast.Tuple([value for value in values if value is not None], ast.Load()), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Return the item that a field is."""
        self.generic_visit(node)
        if node.attr not in self.fields or not isinstance(node.value, ast.Name):
            return node
        index = at(ast.Constant(list(self.fields).index(node.attr)), node)
        return at(ast.Subscript(node.value, index, ast.Load()), node)
