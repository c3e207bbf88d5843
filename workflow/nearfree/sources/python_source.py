"""Python sources: find a function by its name, and what it reaches.

A name must have exactly one definition among the files; two are an error, as none is.
"""

import ast
from collections.abc import Iterable, Mapping

from nearfree.errors import SourceError
from nearfree.sources.expressions import BUILTINS, UnknownConstructError
from nearfree.sources.leaves import Leaves, replace_leaves
from nearfree.sources.program import HARMLESS_DECORATORS, Function, Program, Text, mark


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
            try:
                tree = ast.parse(self.files[path], path)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise SourceError(
                    f"{path} is not Python of a version that can be read: {error}",
                    remedy="If the release is good, read it with a newer Python",
                ) from error
            mark(tree, Text(path, self.files[path]))
            self._trees[path] = tree
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

    def program(self, names: Iterable[str], leaves: Leaves) -> tuple[Program, str]:
        """Return a function with all that it reaches, and its name."""
        path, root = self.locate(names)
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
        return Program(functions, constants), root.name

    def _ready(self, function: Function, leaves: Leaves) -> Function:
        for each in function.decorator_list:
            text = ast.unparse(each).split("(")[0]
            if text not in HARMLESS_DECORATORS:
                raise UnknownConstructError(f"{function.name} is decorated by {text}", each)
        return replace_leaves(function, leaves)

    def _constant(self, path: str, name: str) -> ast.expr | None:
        values = []
        for node in ast.walk(self.tree(path)):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                values.append(node.value)  # type: ignore[union-attr]
        top = [
            node.value
            for node in self.tree(path).body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value in values
        ]
        return top[0] if len(values) == len(top) == 1 else None

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
