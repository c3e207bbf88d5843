"""Digests of code: over a module and every module of this package that it imports."""

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
"""Imports of this package as the formatter writes them. Every process of the workflow searches all
files; parsing them instead would take ten times as long."""


@cache
def _modules() -> dict[str, Path]:
    """Return the path of each module of this package, from one walk over the folder."""
    paths = {}
    for path in _ROOT.rglob("*.py"):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        paths[".".join((PACKAGE, *(part for part in parts if part != "__init__")))] = path
    del paths[PACKAGE]
    return paths


@cache
def _imports(path: Path) -> frozenset[str]:
    names = set()
    for module, parts, plain_imports in re.findall(_IMPORT, path.read_text(encoding="utf-8")):
        names |= {module, *(f"{module}.{part}" for part in re.findall(r"\w+", parts))}
        names.update(re.findall(r"[\w.]+", plain_imports))
    return frozenset(names & _modules().keys())


def closure(*modules: str) -> list[str]:
    """Return modules and all modules of this package that they import, lazily or not, sorted."""
    members: set[str] = set()
    pending = list(modules)
    while pending:
        name = pending.pop()
        if name in _modules() and name not in members:
            members.add(name)
            pending += _imports(_modules()[name])
    return sorted(members)


def digest(*modules: str) -> str:
    """Return the SHA-256 over modules, what they import, and the templates beside them."""
    paths = {_modules()[name] for name in closure(*modules)}
    folders = {path.parent for path in paths} - {_ROOT}
    return _digest(paths.union(*map(_templates_below, folders)))


@cache
def _templates_below(folder: Path) -> frozenset[Path]:
    return frozenset(path for path in folder.rglob("*") if path.suffix in _TEMPLATES)


def package_digest() -> str:
    """Return the digest over every source file of the package."""
    files = {path for path in _ROOT.rglob("*") if path.suffix in (".py", *_TEMPLATES)}
    return _digest(files)


def _digest(paths: set[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(_named_digest(path))
    return digest.hexdigest()[:16]


@cache
def _named_digest(path: Path) -> bytes:
    name = path.relative_to(_ROOT).as_posix().encode()
    return name + b"\0" + hashlib.sha256(path.read_bytes()).digest()
