"""Builds of engines: what pins one is read from its package and from its own headers."""

import re
from collections.abc import Mapping

from msgspec import structs

from nearfree.backends.builds import Abi, Build
from nearfree.errors import MOVED, SourceError
from nearfree.log.line import sha256
from nearfree.sources.cpp.header import Header
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.npm import fetch_npm

HEADERS = ("include/llama.h", "ggml/include/ggml.h", "ggml/include/ggml-backend.h")
SPECULATION, DRAFTING = "common/common.h", "common/speculative.cpp"
"""What the engine's own programs draft with where nothing else is asked of them."""
LIBRARIES = r"bins/linux-x64/lib(?:ggml[\w.-]*|llama\.v[\d.]+)\.so"
LARGEST = 64 * 2**20
"""Bytes of one library."""
PREBUILT = "@node-llama-cpp/linux-x64"
STRUCTS = (
    "llama_batch",
    "llama_chat_message",
    "llama_context_params",
    "llama_model_params",
    "llama_model_quantize_params",
)
FUNCTIONS = (
    *("llama_backend_init", "llama_log_set", "llama_print_system_info"),
    *("ggml_backend_load_all_from_path", "ggml_backend_reg_count"),
    *("llama_model_default_params", "llama_model_load_from_file", "llama_model_free"),
    *("llama_model_get_vocab", "llama_vocab_n_tokens", "llama_tokenize", "llama_vocab_is_eog"),
    *("llama_model_chat_template", "llama_chat_apply_template"),
    *("llama_sampler_init_greedy", "llama_sampler_sample", "llama_sampler_free"),
    *("llama_context_default_params", "llama_init_from_model", "llama_free"),
    *("llama_set_n_threads",),
    *("llama_decode", "llama_synchronize", "llama_get_logits_ith"),
    *("llama_get_memory", "llama_memory_seq_rm"),
    *("llama_model_quantize", "llama_model_quantize_default_params"),
    *("ggml_get_name", "ggml_op_desc"),
)
"""What is called of llama.cpp."""


def prebuilt_files(release: str, *, cache: Cache, offline: bool = False) -> dict[str, bytes]:
    """Return the libraries of a prebuilt release, by their path in its package."""
    found = fetch_npm(PREBUILT, release, LIBRARIES, cache=cache, offline=offline, limit=LARGEST)
    return found.files


def read_abi(headers: Mapping[str, str]) -> Abi:
    """Return what crosses the calls that are made, as a release's headers say it."""
    header = Header(headers)
    return Abi(
        headers={path: sha256(text.encode()) for path, text in sorted(headers.items())},
        structs={
            name: [" ".join(field) for field in fields]
            for name, fields in sorted(header.reached(STRUCTS).items())
        },
        functions={name: _signature(*header.function(name)) for name in FUNCTIONS},
    )


def _signature(returned: str, taken: list[str]) -> str:
    return f"{returned} ({', '.join(taken)})"


def read_build(release: str, *, prebuilt: bool, cache: Cache) -> Build:
    """Return what pins a release of llama.cpp, read from its package and its own source text.

    Raises
    ------
    SourceError
        It is not to be had, or its headers have an unknown form.
    """
    names = (*HEADERS, SPECULATION, DRAFTING)
    wanted = "|".join(map(re.escape, names))
    source = fetch("llama-cpp", release, rf"(?:.*/)?(?:{wanted})", cache=cache)
    texts = {
        name: source.text(path)
        for path in source.paths()
        for name in names
        if path == name or path.endswith(f"/{name}")
    }
    defaults = read_speculation(texts.pop(SPECULATION), texts.pop(DRAFTING))
    build = prebuilt_build(release, texts, cache=cache) if prebuilt else compiled_build(texts)
    return structs.replace(build, speculation=defaults)


def read_speculation(text: str, code: str) -> dict[str, int]:
    """Return the drafts that llama.cpp's own programs make by default, by type and field.

    Parameters
    ----------
    text, code
        The file that declares the options, and the one that drafts by them.

    Raises
    ------
    SourceError
        The structs of the options, or the one number that is no option, have another form.
    """
    found = {}
    for kind, (struct, fields) in _OPTIONS.items():
        body = re.search(rf"\bstruct {struct} {{(.*?)\n}};", text, re.DOTALL)
        used = kind == "draft" or re.search(rf"\b{struct} {kind};", text)
        for field in fields:
            value = body and used and re.search(rf"\b{field}\s*=\s*(\d+);", body[1])
            if not value:
                raise SourceError(
                    f"{SPECULATION} gives {struct}.{field} no plain number", remedy=MOVED
                )
            found[f"{kind}.{field}"] = int(value[1])
    fixed = re.search(rf"\b{_FIXED}\(.*?\n}}", code, re.DOTALL)
    value = fixed and re.search(r"\bn_draft\s*=\s*(\d+);", fixed[0])
    if not value:
        raise SourceError(f"{DRAFTING} gives {_FIXED} no plain n_draft", remedy=MOVED)
    return {**found, "ngram_cache.n_draft": int(value[1])}


_OPTIONS = {
    "draft": ("common_params_speculative_draft", ("n_max", "n_min")),
    "ngram_simple": ("common_params_speculative_ngram_map", ("size_n", "size_m")),
    "ngram_map_k": ("common_params_speculative_ngram_map", ("size_n", "size_m")),
    "ngram_map_k4v": ("common_params_speculative_ngram_map", ("size_n", "size_m", "min_hits")),
    "ngram_mod": ("common_params_speculative_ngram_mod", ("n_match", "n_max", "n_min")),
}
"""The struct of each type's options, and the fields that say how much it drafts."""
_FIXED = "create_state_ngram_cache"
"""What makes the type whose drafts no option bounds."""


def prebuilt_build(release: str, headers: Mapping[str, str], *, cache: Cache) -> Build:
    """Return what pins a prebuilt release, given its headers."""
    files = prebuilt_files(release, cache=cache)
    return Build(
        package=PREBUILT,
        sources="node-llama-cpp",
        libraries={path: sha256(raw) for path, raw in sorted(files.items())},
        abi=read_abi(headers),
    )


def compiled_build(headers: Mapping[str, str]) -> Build:
    """Return what pins a release that is compiled when its environment is made."""
    return Build(
        package="llama-cpp-python",
        sources="llama-cpp-python",
        environment="llama_cpp",
        abi=read_abi(headers),
    )
