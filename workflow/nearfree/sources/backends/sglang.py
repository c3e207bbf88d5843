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
    """Return the lines that set the FlashInfer backend of paged wrappers, and how many set one."""
    modules = Modules(files)
    trees = [modules.tree(path) for path in sorted(files) if path.endswith("flashinfer_backend.py")]
    wrappers = [
        call
        for tree in trees
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in WRAPPERS
    ]
    backends = [(call, _backend(call, trees)) for call in wrappers]
    names = {name for _, name in backends if name is not None}
    choosing = [call for call, name in backends if name is not None]
    share = "all" if len(choosing) == len(wrappers) else f"{len(choosing)} of {len(wrappers)}"
    says = f"{share} paged FlashInfer wrappers are asked for {' or '.join(sorted(names))}"
    return Mechanism("flashinfer_backend", says, tuple(quote(call) for call in choosing))


def _backend(call: ast.Call, trees: list[ast.Module]) -> str | None:
    """Return the backend that a call names: a string, or an attribute with a single value."""
    arguments = [keyword.value for keyword in call.keywords if keyword.arg == "backend"]
    if not arguments:
        return None
    if isinstance(arguments[0], ast.Constant):
        return str(arguments[0].value)
    name = ast.unparse(arguments[0])
    values = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    texts = {value.value if isinstance(value, ast.Constant) else None for value in values}
    return str(texts.pop()) if len(texts) == 1 and None not in texts else None


_MOE = r"sglang/srt/layers/moe/(fused_moe_triton|moe_runner/triton_utils)/"
WANTED = (
    rf"{_MOE}(fused_moe|fused_marlin_moe|fused_moe_triton_config|moe_align_block_size)\.py"
    r"|sglang/srt/layers/attention/flashinfer_backend\.py"
)
TUNED = rf"{_MOE}configs/.*\.json"


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of a release's rules."""
    modules = Modules(files)
    path, cut = fused_moe.always_aligned(modules)
    path_program = modules.program_of(path, cut, fused_moe.LEAVES)
    return [
        *fused_moe.block_sizes(modules),
        *fused_moe.marlin_blocks(modules),
        fused_moe.config_dtype(modules),
        fused_moe.tuned_key(modules),
        fused_moe.tuned_name(modules),
        fused_moe.config_tokens(modules, {}),
        Reading("path", *path_program, axis="num_tokens", contexts=[{}]),
    ]


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the uses of BLOCK_SIZE_M, the folders' search order, and the FlashInfer backend."""
    modules = Modules(files)
    _, function = modules.locate(["get_moe_configs"])
    return [
        fused_moe.alignment(modules),
        fused_moe.tuned_ignored(modules),
        *folders(function),
        forced_backend(files),
    ]


def folders(function: Function) -> list[Mechanism]:
    """Return the search order of the folders of tuned files, after the installed triton's.

    It is a fixed list of versions, or all folders, the newest first. Earlier releases have all
    files in one folder; the list is then empty.
    """
    version_list = only_assignment(function, "supported_triton_versions")
    if version_list is not None:
        versions = ast.literal_eval(version_list.value)
        return [Mechanism("triton_folders", " ".join(versions), (quote(version_list),))]
    listings = [
        node for node in ast.walk(function) if ast.unparse(node) == "os.listdir(configs_root)"
    ]
    if listings:
        return [Mechanism("triton_folders", "newest first", (quote(listings[0]),))]
    return []
