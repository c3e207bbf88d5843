"""vLLM's latent attention: which backend a GPU gets, and how many positions it decodes.

Both stand in the text of a release: the order of backends in `platforms/cuda.py`, and in each
backend's own file the capabilities that it supports, whether it takes several positions of a
request, and from how many on they are prefill. `sources.mla_paths` is what this reads.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from nearfree.errors import SourceError

WANTED = r"vllm/v1/attention/backends/mla/\w+\.py|vllm/platforms/cuda\.py"
_ORDER, _PLATFORM = "_get_backend_priorities", "vllm/platforms/cuda.py"
_MAJOR = "device_capability.major"
_FOLDER = "vllm/v1/attention/backends/mla/"
_FILES = {
    "FLASH_ATTN_MLA": "flashattn_mla.py",
    "FLASHMLA": "flashmla.py",
    "FLASHINFER_MLA": "flashinfer_mla.py",
    "CUTLASS_MLA": "cutlass_mla.py",
    "TRITON_MLA": "triton_mla.py",
    "TOKENSPEED_MLA": "tokenspeed_mla.py",
}
"""The file of each backend that attends to all positions."""
KERNELS = {
    "FLASH_ATTN_MLA": "fa3",
    "FLASHMLA": "flashmla",
    "FLASHINFER_MLA": "trtllm_gen",
    "CUTLASS_MLA": "cutlass",
    "TRITON_MLA": "triton_decode",
}
"""What a backend runs, as `sources.mla_tiles` names it."""
_CACHES = "supported_kv_cache_dtypes"
_SINGLE = "SINGLE_ONLY"


class Decoding(Struct, frozen=True):
    """A backend, the most positions of a request that it decodes (None: as many as are drafted).

    `places` are the files and lines that say so.
    """

    backend: str
    most: int | None
    places: tuple[str, ...]


def read_decoding(files: Mapping[str, str], major: int, cache: str = "auto") -> Decoding:
    """Return what a GPU of a compute capability's major version decodes with by default.

    Parameters
    ----------
    files
        The release's files that WANTED names, by path.
    cache
        The format of the cache as vLLM names it: `auto`, that of the queries, or `fp8`.

    Raises
    ------
    SourceError
        The text is not of the known form.
    """
    for name, line in _order(_tree(files, _PLATFORM), major):
        path = _FOLDER + _FILES.get(name, "")
        if name not in _FILES or path not in files:
            continue
        tree = _tree(files, path)
        supported, where = _supports(tree, path, major)
        if supported and _takes(tree, path, cache):
            most, lines = _most(tree)
            sources = (f"{_PLATFORM} line {line}", f"{path} line {where}")
            return Decoding(name, most, (*sources, *(f"{path} line {line}" for line in lines)))
    what = f"names no backend of latent attention for capability {major}.x and a cache of {cache}"
    raise _odd(_PLATFORM, what)


def _tree(files: Mapping[str, str], path: str) -> ast.Module:
    if path not in files:
        raise _odd(path, "is not in the release")
    return ast.parse(files[path])


def _order(tree: ast.Module, major: int) -> Iterator[tuple[str, int]]:
    """Yield the backends of latent attention in a GPU's order, with their lines."""
    roots = [node for node in tree.body if getattr(node, "name", "") == _ORDER]
    chosen = [
        node
        for root in roots
        if isinstance(root, ast.FunctionDef)
        for node in root.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "use_mla"
    ]
    if len(chosen) != 1:
        raise _odd(_PLATFORM, f"has no {_ORDER} that asks for use_mla once")
    returned = _returned(chosen[0].body, major)
    if not isinstance(returned, ast.List):
        raise _odd(_PLATFORM, f"returns no list of backends for capability {major}.x")
    for element in returned.elts:
        if isinstance(element, ast.Attribute):
            yield element.attr, element.lineno


def _returned(body: Sequence[ast.stmt], major: int) -> ast.expr | None:
    """Return what statements return for a capability; what only fills a list is passed over."""
    for statement in body:
        if isinstance(statement, ast.Return):
            return statement.value
        if isinstance(statement, ast.If):
            test = statement.test
            if isinstance(test, ast.Compare) and ast.unparse(test.left) == _MAJOR:
                backends = _returned(
                    statement.body if _holds(test, major) else statement.orelse, major
                )
                if backends is not None:
                    return backends
            elif any(isinstance(inner, ast.Return) for inner in ast.walk(statement)):
                raise _odd(_PLATFORM, f"asks for {ast.unparse(test)} before it returns")
    return None


def _supports(tree: ast.Module, path: str, major: int) -> tuple[bool, int]:
    """Return whether a backend supports a capability, and the line that says so."""
    for group in _classes(tree):
        for statement in group.body:
            if (
                isinstance(statement, ast.FunctionDef)
                and statement.name == "supports_compute_capability"
            ):
                end = statement.body[-1]
                if isinstance(end, ast.Return) and isinstance(end.value, ast.Constant):
                    return bool(end.value.value), end.lineno
                if isinstance(end, ast.Return) and isinstance(end.value, ast.Compare):
                    return _holds(end.value, major), end.lineno
                raise _odd(path, f"does not say its capabilities in one line at {end.lineno}")
    raise _odd(path, "does not say which capabilities it supports")


def _takes(tree: ast.Module, path: str, cache: str) -> bool:
    """Return whether a backend takes a cache of a format."""
    for group in _classes(tree):
        for statement in group.body:
            named = (
                isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == _CACHES
            )
            if (
                isinstance(statement, ast.AnnAssign)
                and named
                and isinstance(statement.value, ast.List)
            ):
                return cache in ast.literal_eval(statement.value)
    raise _odd(path, "does not say which caches it takes")


def _holds(test: ast.Compare, major: int) -> bool:
    """Return whether a comparison of a major version with numbers holds."""
    try:
        (operator,), value = test.ops, ast.literal_eval(test.comparators[0])
    except (ValueError, SyntaxError) as error:
        raise _odd(_PLATFORM, f"compares a capability with {ast.unparse(test)}") from error
    if isinstance(operator, ast.Eq):
        return bool(major == value)
    if isinstance(operator, ast.In):
        return major in value
    raise _odd(_PLATFORM, f"compares a capability by {ast.unparse(test)}")


def _most(tree: ast.Module) -> tuple[int | None, tuple[int, ...]]:
    """Return the most positions that a backend decodes, with lines; one where it says nothing."""
    values = {
        ast.unparse(statement.target): statement
        for group in _classes(tree)
        for statement in group.body
        if isinstance(statement, ast.AnnAssign) and group.name.endswith("MetadataBuilder")
    }
    support, threshold = values.get("query_len_support"), values.get("reorder_batch_threshold")
    lines = tuple(node.lineno for node in (support, threshold) if node is not None)
    if support is None or _SINGLE in ast.unparse(support):
        return 1, lines
    if threshold is None or not isinstance(threshold.value, ast.Constant):
        return None, lines
    return int(str(threshold.value.value)), lines


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Yield the classes of a file but those of Intel's GPUs."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("XPU"):
            yield node


def _odd(path: str, what: str) -> SourceError:
    return SourceError(f"{path} {what}", remedy="Read another release, or name a kernel")
