"""ggml on a CPU: the rows of activations that a pass over a weight matrix processes.

A product's rows are its requests' positions, b N. A matrix has `columns` outputs and `depth`
inputs, ggml's ne01 and ne00. ggml tries its paths in the order of `mechanism_order`: repacked
weights, tiled products, llamafile's, and last single dot products (`vector`). Which path runs
depends on the weights' type, the release and the CPU's instruction sets.
"""

import re
from collections.abc import Mapping

from nearfree.errors import MovedError
from nearfree.log.events import Quote
from nearfree.sources.backends.ggml_experts import expert_order, expert_rules
from nearfree.sources.backends.ggml_repack import repack_rules
from nearfree.sources.backends.ggml_sgemm import sgemm_rules
from nearfree.sources.backends.ggml_text import (
    BUILD_DEFINITIONS,
    body_of,
    composed,
    only_match,
    prefixed,
    span,
)
from nearfree.sources.backends.ggml_tiled import tiled_rules
from nearfree.sources.cpp.conditions import Conditions
from nearfree.sources.cpp.program import cpp_reading
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import Text
from nearfree.sources.language.reading import Mechanism, Reading

PACKAGE = "llama-cpp"
WANTED = (
    r"(vendor/llama\.cpp/)?ggml/src/(CMakeLists\.txt|ggml-cpu/(ggml-cpu\.c|repack\.cpp|ops\.cpp"
    r"|common\.h|iqp\.cpp|arch/x86/(repack|cpu-feats)\.cpp|llamafile/sgemm\.cpp"
    r"|tiled/tiled\.cpp|tiled/tiled-kernel\.h|CMakeLists\.txt))"
)
VENDORED = "vendor/llama.cpp/"
"""The folder of llama.cpp in the Python package's sdist."""
CPU, OPS = "ggml/src/ggml-cpu/ggml-cpu.c", "ggml/src/ggml-cpu/ops.cpp"
COMMON, PANELS = "ggml/src/ggml-cpu/common.h", "ggml/src/ggml-cpu/iqp.cpp"
WAYS = {
    "ggml_compute_forward_mul_mat_tiled": "tiled",
    "llamafile_sgemm": "sgemm",
    "ggml_cpu_iqp_supports_mul_mat": "panels",
    "ggml_compute_forward_mul_mat_one_chunk": "vector",
}
"""The path that each call in a product takes."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of one release's rules."""
    llama_files, folder = _llama_files(files), _folder(files)
    readings = [
        _vector(llama_files),
        _vector_block(llama_files),
        *repack_rules(llama_files),
        *tiled_rules(llama_files),
        *sgemm_rules(llama_files),
        *expert_rules(llama_files),
        _flash(llama_files),
    ]
    return prefixed(readings, folder)


def _folder(files: Mapping[str, str]) -> str:
    """Return the folder of a release that contains llama.cpp; empty if that is the root."""
    return VENDORED if any(path.startswith(VENDORED) for path in files) else ""


def _llama_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return a release's files by their paths in llama.cpp."""
    relative = {path.removeprefix(VENDORED): text for path, text in files.items()}
    required = {CPU, OPS, COMMON, "ggml/src/ggml-cpu/repack.cpp",
              "ggml/src/ggml-cpu/arch/x86/repack.cpp",
              "ggml/src/ggml-cpu/llamafile/sgemm.cpp"}  # fmt: skip
    for path in sorted(required - relative.keys()):
        raise MovedError(f"there is no {path}")
    return relative


def _vector(files: Mapping[str, str]) -> Reading:
    """Return the reading of the type to which rows are quantised, and of rows per dot product."""
    text = files[CPU]
    table = span(CPU, text, r"static const struct ggml_type_traits_cpu type_traits_cpu\[")
    compiled = Conditions(CPU, text, BUILD_DEFINITIONS).compiled({}, [table])
    pieces = []
    types = []
    for entry in re.finditer(r"\[GGML_TYPE_(\w+)\] = \{([^{}]*)\}", compiled):
        line = 1 + compiled.count("\n", 0, entry.start())
        values = dict(re.findall(r"\.(vec_dot_type|nrows)\s*=\s*(\w+)", entry[2]))
        if re.search(r"\.vec_dot\s*=", entry[2]) is None:
            continue
        if values.keys() != {"vec_dot_type", "nrows"}:
            raise MovedError(f"{CPU}:{line} does not set the rows of a dot product")
        answer = f"return std::make_tuple({values['vec_dot_type']}, {values['nrows']});"
        pieces.append((line, f"if (type == GGML_TYPE_{entry[1]}) {{"))
        rows = entry.start() + entry.group().index(".nrows")
        pieces.append((1 + compiled.count("\n", 0, rows), f"{answer} }}"))
        types.append(entry[1])
    return cpp_reading(
        "vector",
        CppFiles({CPU: composed("type_traits_cpu", pieces, "false")}, quoted=files),
        "type_traits_cpu",
        leaves={r"GGML_TYPE_(\w+)": r"'\1'", "type": "weight"},
        axis=None,
        contexts=[{"weight": weight} for weight in types],
    )


