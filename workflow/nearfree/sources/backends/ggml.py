"""ggml on a CPU: how many rows of activations a pass over a matrix of weights holds.

A product's rows are its requests' positions, `b N`; a matrix has `columns` outputs and `depth`
inputs, ggml's ne01 and ne00. Ways are tried in the order that `mechanism_order` says: repacked
weights, tiled products, llamafile's, and at last one dot product at a time (`vector`). Which of
them serves depends on the weights' type, the release and what the CPU has.
"""

import re
from collections.abc import Mapping

from nearfree.errors import MOVED, SourceError
from nearfree.log.events import Quote
from nearfree.sources.backends.ggml_repack import repack_rules
from nearfree.sources.backends.ggml_sgemm import sgemm_rules
from nearfree.sources.backends.ggml_text import BUILT, body_of, composed, found_in, span
from nearfree.sources.backends.ggml_tiled import tiled_rules
from nearfree.sources.backends.ggml_variants import variants
from nearfree.sources.cpp.conditions import Conditions
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.functions import nodes_of
from nearfree.sources.language.program import Text
from nearfree.sources.language.reading import Mechanism, Reading

PACKAGE = "llama-cpp"
WANTED = (
    r"(vendor/llama\.cpp/)?ggml/src/(CMakeLists\.txt|ggml-cpu/(ggml-cpu\.c|repack\.cpp|ops\.cpp"
    r"|common\.h|iqp\.cpp|arch/x86/(repack|cpu-feats)\.cpp|llamafile/sgemm\.cpp"
    r"|tiled/tiled\.cpp|tiled/tiled-kernel\.h|CMakeLists\.txt))"
)
VENDORED = "vendor/llama.cpp/"
"""Where the Python package's sdist has the files."""
CPU, OPS = "ggml/src/ggml-cpu/ggml-cpu.c", "ggml/src/ggml-cpu/ops.cpp"
COMMON, PANELS = "ggml/src/ggml-cpu/common.h", "ggml/src/ggml-cpu/iqp.cpp"
WAYS = {
    "ggml_compute_forward_mul_mat_tiled": "tiled",
    "llamafile_sgemm": "sgemm",
    "ggml_cpu_iqp_supports_mul_mat": "panels",
    "ggml_compute_forward_mul_mat_one_chunk": "vector",
}
"""What a product calls to have its rows multiplied, by the call."""


def readings(files: Mapping[str, str]) -> list[Reading]:
    """Return how to read the rules of one release.

    Raises
    ------
    SourceError
        A function is not of the known form.
    """
    own, inside = _own(files), _folder(files)
    found = [
        _vector(own),
        _vector_block(own),
        *repack_rules(own),
        *tiled_rules(own),
        *sgemm_rules(own),
        _flash(own),
    ]
    moved: dict[Text, Text] = {}
    for reading in found:
        for function in reading.program.functions.values():
            for node in nodes_of(function):
                text = getattr(node, "origin", None)
                if isinstance(text, Text) and inside and not text.path.startswith(inside):
                    new = moved.setdefault(text, Text(inside + text.path, text.content))
                    node.origin = new  # type: ignore[attr-defined]
    return found


def _folder(files: Mapping[str, str]) -> str:
    """Return the folder of a release that llama.cpp's own files are in."""
    return VENDORED if any(path.startswith(VENDORED) for path in files) else ""


def _own(files: Mapping[str, str]) -> dict[str, str]:
    """Return a release's files by their paths inside of llama.cpp.

    Raises
    ------
    SourceError
        A file with rules is missing.
    """
    own = {path.removeprefix(VENDORED): text for path, text in files.items()}
    needed = {CPU, OPS, COMMON, "ggml/src/ggml-cpu/repack.cpp",
              "ggml/src/ggml-cpu/arch/x86/repack.cpp",
              "ggml/src/ggml-cpu/llamafile/sgemm.cpp"}  # fmt: skip
    for path in sorted(needed - own.keys()):
        raise SourceError(f"there is no {path}", remedy=MOVED)
    return own


def _vector(files: Mapping[str, str]) -> Reading:
    """Return how to read the type that rows are quantised to, and the rows of a dot product."""
    text = files[CPU]
    place = span(CPU, text, r"static const struct ggml_type_traits_cpu type_traits_cpu\[")
    alone = Conditions(CPU, text, BUILT).compiled({}, [place])
    parts = []
    types = []
    for entry in re.finditer(r"\[GGML_TYPE_(\w+)\] = \{([^{}]*)\}", alone):
        line = 1 + alone.count("\n", 0, entry.start())
        values = dict(re.findall(r"\.(vec_dot_type|nrows)\s*=\s*(\w+)", entry[2]))
        if re.search(r"\.vec_dot\s*=", entry[2]) is None:
            continue
        if values.keys() != {"vec_dot_type", "nrows"}:
            raise SourceError(f"{CPU}:{line} says no rows of a dot product", remedy=MOVED)
        answer = f"return std::make_tuple({values['vec_dot_type']}, {values['nrows']});"
        parts.append((line, f"if (type == GGML_TYPE_{entry[1]}) {{"))
        rows = entry.start() + entry.group().index(".nrows")
        parts.append((1 + alone.count("\n", 0, rows), f"{answer} }}"))
        types.append(entry[1])
    program, root = cpp_program(
        CppFiles({CPU: composed("type_traits_cpu", parts, "false")}, quoted=files),
        "type_traits_cpu",
        leaves={r"GGML_TYPE_(\w+)": r"'\1'", "type": "weight"},
    )
    return Reading(
        "vector", program, root, axis=None, contexts=[{"weight": each} for each in types],
        whole=False,
    )  # fmt: skip


