"""The model classes of an engine's release, by the architecture names in a config.json.

vLLM lists them in tables of its registry; SGLang in the `EntryClass` of each model file. Both are
parsed as data; none of their code runs.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from nearfree.errors import MovedError

WANTED = {
    "vllm": r"vllm/model_executor/models/registry\.py",
    "sglang": r"sglang/srt/models/\w+\.py",
}
"""The files to read, by engine: SGLang's registry does not look into subfolders (iter_modules in
sglang/srt/models/registry.py, 0.4.2 line 72 and 0.5.23 line 119)."""
_GENERATION_TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
_TRANSFORMERS_TABLE = "_TRANSFORMERS_SUPPORTED_MODELS"
"""The table of classes that vLLM's Transformers backend runs by name, since 0.10.1."""
_TABLES = (*_GENERATION_TABLES, _TRANSFORMERS_TABLE)
_MERGED = "_VLLM_MODELS"
_BACKEND = "transformers"
"""The module of vLLM's Transformers backend."""
_ENTRY = "EntryClass"


class Classes(NamedTuple):
    """Classes that generate text: the engine's own, and those of its Transformers backend."""

    own: frozenset[str]
    transformers: frozenset[str] = frozenset()


def model_classes(engine: str, files: Mapping[str, str]) -> Classes:
    """Return a release's model classes.

    Raises
    ------
    SourceError
        The classes are not written as in any known release.
    """
    if engine == "vllm":
        ((path, text),) = files.items()
        return _of_tables(path, text)
    classes = [name for path, text in sorted(files.items()) for name in _entries(path, text)]
    if not classes:
        raise MovedError(f"no file has an {_ENTRY}")
    return Classes(frozenset(classes))


def _of_tables(path: str, text: str) -> Classes:
    tables = dict(_assigned(_parsed(path, text)))
    if not isinstance(tables.get(_MERGED), ast.Dict) or not tables.keys() >= {*_GENERATION_TABLES}:
        raise MovedError(f"{path} has no tables {', '.join((*_GENERATION_TABLES, _MERGED))}")
    merged = {ast.unparse(node) for node in ast.walk(tables[_MERGED]) if isinstance(node, ast.Name)}
    class_modules: dict[str, str] = {}
    for name in _TABLES:
        if name in tables and name in merged:
            class_modules |= _modules(path, tables[name])
    backend = {name for name, module in class_modules.items() if module == _BACKEND}
    return Classes(frozenset(class_modules.keys() - backend), frozenset(backend))


def _modules(path: str, table: ast.expr) -> dict[str, str]:
    """Return the module of each class in a table, whose values are pairs of strings."""
    try:
        return {str(name): str(module) for name, (module, _) in ast.literal_eval(table).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise MovedError(f"{path}:{table.lineno}: a table of models has an unknown form") from error


@lru_cache(maxsize=4096)
def _entries(path: str, text: str) -> tuple[str, ...]:
    """Return the class names in the `EntryClass` of a file of SGLang's models; may be empty."""
    if _ENTRY not in text:
        return ()
    tree = _parsed(path, text)
    values = [value for name, value in _assigned(tree) if name == _ENTRY]
    entries = [
        entry
        for value in values
        for entry in (value.elts if isinstance(value, ast.List) else [value])
    ]
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | {
        entry.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for entry in node.names
        if entry.asname is None
    }
    names = [entry.id for entry in entries if isinstance(entry, ast.Name) and entry.id in defined]
    if len(names) != len(entries) or len(values) > 1:
        raise MovedError(f"{path}: its {_ENTRY} does not name classes of the file")
    return tuple(names)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module assigns at its top level, with their values."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _parsed(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text.lstrip("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MovedError(f"{path} is not Python: {error}") from error
