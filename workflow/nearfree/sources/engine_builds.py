"""Builds of engines: their pins, read from their packages and their own headers."""

import re
from collections.abc import Mapping

from msgspec import structs

from nearfree.backends.builds import Abi, Build
from nearfree.errors import MovedError
from nearfree.log.line import sha256
from nearfree.sources.cpp.header import Header
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.npm import fetch_npm

HEADERS = ("include/llama.h", "ggml/include/ggml.h", "ggml/include/ggml-backend.h")
SPECULATION, DRAFTING = "common/common.h", "common/speculative.cpp"
"""Files with the default options of speculative decoding in llama.cpp's own programs."""
LIBRARIES = r"bins/linux-x64/lib(?:ggml[\w.-]*|llama\.v[\d.]+)\.so"
LIBRARY_LIMIT = 64 * 2**20
"""Limit of one library, in bytes."""
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
"""The functions of llama.cpp that are called."""


def prebuilt_files(release: str, *, cache: Cache, offline: bool = False) -> dict[str, bytes]:
    """Return the libraries of a prebuilt release, by path in its package."""
    source = fetch_npm(
        PREBUILT, release, LIBRARIES, cache=cache, offline=offline, limit=LIBRARY_LIMIT
    )
    return source.files


def read_abi(headers: Mapping[str, str]) -> Abi:
    """Return the structures and signatures of the calls in use, from a release's headers."""
    header = Header(headers)
    return Abi(
        headers={path: sha256(text.encode()) for path, text in sorted(headers.items())},
        structs={
            name: [" ".join(field) for field in fields]
            for name, fields in sorted(header.reached(STRUCTS).items())
        },
        functions={
            name: f"{returned} ({', '.join(parameters)})"
            for name in FUNCTIONS
            for returned, parameters in [header.function(name)]
        },
    )


def read_build(release: str, *, prebuilt: bool, cache: Cache) -> Build:
    """Return the pins of a llama.cpp release, read from its package and its own source.

    Raises
    ------
    SourceError
        The release is not available, or its headers have an unknown form.
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
    """Return the default draft options of llama.cpp's own programs, by type and field.

    `text` declares the options, `code` implements drafting.

    Raises
    ------
    SourceError
        The structs of the options, or the one fixed number, have another form.
    """
    defaults = {}
    for kind, (struct, fields) in _DRAFT_OPTIONS.items():
        body = re.search(rf"\bstruct {struct} {{(.*?)\n}};", text, re.DOTALL)
        is_used = kind == "draft" or re.search(rf"\b{struct} {kind};", text)
        for field in fields:
            value = body and is_used and re.search(rf"\b{field}\s*=\s*(\d+);", body[1])
            if not value:
                raise MovedError(f"{SPECULATION} gives {struct}.{field} no plain number")
            defaults[f"{kind}.{field}"] = int(value[1])
    function = re.search(rf"\b{_FIXED_DRAFT_FUNCTION}\(.*?\n}}", code, re.DOTALL)
    value = function and re.search(r"\bn_draft\s*=\s*(\d+);", function[0])
    if not value:
        raise MovedError(f"{DRAFTING} gives {_FIXED_DRAFT_FUNCTION} no plain n_draft")
    return {**defaults, "ngram_cache.n_draft": int(value[1])}


_DRAFT_OPTIONS = {
    "draft": ("common_params_speculative_draft", ("n_max", "n_min")),
    "ngram_simple": ("common_params_speculative_ngram_map", ("size_n", "size_m")),
    "ngram_map_k": ("common_params_speculative_ngram_map", ("size_n", "size_m")),
    "ngram_map_k4v": ("common_params_speculative_ngram_map", ("size_n", "size_m", "min_hits")),
    "ngram_mod": ("common_params_speculative_ngram_mod", ("n_match", "n_max", "n_min")),
}
"""The struct of each type's options, and the fields that set the draft length."""
_FIXED_DRAFT_FUNCTION = "create_state_ngram_cache"
"""The function for the type whose draft length is fixed, not an option."""


def prebuilt_build(release: str, headers: Mapping[str, str], *, cache: Cache) -> Build:
    """Return the pins of a prebuilt release, given its headers."""
    files = prebuilt_files(release, cache=cache)
    return Build(
        package=PREBUILT,
        sources="node-llama-cpp",
        libraries={path: sha256(raw) for path, raw in sorted(files.items())},
        abi=read_abi(headers),
    )


def compiled_build(headers: Mapping[str, str]) -> Build:
    """Return the pins of a release that is compiled when its environment is installed."""
    return Build(
        package="llama-cpp-python",
        sources="llama-cpp-python",
        environment="llama_cpp",
        abi=read_abi(headers),
    )
