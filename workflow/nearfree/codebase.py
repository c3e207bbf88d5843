"""Which code made a derivation: a digest over a module and everything of ours that it imports."""

import ast
import hashlib
from functools import cache
from pathlib import Path

PACKAGE = "nearfree"
_ROOT = Path(__file__).parent


def _path(module: str) -> Path | None:
    base = _ROOT.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file() and module.startswith(f"{PACKAGE}."):
            return path
    return None


@cache
def _imports(path: Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in names if _path(name))


def closure(module: str) -> list[str]:
    """Return a module and all modules of this package that it imports, now or lazily, sorted."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        path = _path(name)
        if name not in seen and path is not None:
            seen.add(name)
            todo += _imports(path)
    return sorted(seen)


def digest(*modules: str) -> str:
    """Return the SHA-256 over the sources of modules and of what they import (16 hex digits)."""
    names = sorted({name for module in modules for name in closure(module)})
    total = hashlib.sha256()
    for name in names:
        path = _path(name)
        if path is not None:
            total.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def package_digest() -> str:
    """Return the digest over every source file of the package."""
    total = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        total.update(path.relative_to(_ROOT).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]
