"""Which code made a derivation: a digest over a module and everything of ours that it imports."""

import hashlib
import re
from functools import cache
from pathlib import Path

PACKAGE = "nearfree"
_TEMPLATES = (".html", ".css", ".js")
_ROOT = Path(__file__).parents[1]
_IMPORT = (
    rf"(?m)^[ \t]*(?:from ({PACKAGE}[\w.]*) import (\([^)]*\)|[^\n#(]+)"
    rf"|import ([^\n#]*{PACKAGE}[^\n#]*))"
)
"""Imports of this package as the formatter writes them; each workflow's process looks for them in
all files, and parsing these would take it ten times as long."""


@cache
def _modules() -> dict[str, Path]:
    """Return the files of this package's modules: to look for each would take longer."""
    found = {}
    for path in _ROOT.rglob("*.py"):
        inside = path.relative_to(_ROOT).with_suffix("").parts
        found[".".join((PACKAGE, *(part for part in inside if part != "__init__")))] = path
    del found[PACKAGE]
    return found


def _path(module: str) -> Path | None:
    return _modules().get(module)


@cache
def _imports(path: Path) -> frozenset[str]:
    names = set()
    for module, parts, whole in re.findall(_IMPORT, path.read_text(encoding="utf-8")):
        names |= {module, *(f"{module}.{part}" for part in re.findall(r"\w+", parts))}
        names.update(re.findall(r"[\w.]+", whole))
    return frozenset(name for name in names if _path(name))


def closure(*modules: str) -> list[str]:
    """Return modules and all modules of this package that they import, now or lazily, sorted."""
    known: set[str] = set()
    todo = list(modules)
    while todo:
        name = todo.pop()
        path = None if name in known else _path(name)
        if path is not None:
            known.add(name)
            todo += _imports(path)
    return sorted(known)


def digest(*modules: str) -> str:
    """Return the SHA-256 over modules, what they import, and the templates beside them."""
    paths = {_path(name) for name in closure(*modules)}
    return _digest({path for path in paths if path} | _templates(paths))


def _templates(paths: set[Path | None]) -> set[Path]:
    folders = {path.parent for path in paths if path and path.parent != _ROOT}
    return {path for folder in folders for path in _templates_below(folder)}


@cache
def _templates_below(folder: Path) -> frozenset[Path]:
    return frozenset(path for path in folder.rglob("*") if path.suffix in _TEMPLATES)


def package_digest() -> str:
    """Return the digest over every source file of the package."""
    files = {path for path in _ROOT.rglob("*") if path.suffix in (".py", *_TEMPLATES)}
    return _digest(files)


def _digest(paths: set[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(_named_digest(path))
    return total.hexdigest()[:16]


@cache
def _named_digest(path: Path) -> bytes:
    name = path.relative_to(_ROOT).as_posix().encode()
    return name + b"\0" + hashlib.sha256(path.read_bytes()).digest()
