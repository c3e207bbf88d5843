"""SGLang: which FlashInfer backend its paged attention wrappers are made with.

FlashInfer left to itself takes another kernel on SM90, with another tile; SGLang does not leave it
to itself.
"""

import ast
from collections.abc import Mapping

from nearfree.sources.language.mechanism import Mechanism
from nearfree.sources.language.program import quote
from nearfree.sources.language.python_source import Modules

WRAPPERS = {"BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"}


def forced_backend(files: Mapping[str, str]) -> Mechanism:
    """Return the lines that ask paged wrappers for one FlashInfer backend, and whether all do."""
    modules = Modules(files)
    trees = [modules.tree(path) for path in sorted(files) if path.endswith("flashinfer_backend.py")]
    wrappers = [call for tree in trees for call in ast.walk(tree) if _is_wrapper(call)]
    asked = [(call, _backend(call, trees)) for call in wrappers]
    names = {name for _, name in asked if name is not None}
    places = [call for call, name in asked if name is not None]
    share = "all" if len(places) == len(wrappers) else f"{len(places)} of {len(wrappers)}"
    says = f"{share} paged FlashInfer wrappers are asked for {' or '.join(sorted(names))}"
    return Mechanism("flashinfer_backend", says, tuple(quote(each) for each in places))


def _is_wrapper(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WRAPPERS
    )


def _backend(call: ast.AST, trees: list[ast.Module]) -> str | None:
    """Return the backend that a call names: a text, or an attribute that only ever is one."""
    given = [each.value for each in getattr(call, "keywords", []) if each.arg == "backend"]
    if not given:
        return None
    if isinstance(given[0], ast.Constant):
        return str(given[0].value)
    name = ast.unparse(given[0])
    values = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    texts = {each.value if isinstance(each, ast.Constant) else None for each in values}
    return str(texts.pop()) if len(texts) == 1 and None not in texts else None
