"""SGLang: the rules of its Triton fused MoE, the folders of its tuned files, its attention."""

import ast
from collections.abc import Mapping

from nearfree.sources.backends import fused_moe
from nearfree.sources.language.cuts import only_assignment
from nearfree.sources.language.program import Function, quote
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Mechanism, Reading

WRAPPERS = {"BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"}


def forced_backend(files: Mapping[str, str]) -> Mechanism:
    """Return the lines that ask paged wrappers for one FlashInfer backend, and whether all do."""
    modules = Modules(files)
    trees = [modules.tree(path) for path in sorted(files) if path.endswith("flashinfer_backend.py")]
    wrappers = [call for tree in trees for call in ast.walk(tree) if _is_wrapper(call)]
    backends = [(call, _backend(call, trees)) for call in wrappers]
    names = {name for _, name in backends if name is not None}
    places = [call for call, name in backends if name is not None]
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


_MOE = r"sglang/srt/layers/moe/(fused_moe_triton|moe_runner/triton_utils)/"
WANTED = (
    rf"{_MOE}(fused_moe|fused_marlin_moe|fused_moe_triton_config|moe_align_block_size)\.py"
    r"|sglang/srt/layers/attention/flashinfer_backend\.py"
)
TUNED = rf"{_MOE}configs/.*\.json"


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read a release's rules."""
    modules = Modules(files)
    path, cut = fused_moe.always_aligned(modules)
    program, root = modules.program_of(path, cut, fused_moe.LEAVES)
    return [
        *fused_moe.block_sizes(modules),
        *fused_moe.marlin_blocks(modules),
        fused_moe.config_dtype(modules),
        fused_moe.tuned_key(modules),
        fused_moe.tuned_name(modules),
        fused_moe.config_tokens(modules, {}),
        Reading(rule="path", program=program, root=root, axis="num_tokens", contexts=[{}]),
    ]


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return what makes BLOCK_SIZE_M matter, the folders' order, and the FlashInfer backend."""
    modules = Modules(files)
    _, function = modules.locate(["get_moe_configs"])
    return [
        fused_moe.alignment(modules),
        fused_moe.tuned_ignored(modules),
        *folders(function),
        forced_backend(files),
    ]


def folders(function: Function) -> list[Mechanism]:
    """Return in which order the folders of tuned files are searched, after the running triton's.

    Either a fixed list of versions, or all folders that there are, the newest first; releases
    before those keep all files in one folder, and give none.
    """
    found = only_assignment(function, "supported_triton_versions")
    if found is not None:
        versions = ast.literal_eval(found.value)
        return [Mechanism("triton_folders", " ".join(versions), (quote(found),))]
    listed = [
        each for each in ast.walk(function) if ast.unparse(each) == "os.listdir(configs_root)"
    ]
    if listed:
        return [Mechanism("triton_folders", "newest first", (quote(listed[0]),))]
    return []
