"""ggml's products of routed experts on a CPU (`ggml_mul_mat_id`): the rows of an expert's passes.

ggml sorts the b N k pairs of a token and an expert by expert, and takes one expert after another.
`expert_order` is the order of the paths that an expert's product tries. The rule
`expert_repack_rows` is the rows of a call of the kernel for repacked weights (ggml-cpu/repack.cpp,
`forward_mul_mat_id`). `expert_block` is the rows that are processed while a block of weights stays
cached, and those of one dot product (ggml-cpu/ggml-cpu.c,
`ggml_compute_forward_mul_mat_id_one_chunk`).
"""

import re
from collections.abc import Mapping

from nearfree.errors import MovedError
from nearfree.log.events import Quote
from nearfree.sources.backends.ggml_repack import CPU, PATH, TRAITS
from nearfree.sources.backends.ggml_text import body_of, composed, only_match, span
from nearfree.sources.cpp.program import cpp_reading
from nearfree.sources.cpp.source import CppFiles
from nearfree.sources.language.program import Text
from nearfree.sources.language.reading import Mechanism, Reading

ENTRY = "ggml_compute_forward_mul_mat_id"
WAYS = {
    f"{ENTRY}_tiled": "tiled",
    f"{ENTRY}_iqp": "panels",
    f"{ENTRY}_one_chunk": "vector",
}
"""The path that each call in an expert's product takes."""


def expert_rules(files: Mapping[str, str]) -> list[Reading]:
    """Return the readings of the rules for experts, but for those of tiles."""
    return [_repacked(files), _block(files)]


def _repacked(files: Mapping[str, str]) -> Reading:
    """Return the reading of the rows that the kernel for repacked weights takes at once."""
    text = files[PATH]
    body, first = body_of(PATH, text, r" +void forward_mul_mat_id\(", after=TRAITS)
    only_match(PATH, body, r"for \(int cur_a = 0; cur_a < n_as; \+\+cur_a\) \{")
    loop, _ = only_match(PATH, body, r"for \(int ir1 = 0; ir1 < nr1; ir1\+\+\) \{")
    only_match(PATH, body, r"const int64_t nr1 = cne1;")
    call, _ = only_match(
        PATH, body[loop.end() :], r"gemv<[^;]*, src1_col, (\d+), src0_cur_end - src0_cur_start\);"
    )
    line = first + body.count("\n", 0, loop.end() + call.start(1))
    source = composed("forward_mul_mat_id", [(line, f"return {call[1]};")], "")
    return cpp_reading(
        "expert_repack_rows",
        CppFiles({PATH: source}, quoted=files),
        "forward_mul_mat_id",
        leaves={},
        axis=None,
        contexts=[{}],
    )


def _block(files: Mapping[str, str]) -> Reading:
    """Return the reading of the rows of a block of dot products, and of one of them."""
    text = files[CPU]
    body, first = body_of(CPU, text, rf"static void {ENTRY}_one_chunk\(")
    only_match(CPU, body, r"for \(int64_t iir1 = ir1_start; iir1 < ir1_end; iir1 \+= blck_1\) \{")
    block, block_line = only_match(CPU, body, r"const int64_t blck_1 = (\d+);", first)
    dot, dot_line = only_match(CPU, body, r"vec_dot\(ne00, [^;]*, src1_col, 0, (\d+)\);", first)
    pieces = [
        (block_line, f"int64_t blck_1 = {block[1]};"),
        (dot_line, f"return std::make_tuple(blck_1, {dot[1]});"),
    ]
    one_chunk = CppFiles({CPU: composed("id_one_chunk", pieces, "")}, quoted=files)
    return cpp_reading(
        "expert_block", one_chunk, "id_one_chunk", leaves={}, axis=None, contexts=[{}]
    )


def expert_order(files: Mapping[str, str], folder: str) -> Mechanism:
    """Return the lines that determine the order of paths of an expert's product.

    Parameters
    ----------
    folder
        The folder of a release that contains llama.cpp; empty if that is the root.
    """
    content = files[CPU]
    text = Text(folder + CPU, content)
    body, first = body_of(CPU, content, r"static void ggml_compute_forward\(")
    _, extra_line = only_match(
        CPU, body, r"if \(ggml_cpu_extra_compute_forward\(params, tensor\)\) \{", first
    )
    _, product_line = only_match(CPU, body, rf"\b{ENTRY}\(params, tensor\);", first)
    if extra_line > product_line:
        raise MovedError(f"{CPU}: repacked experts come after all others")
    traits, traits_line = body_of(PATH, files[PATH], TRAITS)
    case, case_line = only_match(
        PATH,
        traits,
        r"case GGML_OP_MUL_MAT_ID:\n +forward_mul_mat_id\(params, op\);\n",
        traits_line,
    )
    last_line = case_line + case.group().count("\n") - 1
    repack_text = Text(folder + PATH, files[PATH])
    ways: list[tuple[str, Quote]] = [
        ("repack", text.quote(extra_line, extra_line)),
        ("repack", repack_text.quote(case_line, last_line)),
    ]
    start, end = span(CPU, content, rf"static void {ENTRY}\(")
    for number, line in enumerate(content.split("\n")[start - 1 : end], start):
        call = re.search(rf"\b({'|'.join(WAYS)})\(", line)
        if call is not None:
            ways.append((WAYS[call[1]], text.quote(number, number)))
    if ways[-1][0] != "vector":
        raise MovedError(f"{CPU}: experts have no last path of dot products")
    says = ", ".join(dict.fromkeys(way for way, _ in ways))
    return Mechanism("expert_order", says, tuple(quote for _, quote in ways))
