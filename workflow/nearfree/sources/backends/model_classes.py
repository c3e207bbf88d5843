"""The classes of models that a release of an engine has, by the names that a config.json gives.

vLLM's stand in tables of its registry, SGLang's are what each file of its models calls
`EntryClass`. Both are read as data, and nothing of them is run.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from nearfree.errors import MOVED, SourceError

WANTED = {
    "vllm": r"vllm/model_executor/models/registry\.py",
    "sglang": r"sglang/srt/models/\w+\.py",
}
"""The files that say it, by engine: SGLang's registry looks into no folder below (iter_modules in
sglang/srt/models/registry.py, 0.4.2 line 72 and 0.5.23 line 119)."""
_GENERATING = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
_NAMED = "_TRANSFORMERS_SUPPORTED_MODELS"
"""Those that vLLM's Transformers backend runs by name, a table of its own since 0.10.1."""
_TABLES = (*_GENERATING, _NAMED)
_MERGED = "_VLLM_MODELS"
_BACKEND = "transformers"
"""The module of vLLM's Transformers backend."""
_ENTRY = "EntryClass"


class Classes(NamedTuple):
    """Classes that generate text: an engine's own, and those its Transformers backend runs."""

    own: frozenset[str]
    transformers: frozenset[str] = frozenset()


def model_classes(engine: str, files: Mapping[str, str]) -> Classes:
    """Return the classes that a release has.

    Parameters
    ----------
    engine
        One of `WANTED`.
    files
        The contents of its files by path.

    Raises
    ------
    SourceError
        They are not written as in any known release.
    """
    if engine == "vllm":
        ((path, text),) = files.items()
        return _of_tables(path, text)
    own = [name for path, text in sorted(files.items()) for name in _entries(path, text)]
    if not own:
        raise SourceError(f"no file has an {_ENTRY}", remedy=MOVED)
    return Classes(frozenset(own))


def _of_tables(path: str, text: str) -> Classes:
    tables = dict(_assigned(_parsed(path, text)))
    if not isinstance(tables.get(_MERGED), ast.Dict) or not tables.keys() >= {*_GENERATING}:
        raise SourceError(
            f"{path} has no tables {', '.join((*_GENERATING, _MERGED))}", remedy=MOVED
        )
    merged = {ast.unparse(each) for each in ast.walk(tables[_MERGED]) if isinstance(each, ast.Name)}
    found: dict[str, str] = {}
    for name in _TABLES:
        if name in tables and name in merged:
            found |= _modules(path, tables[name])
    backend = {name for name, module in found.items() if module == _BACKEND}
    return Classes(frozenset(found.keys() - backend), frozenset(backend))


def _modules(path: str, table: ast.expr) -> dict[str, str]:
    """Return the module of each class of a table, whose entries are pairs of texts."""
    try:
        return {str(name): str(module) for name, (module, _) in ast.literal_eval(table).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{path}:{table.lineno}: a table of models is not written as one", remedy=MOVED
        ) from error


@lru_cache(maxsize=4096)
def _entries(path: str, text: str) -> tuple[str, ...]:
    """Return the names of the classes that a file of SGLang's models enters, none without any."""
    if _ENTRY not in text:
        return ()
    tree = _parsed(path, text)
    entered = [value for name, value in _assigned(tree) if name == _ENTRY]
    listed = [
        each
        for value in entered
        for each in (value.elts if isinstance(value, ast.List) else [value])
    ]
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | {
        each.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if each.asname is None
    }
    names = [each.id for each in listed if isinstance(each, ast.Name) and each.id in there]
    if len(names) != len(listed) or len(entered) > 1:
        raise SourceError(f"{path}: its {_ENTRY} names no classes of the file", remedy=MOVED)
    return tuple(names)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a file gives to plain names at its top level."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _parsed(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text.lstrip("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{path} is no Python: {error}", remedy=MOVED) from error
