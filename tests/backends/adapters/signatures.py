"""Signatures of real releases, read from their source: nothing is imported and nothing is run.

An adapter's calls are bound against them, so that a machine without a GPU and without the engines
shows whether each call has the form that a release takes.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct
from nearfree.errors import SourceError
from nearfree.sources.fetching.cache import Cache, Source
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.index import releases
from packaging.version import Version

FETCHERS = 8
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Default(Struct, frozen=True):
    """A default value, known by its text alone."""

    text: str

    def __repr__(self) -> str:
        return self.text


class StandIn:
    """A function with a real signature: it binds each call, keeps it, and answers.

    `inspect.signature` of it gives the real signature. `calls` are the bound arguments in order.
    """

    def __init__(
        self, signature: inspect.Signature, result: Callable[[inspect.BoundArguments], Any]
    ) -> None:
        self.__signature__ = signature
        self._result = result
        self.calls: list[inspect.BoundArguments] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Bind and answer; TypeError if the signature does not take these arguments."""
        bound = self.__signature__.bind(*args, **kwargs)
        self.calls.append(bound)
        return self._result(bound)


def stand_in(
    signature: inspect.Signature, result: Callable[[inspect.BoundArguments], Any]
) -> StandIn:
    """Return a function with a signature, which answers `result(bound arguments)`."""
    return StandIn(signature, result)


def bring(package: str, version: str, members: str | Sequence[str], cache: Cache) -> Source:
    """Return those files of a release that it has, of one path or several candidates."""
    paths = [members] if isinstance(members, str) else members
    return fetch(package, version, "|".join(map(re.escape, paths)), cache=cache)


def signature(
    package: str, version: str, members: str | Sequence[str], name: str, cache: Cache
) -> inspect.Signature:
    """Return the signature of `function`, `Class.method` or `Class` (its construction).

    Parameters
    ----------
    members
        The file's path in the release's wheel (or sdist, below its top folder), or several: the
        first that defines the name is taken. Names asked for with the same members share a fetch.

    Raises
    ------
    LookupError
        None of the files defines the name.
    SourceError
        The release has none of the files, or is not to be had.
    """
    source = bring(package, version, members, cache)
    for path in [members] if isinstance(members, str) else members:
        if path in source.files:
            try:
                return signature_of(source.text(path), name)
            except LookupError:
                continue
    raise LookupError(f"{package} {version} defines no {name} in {', '.join(source.paths())}")


def signature_of(text: str, name: str) -> inspect.Signature:
    """Return the signature of a name in a module's text; self or cls is dropped."""
    *classes, final = name.split(".")
    if not re.search(rf"\b(def|class)\s+{final}\b", text):
        raise LookupError(name)  # parsing takes long
    body = _parsed(text).body
    for class_name in classes:
        body = _find(body, class_name, ast.ClassDef).body
    node = _find(body, final, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, ast.ClassDef):
        return _construction(node)
    parameters = _parameters(node.args)
    return inspect.Signature(parameters[1:] if classes and not _static(node) else parameters)


_parsed = lru_cache(maxsize=1024)(ast.parse)
"""The tree of a text, which names and neighbouring releases share."""


def versions_between(package: str, first: str, last: str) -> list[str]:
    """Return a package's final releases from the first to the last, both included."""
    first_version, last_version = Version(first), Version(last)
    return [
        version
        for version in releases(package)
        if first_version <= Version(version) <= last_version and not Version(version).is_prerelease
    ]


def change_points(
    package: str, versions: Sequence[str], members: str | Sequence[str], name: str, cache: Cache
) -> list[str]:
    """Return the first and the last version that has a name, and each in which it changed.

    A change is one of a parameter's name, kind, place or default. Files are fetched by several
    threads and parsed by one: Python 3.11 cannot parse in two at a time.
    """

    def fetched(version: str) -> None:
        with suppress(SourceError):  # `signature` says it again
            bring(package, version, members, cache)

    def read(version: str) -> inspect.Signature | None:
        try:
            return signature(package, version, members, name, cache)
        except LookupError:
            return None

    with ThreadPoolExecutor(FETCHERS) as pool:
        futures = [pool.submit(fetched, version) for version in versions]
        by_version = {}
        for version, future in zip(versions, futures, strict=True):
            future.result()
            by_version[version] = read(version)
    present = [version for version in versions if by_version[version] is not None]
    changed = {b for a, b in pairwise(versions) if by_version[a] != by_version[b]}
    return [version for version in present if version in {present[0], *changed, present[-1]}]


def _find(body: list[ast.stmt], name: str, *kinds: type[ast.stmt]) -> Any:
    """Return the last definition of a name; LookupError if there is none."""
    definitions = [
        statement
        for statement in _statements(body)
        if isinstance(statement, kinds) and _name(statement) == name
    ]
    if not definitions:
        raise LookupError(name)
    return definitions[-1]


def _name(node: ast.stmt) -> str:
    return str(getattr(node, "name", ""))


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements in order, those under if, try and with too, those of definitions not."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.ClassDef | Function):
            for block in ("body", "handlers", "orelse", "finalbody"):
                yield from _statements(getattr(statement, block, []))


def _parameters(args: ast.arguments) -> list[inspect.Parameter]:
    kinds = inspect.Parameter
    plain: list[tuple[ast.arg, Any]] = [
        *((argument, kinds.POSITIONAL_ONLY) for argument in args.posonlyargs),
        *((argument, kinds.POSITIONAL_OR_KEYWORD) for argument in args.args),
    ]
    no_defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    parameters = [
        _parameter(argument.arg, kind, value)
        for (argument, kind), value in zip(plain, [*no_defaults, *args.defaults], strict=True)
    ]
    if args.vararg:
        parameters.append(_parameter(args.vararg.arg, kinds.VAR_POSITIONAL, None))
    for argument, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        parameters.append(_parameter(argument.arg, kinds.KEYWORD_ONLY, value))
    if args.kwarg:
        parameters.append(_parameter(args.kwarg.arg, kinds.VAR_KEYWORD, None))
    return parameters


def _parameter(name: str, kind: Any, value: ast.expr | None) -> inspect.Parameter:
    default = inspect.Parameter.empty if value is None else Default(ast.unparse(value))
    return inspect.Parameter(name, kind, default=default)


def _construction(node: ast.ClassDef) -> inspect.Signature:
    """Return how a class is called: by its __init__, or by its fields in order."""
    try:
        constructor = _find(node.body, "__init__", ast.FunctionDef)
    except LookupError:
        fields = [
            _parameter(field.target.id, inspect.Parameter.POSITIONAL_OR_KEYWORD, field.value)
            for field in node.body
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and "ClassVar" not in ast.unparse(field.annotation)
        ]
        return inspect.Signature(fields)
    return inspect.Signature(_parameters(constructor.args)[1:])


def _static(node: Function) -> bool:
    return "staticmethod" in map(ast.unparse, node.decorator_list)