def _vector_block(files: Mapping[str, str]) -> Reading:
    """Return the reading of the rows that are processed while a block of weights stays cached."""
    text = files[CPU]
    body, first = body_of(CPU, text, r"static void ggml_compute_forward_mul_mat_one_chunk\(")
    block_rows, line = only_match(CPU, body, r"const int64_t blck_1 = (\d+);", first)
    only_match(CPU, body, r"for \(int64_t iir1 = ir1_start; iir1 < ir1_end; iir1 \+= blck_1\) \{")
    source = composed("one_chunk", [(line, f"return {block_rows[1]};")], "")
    one_chunk = CppFiles({CPU: source}, quoted=files)
    return cpp_reading("vector_block", one_chunk, "one_chunk", leaves={}, axis=None, contexts=[{}])


def _flash(files: Mapping[str, str]) -> Reading:
    """Return the reading of the query rows per attention tile; 0 if rows are processed singly."""
    text = files[OPS]
    body, first = body_of(OPS, text, r"static void ggml_compute_forward_flash_attn_ext_f16\(")
    common = files[COMMON]
    only_match(COMMON, common, r"static constexpr size_t Q += GGML_FA_TILE_Q;")
    tile_rows, line = only_match(COMMON, common, r"^#define GGML_FA_TILE_Q +(\d+)$")
    tile_function = composed("fa_tile_q", [(line, f"return {tile_rows[1]};")], "")
    pieces = []
    for pattern in (
        r"const bool kv_is_f32_or_f16 = .*;",
        r"static constexpr int64_t Q_TILE_SZ += ggml_fa_tile_config::Q;",
        r"bool use_tiled = [^;]*;",
    ):
        match, line = only_match(OPS, body, pattern, first)
        pieces.append((line, match.group().replace("ggml_fa_tile_config::Q", "fa_tile_q()")))
    call, line = only_match(
        OPS, body, r"if \((use_tiled)\) \{\n +ggml_compute_forward_flash_attn_ext_tiled\(", first
    )
    pieces.append((line, f"if ({call[1]}) {{ return Q_TILE_SZ; }} return 0;"))
    return cpp_reading(
        "flash_tile",
        CppFiles(
            {OPS: composed("flash_attn_ext", pieces, ""), COMMON: tile_function}, quoted=files
        ),
        "flash_attn_ext",
        leaves={r"GGML_TYPE_(\w+)": r"'\1'", "use_ref": "False", "q_type": "'F32'",
                "k_type": "cache", "v_type": "cache", "neq1": "positions"},
        axis="positions",
        contexts=[{"cache": cache} for cache in ("F16", "F32", "Q8_0")],
        minimums={"positions": 1},
    )  # fmt: skip


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that determine the order of paths, and the library variants."""
    llama_files, folder = _llama_files(files), _folder(files)
    text = Text(folder + CPU, llama_files[CPU])
    body, first = body_of(CPU, llama_files[CPU], r"static void ggml_compute_forward\(")
    _, repack_line = only_match(
        CPU, body, r"if \(ggml_cpu_extra_compute_forward\(params, tensor\)\) \{", first
    )
    _, product_line = only_match(
        CPU, body, r"\bggml_compute_forward_mul_mat\(params, tensor\);", first
    )
    if repack_line > product_line:
        raise MovedError(f"{CPU}: repacked weights come after all others")
    # The other paths are tried in the order of the calls.
    ways: list[tuple[str, Quote]] = [("repack", text.quote(repack_line, repack_line))]
    first, last = span(CPU, llama_files[CPU], r"void ggml_compute_forward_mul_mat\(")
    for number in range(first, last + 1):
        line = llama_files[CPU].split("\n")[number - 1]
        call = re.search(rf"\b({'|'.join(WAYS)})\(", line)
        if call is not None:
            ways.append((WAYS[call[1]], text.quote(number, number)))
    says = ", ".join(dict.fromkeys(way for way, _ in ways))
    return [
        Mechanism("order", says, tuple(quote for _, quote in ways)),
        expert_order(llama_files, folder),
        *_panels(llama_files, folder),
        *variants(llama_files, folder),
    ]


def _panels(files: Mapping[str, str], folder: str) -> list[Mechanism]:
    """Return the types that are multiplied by panels of grids, if a release has those."""
    if PANELS not in files:
        return []
    text = Text(folder + PANELS, files[PANELS])
    type_list, line = only_match(
        PANELS, files[PANELS], r"^#define IQP_TYPE_LIST\(T\)((?:.*\\\n)*.*)$"
    )
    types = re.findall(r"\bT\((\w+), *\w+\)", type_list[1])
    if not types:
        raise MovedError(f"{PANELS}:{line} names no types")
    last = line + type_list.group().count("\n")
    return [Mechanism("panels", ", ".join(types), (text.quote(line, last),))]


LIST, OPTIONS = "ggml/src/CMakeLists.txt", "ggml/src/ggml-cpu/CMakeLists.txt"
SCORE = "ggml/src/ggml-cpu/arch/x86/cpu-feats.cpp"
_VARIANT_LINE = re.compile(r"^ +ggml_add_cpu_backend_variant\((\w+)((?: +\w+)*)\)$", re.MULTILINE)
_OPTION_BLOCK = re.compile(
    r"if \(GGML_(\w+)\)\n((?: +list\(APPEND ARCH_FLAGS -m[\w.-]+\)\n)+)"
    r" +list\(APPEND ARCH_DEFINITIONS GGML_\1\)\n +endif\(\)"
)
_SCORE_BLOCK = re.compile(
    r"^#ifdef GGML_(\w+)\n((?: +if \(!is\.\w+\(\)\) \{ return 0; \}\n)+)"
    r" +score \+= 1(?:<<(\d+))?;\n#endif$",
    re.MULTILINE,
)


def variants(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return the variants, and each feature's compiler options, CPU tests and score.

    A variant is compiled for the features that its line names (ggml/src/CMakeLists.txt,
    `ggml_add_cpu_backend_variant`), with the compiler's options for each feature
    (ggml/src/ggml-cpu/CMakeLists.txt). At run time each feature that the machine has adds to the
    variant's score; a missing one makes the score 0 (ggml-cpu/arch/x86/cpu-feats.cpp,
    `ggml_backend_cpu_x86_score`). The variant with the highest score is loaded.
    """
    for path in (LIST, OPTIONS, SCORE):
        if path not in files:
            raise MovedError(f"there is no {path}")
    return [_variants(files[LIST], inside), *_features(files, inside)]


