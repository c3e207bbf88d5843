"""Machete: the tile of a product with 4- or 8-bit weights, from its generator's table.

The generator writes the dispatch from a table of conditions on M, N and K, which are tried in
order. The operands are swapped: rows of the input are on the tile's second axis.
"""

import ast
from collections.abc import Mapping

from nearfree.errors import MovedError
from nearfree.sources.language.program import Function, Text, at, made_function, set_origin
from nearfree.sources.language.python_source import Modules
from nearfree.sources.language.reading import Reading

TABLE = "default_tile_heuristic_config"
_INPUTS = {"M": "rows", "N": "columns", "K": "depth"}


def machete(files: Mapping[str, str], shapes: list[Mapping[str, int]]) -> Reading:
    """Return the reading of the rows of a tile."""
    modules = Modules(files)
    tables = [
        (path, node)
        for path, node in modules.nodes(ast.Assign)
        if ast.unparse(node.targets[0]) == TABLE
    ]
    if len(tables) != 1:
        raise MovedError(f"{TABLE} is set {len(tables)} times")
    ((path, node),) = tables
    return Reading(
        "machete",
        *modules.program_of(path, _first_match(path, node), {}),
        axis="rows",
        contexts=shapes,
        interpret_whole=False,
        minimums={"rows": 1},
    )


def _first_match(path: str, table: ast.Assign) -> Function:
    """Return a function that returns the rows of the first entry whose condition holds."""
    if not isinstance(table.value, ast.Dict):
        raise MovedError(f"{path}: {TABLE} is not a table")
    body: list[ast.stmt] = []
    for key, value in zip(table.value.keys, table.value.values, strict=True):
        answer = at(ast.Return(_rows(path, value)), value)
        if not isinstance(key, ast.Constant):
            raise MovedError(f"{path}: {TABLE} has a key that is not a string")
        if key.value is None:
            body.append(answer)
        else:
            body.append(at(ast.If(_condition(path, key), [answer], []), key))
    return made_function(TABLE, (), body, table)


def _rows(path: str, value: ast.expr) -> ast.expr:
    """Return the second size of a tile, `((128, 16), (1, 1, 1))`."""
    tile = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else None
    if not isinstance(tile, ast.Tuple) or len(tile.elts) != 2:
        raise MovedError(f"{path}: {ast.unparse(value)} is not a tile")
    return tile.elts[1]


def _condition(path: str, key: ast.Constant) -> ast.expr:
    """Return a condition in C++ as a Python expression."""
    try:
        tree = ast.parse(str(key.value).replace("&&", "and").replace("||", "or"), mode="eval").body
    except SyntaxError as error:
        raise MovedError(f"{path}: {key.value!r} is not a condition") from error
    text: Text = key.origin  # type: ignore[attr-defined]
    set_origin(tree, text)
    for node in ast.walk(tree):
        ast.copy_location(node, key)
        if isinstance(node, ast.Name):
            node.id = _INPUTS.get(node.id, node.id)
    return tree
