"""Closures of comprehensions: nested loops in a scope of their own, with bounded lengths."""

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from nearfree.sources.language.expressions import Inputs, Run, checked, flat, outside
from nearfree.sources.language.functions import LENGTH_LIMIT

Count = Callable[[ast.AST], None]
"""Counts an iteration against a limit."""


class Loop(NamedTuple):
    """One `for` of a comprehension: the names that it sets, its group, and its conditions."""

    names: list[str]
    unpacks: bool
    """Whether its target is a tuple."""
    group: Run
    tests: list[Run]


def target_names(target: ast.expr) -> list[str] | None:
    """Return the names that a comprehension's target sets; None for any other target."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names if len(names) == len(parts) else None


def comprehension(node: ast.expr, element: Run, loops: list[Loop], count: Count) -> Run:
    """Return the closure that lists a comprehension's elements."""
    if len(loops) == 1 and not loops[0].unpacks:
        return _single_loop(node, element, loops[0], count)
    return _nested_loops(node, element, loops, count)


def _single_loop(node: ast.expr, element: Run, loop: Loop, count: Count) -> Run:
    """Return the closure of the usual comprehension: one loop over one name."""
    (name,), group, tests = loop.names, loop.group, loop.tests

    def run(names: Inputs) -> list[Any]:
        scope = _copied(names)
        elements = list[Any]()
        for item in _items(group(names), node):
            count(node)
            scope[name] = item
            for test in tests:
                if not test(scope):
                    break
            else:
                elements.append(flat(element(scope), node))
        return cast("list[Any]", checked(elements, node))

    return run


def _nested_loops(node: ast.expr, element: Run, loops: list[Loop], count: Count) -> Run:
    def iterate(scope: dict[str, Any], depth: int) -> Iterator[Any]:
        if depth == len(loops):
            yield flat(element(scope), node)
            return
        loop = loops[depth]
        for item in _items(loop.group(scope), node):
            count(node)
            parts = cast("Sequence[Any]", item) if loop.unpacks else [item]
            scope |= zip(loop.names, parts, strict=True)
            if all(test(scope) for test in loop.tests):
                yield from iterate(scope, depth + 1)

    def run(names: Inputs) -> list[Any]:
        elements = [*islice(iterate(_copied(names), 0), LENGTH_LIMIT + 1)]
        return cast("list[Any]", checked(elements, node))

    return run


def _copied(names: Inputs) -> dict[str, Any]:
    return cast("dict[str, Any]", names).copy()


def _items(group: Any, node: ast.expr) -> Sequence[Any]:
    if not isinstance(group, list | tuple | range) or len(group) > LENGTH_LIMIT:
        raise outside(node)
    return group