def _vector_block(files: Mapping[str, str]) -> Reading:
    """Return how to read the rows that take turns while a block of weights stays in the caches."""
    text = files[CPU]
    body, first = body_of(CPU, text, r"static void ggml_compute_forward_mul_mat_one_chunk\(")
    size, line = found_in(CPU, body, r"const int64_t blck_1 = (\d+);", first)
    found_in(CPU, body, r"for \(int64_t iir1 = ir1_start; iir1 < ir1_end; iir1 \+= blck_1\) \{")
    program, root = cpp_program(
        CppFiles({CPU: composed("one_chunk", [(line, f"return {size[1]};")], "")}, quoted=files),
        "one_chunk",
        leaves={},
    )
    return Reading("vector_block", program, root, axis=None, contexts=[{}], whole=False)


def _flash(files: Mapping[str, str]) -> Reading:
    """Return how to read the query rows of a tile of attention; 0 where rows go one by one."""
    text = files[OPS]
    body, first = body_of(OPS, text, r"static void ggml_compute_forward_flash_attn_ext_f16\(")
    common = files[COMMON]
    found_in(COMMON, common, r"static constexpr size_t Q += GGML_FA_TILE_Q;")
    size, line = found_in(COMMON, common, r"^#define GGML_FA_TILE_Q +(\d+)$")
    apart = composed("fa_tile_q", [(line, f"return {size[1]};")], "")
    parts = []
    for pattern in (
        r"const bool kv_is_f32_or_f16 = .*;",
        r"static constexpr int64_t Q_TILE_SZ += ggml_fa_tile_config::Q;",
        r"bool use_tiled = [^;]*;",
    ):
        found, line = found_in(OPS, body, pattern, first)
        parts.append((line, found.group().replace("ggml_fa_tile_config::Q", "fa_tile_q()")))
    call, line = found_in(
        OPS, body, r"if \((use_tiled)\) \{\n +ggml_compute_forward_flash_attn_ext_tiled\(", first
    )
    parts.append((line, f"if ({call[1]}) {{ return Q_TILE_SZ; }} return 0;"))
    program, root = cpp_program(
        CppFiles({OPS: composed("flash_attn_ext", parts, ""), COMMON: apart}, quoted=files),
        "flash_attn_ext",
        leaves={r"GGML_TYPE_(\w+)": r"'\1'", "use_ref": "False", "q_type": "'F32'",
                "k_type": "cache", "v_type": "cache", "neq1": "positions"},
    )  # fmt: skip
    return Reading(
        "flash_tile",
        program,
        root,
        axis="positions",
        contexts=[{"cache": each} for each in ("F16", "F32", "Q8_0")],
        whole=False,
        least={"positions": 1},
    )


def mechanisms(files: Mapping[str, str]) -> list[Mechanism]:
    """Return the lines that say which way is tried before which."""
    own, inside = _own(files), _folder(files)
    text = Text(inside + CPU, own[CPU])
    body, first = body_of(CPU, own[CPU], r"static void ggml_compute_forward\(")
    _, extra = found_in(CPU, body, r"if \(ggml_cpu_extra_compute_forward\(params, tensor\)\) \{",
                        first)  # fmt: skip
    _, plain = found_in(CPU, body, r"\bggml_compute_forward_mul_mat\(params, tensor\);", first)
    if extra > plain:
        raise SourceError(f"{CPU}: repacked weights come after all others", remedy=MOVED)
    # What follows is tried in the order of the calls.
    ways: list[tuple[str, Quote]] = [("repack", text.quote(extra, extra))]
    first, last = span(CPU, own[CPU], r"void ggml_compute_forward_mul_mat\(")
    for number in range(first, last + 1):
        line = own[CPU].split("\n")[number - 1]
        called = re.search(rf"\b({'|'.join(WAYS)})\(", line)
        if called is not None:
            ways.append((WAYS[called[1]], text.quote(number, number)))
    says = ", ".join(dict.fromkeys(way for way, _ in ways))
    return [Mechanism("order", says, tuple(quote for _, quote in ways)), *_panels(own, inside),
            *variants(own, inside)]  # fmt: skip


def _panels(files: Mapping[str, str], inside: str) -> list[Mechanism]:
    """Return the types that go by panels of grids, where a release has those."""
    if PANELS not in files:
        return []
    text = Text(inside + PANELS, files[PANELS])
    named, line = found_in(PANELS, files[PANELS], r"^#define IQP_TYPE_LIST\(T\)((?:.*\\\n)*.*)$")
    types = re.findall(r"\bT\((\w+), *\w+\)", named[1])
    if not types:
        raise SourceError(f"{PANELS}:{line} names no types", remedy=MOVED)
    last = line + named.group().count("\n")
    return [Mechanism("panels", ", ".join(types), (text.quote(line, last),))]
