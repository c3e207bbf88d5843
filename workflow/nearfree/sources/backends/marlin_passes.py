"""Marlin's dense product: how many rows it takes in one pass over the weights, and in which tiles.

The host's loop launches the kernel for whole tiles of the largest size first, and again for the
rows that are left: each launch reads all weights.
"""

from collections.abc import Mapping

from tree_sitter import Node

from nearfree.errors import MOVED, SourceError
from nearfree.sources.cpp.nodes import assigned, declared, part
from nearfree.sources.cpp.program import cpp_program
from nearfree.sources.cpp.source import CppFiles, children, words
from nearfree.sources.cpp.written import cut, only_function
from nearfree.sources.language.reading import Reading

LOOP = "marlin_mm"
_LAST = "m_block_size_8"
_SETTLED = {"prob_m_split", "thread_m_blocks", _LAST}
_NAMES = {"max_par", "max_thread_m_blocks", "par_count", *_SETTLED}
_PASS = f"std::make_tuple(({_LAST} ? 8 : 16 * thread_m_blocks), prob_m_split)"
"""Rows of a tile, and rows of the pass."""
LEAVES = {
    "rest_m": "rows",
    "prob_n": "columns",
    r"a_type\.size_bits\(\)": "activation_bits",
    r"div_ceil\((\w+), (\w+)\)": r"quotient(\1 + \2 - 1, \2)",
}


def marlin(files: Mapping[str, str], shapes: list[Mapping[str, int]]) -> Reading:
    """Return how to read the rows of a tile and of the next pass, of the rows that are left.

    Parameters
    ----------
    shapes
        Columns and depth of the weights at which the rule is tried.

    Raises
    ------
    SourceError
        The loop is not of the known form.
    """
    path, node = only_function(files, LOOP)
    alone = {path: cut(files[path], node, _kept(path, node), _PASS)}
    return Reading(
        "marlin",
        *cpp_program(CppFiles(alone, quoted=files), LOOP, leaves=LEAVES),
        axis="rows",
        contexts=[{"columns": each["columns"], "activation_bits": 16} for each in shapes],
        whole=False,
        least={"rows": 1},
    )


def _kept(path: str, function: Node) -> list[Node]:
    """Return what the loop does first: statements up to the size of a block, then settled."""
    statements = _statements(part(function, "body"))
    ends = [place for place, each in enumerate(statements, start=1) if _LAST in declared(each)]
    if len(ends) != 1:
        raise SourceError(f"{path}: {LOOP} declares {_LAST} {len(ends)} times", remedy=MOVED)
    later = _SETTLED & set().union(*map(assigned, statements[ends[0] :]))
    if later:
        raise SourceError(
            f"{path}: {LOOP} sets {' and '.join(sorted(later))} behind {_LAST}", remedy=MOVED
        )
    return [each for each in statements[: ends[0]] if (declared(each) | assigned(each)) & _NAMES]


def _statements(body: Node) -> list[Node]:
    """Return a block's statements, those of a loop over the rows that are left among them."""
    found: list[Node] = []
    for each in children(body):
        inner = each.child_by_field_name("body")
        looped = each.type == "while_statement" and "rest_m" in words(part(each, "condition"))
        found += _statements(inner) if looped and inner is not None else [each]
    return found
