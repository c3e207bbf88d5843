"""Marlin's dense product: the rows of a pass over the weights, and of a tile.

The host's loop launches the kernel for full tiles of the largest size first, then again for the
remaining rows. Each launch reads all weights.
"""

from collections.abc import Mapping

from tree_sitter import Node

from nearfree.errors import MovedError
from nearfree.sources.cpp.edits import only_function, reduced_to
from nearfree.sources.cpp.nodes import changed_names, declared_names, part
from nearfree.sources.cpp.program import cpp_reading
from nearfree.sources.cpp.source import CppFiles, children, text_of
from nearfree.sources.language.reading import Reading

LOOP = "marlin_mm"
_BLOCK_SIZE_FLAG = "m_block_size_8"
_FINAL_NAMES = {"prob_m_split", "thread_m_blocks", _BLOCK_SIZE_FLAG}
_NAMES = {"max_par", "max_thread_m_blocks", "par_count", *_FINAL_NAMES}
_PASS = f"std::make_tuple(({_BLOCK_SIZE_FLAG} ? 8 : 16 * thread_m_blocks), prob_m_split)"
"""Rows of a tile, and rows of the pass."""
LEAVES = {
    "rest_m": "rows",
    "prob_n": "columns",
    r"a_type\.size_bits\(\)": "activation_bits",
    r"div_ceil\((\w+), (\w+)\)": r"quotient(\1 + \2 - 1, \2)",
}


def marlin(files: Mapping[str, str], shapes: list[Mapping[str, int]]) -> Reading:
    """Return the reading of the rows per tile and in the next pass, by remaining rows."""
    path, node = only_function(files, LOOP)
    cut_files = {path: reduced_to(files[path], node, _prefix(path, node), _PASS)}
    return cpp_reading(
        "marlin",
        CppFiles(cut_files, quoted=files),
        LOOP,
        leaves=LEAVES,
        axis="rows",
        contexts=[{"columns": shape["columns"], "activation_bits": 16} for shape in shapes],
        minimums={"rows": 1},
    )


def _prefix(path: str, function: Node) -> list[Node]:
    """Return the loop's statements up to the one that fixes the size of a block."""
    statements = _statements(part(function, "body"))
    ends = [
        index
        for index, statement in enumerate(statements, start=1)
        if _BLOCK_SIZE_FLAG in declared_names(statement)
    ]
    if len(ends) != 1:
        raise MovedError(f"{path}: {LOOP} declares {_BLOCK_SIZE_FLAG} {len(ends)} times")
    changed_later = _FINAL_NAMES & set().union(*map(changed_names, statements[ends[0] :]))
    if changed_later:
        raise MovedError(
            f"{path}: {LOOP} sets {' and '.join(sorted(changed_later))} behind {_BLOCK_SIZE_FLAG}"
        )
    return [
        statement
        for statement in statements[: ends[0]]
        if (declared_names(statement) | changed_names(statement)) & _NAMES
    ]


def _statements(body: Node) -> list[Node]:
    """Return a block's statements, including those of a loop over the remaining rows."""
    statements: list[Node] = []
    for statement in children(body):
        inner = statement.child_by_field_name("body")
        is_row_loop = statement.type == "while_statement" and "rest_m" in text_of(
            part(statement, "condition")
        )
        statements += _statements(inner) if is_row_loop and inner is not None else [statement]
    return statements