def _variants(content: str, inside: str) -> Mechanism:
    block, first = only_match(
        LIST,
        content,
        r'^ +if \(GGML_SYSTEM_ARCH STREQUAL "x86"\)\n(?P<added> +ggml_add_cpu_backend_variant'
        r'(?:.*\n)*?) +elseif\s*\(GGML_SYSTEM_ARCH STREQUAL "ARM"\)$',
    )
    text = Text(inside + LIST, content)
    entries, quotes = [], []
    for addition in _VARIANT_LINE.finditer(block.group()):
        line = first + block.group().count("\n", 0, addition.start())
        entries.append(" ".join([addition[1], *addition[2].split()]))
        quotes.append(text.quote(line, line))
    if len(entries) != block.group().count("ggml_add_cpu_backend_variant("):
        raise MovedError(f"{LIST}:{first} adds variants in an unknown form")
    return Mechanism("variants", ", ".join(entries), tuple(quotes))


def _features(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return each feature's compiler options, CPU tests and score."""
    options = {option[1]: option for option in _OPTION_BLOCK.finditer(files[OPTIONS])}
    body, first = body_of(SCORE, files[SCORE], r"static int ggml_backend_cpu_x86_score\(\)")
    scored = list(_SCORE_BLOCK.finditer(body))
    if not scored or len(scored) != body.count("score +=") or "int score = 1;" not in body:
        raise MovedError(f"{SCORE}:{first} scores in an unknown form")
    texts = Text(inside + OPTIONS, files[OPTIONS]), Text(inside + SCORE, files[SCORE])
    mechanisms = []
    for score in scored:
        name = score[1]
        if name not in options:
            raise MovedError(f"{OPTIONS} has no options for {name}")
        flags = re.findall(r" -m([\w.-]+)\)", options[name][2])
        needs = re.findall(r"!is\.(\w+)\(", score[2])
        options_line = 1 + files[OPTIONS].count("\n", 0, options[name].start())
        line = first + body.count("\n", 0, score.start())
        quotes = (
            texts[0].quote(options_line, options_line + options[name].group().count("\n")),
            texts[1].quote(line, line + score.group().count("\n")),
        )
        statement = f"{' '.join(flags)}; {' '.join(needs)}; {1 << int(score[3] or 0)}"
        mechanisms.append(Mechanism(f"feature_{name}", statement, quotes))
    return mechanisms
