"""Python sources: find a function by its name, and what it reaches.

A name must have exactly one definition among the files; two are an error, as none is.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from nearfree.errors import SourceError
from nearfree.sources.expressions import BUILTINS, UnknownConstructError
from nearfree.sources.leaves import Leaves, replace_leaves
from nearfree.sources.python_cuts import assignments
from nearfree.sources.program import (
    HARMLESS_DECORATORS,
    Function,
    Program,
    Text,
    defaults,
    mark,
    parameters,
)


class Modules:
    """The parsed Python files of one release.

    Parameters
    ----------
    files
        Contents by path. A file that does not parse is an error only where it is needed.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        """Return a file's syntax tree."""
        if path not in self._trees:
            self._trees[path] = _parsed(path, self.files[path])
        return self._trees[path]

    def locate(self, names: Iterable[str]) -> tuple[str, Function]:
        """Return the file and the one function that has one of the names."""
        wanted = set(names)
        found = [
            (path, node)
            for path in sorted(self.files)
            if any(f"def {name}" in self.files[path] for name in wanted)
            for node in self.tree(path).body
            if isinstance(node, ast.FunctionDef) and node.name in wanted
        ]
        if len(found) != 1:
            places = ", ".join(f"{path}:{node.lineno}" for path, node in found) or "nowhere"
            raise SourceError(
                f"{' or '.join(sorted(wanted))} must be defined once; it is defined {places}",
                remedy="This release keeps its rule elsewhere: its reader must learn where",
            )
        return found[0]

    def find(self, name: str) -> tuple[str, Function] | None:
        """Return the one function of a name, with its file; None if there is none."""
        if not any(f"def {name}(" in content for content in self.files.values()):
            return None
        return self.locate([name])

    def program(self, names: Iterable[str], leaves: Leaves) -> tuple[Program, str]:
        """Return a function with all that it reaches, and its name."""
        return self.program_of(*self.locate(names), leaves)

    def program_of(self, path: str, root: Function, leaves: Leaves) -> tuple[Program, str]:
        """Return a function of a file, or a cut of one, with all that it reaches."""
        functions: dict[str, Function] = {}
        constants: dict[str, ast.expr] = {}
        waiting = [(path, root)]
        while waiting:
            here, function = waiting.pop()
            functions[function.name] = self._ready(function, leaves)
            for name in _free(functions[function.name]) - functions.keys() - constants.keys():
                constant = self._constant(here, name)
                if constant is not None:
                    constants[name] = constant
                    continue
                reached = self._function(here, name)
                if reached is not None:
                    waiting.append(reached)
        for function in functions.values():
            _Positional(functions).visit(function)
        return Program(functions, constants), root.name

    def method(self, owner: str, name: str) -> tuple[str, Function] | None:
        """Return a method of the one class of that name, with its file; None if there is none."""
        found = [
            (path, node)
            for path in sorted(self.files)
            if f"class {owner}(" in self.files[path]
            for group in self.tree(path).body
            if isinstance(group, ast.ClassDef) and group.name == owner
            for node in group.body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        return found[0] if len(found) == 1 else None

    def having(self, name: str) -> tuple[str, Function] | None:
        """Return the one function that assigns a name, with its file; None if none does.

        Raises
        ------
        SourceError
            Several do.
        """
        found = [
            (path, node)
            for path in sorted(self.files)
            if f"{name} = " in self.files[path]
            for node in self.tree(path).body
            if isinstance(node, ast.FunctionDef) and assignments(node, name)
        ]
        if len(found) > 1:
            raise SourceError(
                f"{name} is assigned in {' and '.join(node.name for _, node in found)}",
                remedy="This release needs a reader of its own: report it",
            )
        return found[0] if found else None

    def _ready(self, function: Function, leaves: Leaves) -> Function:
        for each in function.decorator_list:
            text = ast.unparse(each).split("(")[0]
            if text not in HARMLESS_DECORATORS:
                raise UnknownConstructError(f"{function.name} is decorated by {text}", each)
        return replace_leaves(function, leaves)

    def _constant(self, path: str, name: str) -> ast.expr | None:
        return _constants(path, self.files[path]).get(name)

    def _function(self, path: str, name: str) -> tuple[str, Function] | None:
        if name in BUILTINS:
            return None
        for node in self.tree(path).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return self.only(path, name)
        try:
            return self.locate([name])
        except SourceError:
            return None

    def only(self, path: str, name: str) -> tuple[str, Function]:
        """Return the one function of that name in one file."""
        one = Modules({path: self.files[path]})
        one._trees = {path: self.tree(path)}
        return one.locate([name])


@lru_cache(maxsize=64)
def _parsed(path: str, content: str) -> ast.Module:
    """Return a file's tree; whoever changes a part of it copies that part first."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(
            f"{path} is not Python of a version that can be read: {error}",
            remedy="If the release is good, read it with a newer Python",
        ) from error
    mark(tree, Text(path, content))
    return tree


@lru_cache(maxsize=64)
def _constants(path: str, content: str) -> dict[str, ast.expr]:
    """Return the module-level names of a file that are set once in all of it, and their values."""
    tree = _parsed(path, content)
    seen: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            seen[node.id] += 1
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and value is not None and seen[target.id] == 1:
            found[target.id] = value
    return found


class _Positional(ast.NodeTransformer):
    """Gives arguments by place where a call gives them by name."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        if not node.keywords or not isinstance(node.func, ast.Name):
            return node
        function = self.functions.get(node.func.id)
        if function is None:
            return node
        given = {each.arg: each.value for each in node.keywords}
        own = defaults(function)
        for name in parameters(function)[len(node.args) :]:
            if name not in given and name not in own:
                return node
            node.args.append(given.pop(name, own.get(name)))  # type: ignore[arg-type]
            if not given:
                node.keywords = []
                break
        return node


def _free(function: Function) -> set[str]:
    bound = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    bound |= {
        each.id
        for each in ast.walk(function)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    bound |= {each.name for each in ast.walk(function) if isinstance(each, ast.FunctionDef)}
    used = {
        each.id
        for statement in function.body
        for each in ast.walk(statement)
        if isinstance(each, ast.Name)
    }
    return used - bound
