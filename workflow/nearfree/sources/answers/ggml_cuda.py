"""ggml's kernels for a product on an NVIDIA GPU, by the number of rows.

Rows are those of the activations: the positions of all requests together, for experts the tokens. A
pass streams a matrix once for the columns that a kernel holds at once. The matrix has `columns`
outputs and `depth` inputs.
"""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from nearfree.errors import ConfigError, EvidenceError
from nearfree.gguf.types import BY_NAME
from nearfree.hardware.occupancy import smem_per_block
from nearfree.sources.answers.ggml import Passes, RuleBranch, Step, step_to
from nearfree.sources.extraction import Extraction

MMQ, UNREAD = "mmq", ("cublas", "sorted")
"""The kernel of tiles of quantised blocks, and the ways whose tiles are not read."""
TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K"),
    *("Q6_K", "IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("MXFP4", "NVFP4"),
)
"""Types of weights."""
_FLOATS = ("F32", "F16", "BF16")
_LEAST_SM = 75
LEAST_COLUMNS = 2
"""Fewest outputs of a matrix whose rules are read."""
_VARYING = frozenset({"rows", "width", "tiles"})
"""Inputs that differ from question to question about one matrix."""
_NO_WIDTH = (1 << 31) - 1
"""The number of tiles before a width is found, C's INT_MAX."""
_Tile = tuple[int, tuple[RuleBranch, ...]]
"""A width, and the rules by which a GPU can have it."""


class CudaQuery(Struct, frozen=True, kw_only=True):
    """A matrix of weights on an NVIDIA GPU, or with `routed` the matrices of experts.

    `weight` is its type as users spell it, `sm` the compute capability (90 for 9.0).
    """

    weight: str
    columns: int
    depth: int
    sm: int
    routed: bool = False


class Launch(Struct, frozen=True, kw_only=True):
    """How a number of rows is processed.

    `path` is ggml's name of the kernel. `holds` is the number of columns that it holds at once, and
    `passes` the number of its passes over the weights: over a `matrix`; over an `expert`'s at most;
    or, where each `token` reads its experts' weights on its own, the number of tokens. Both are
    None where a library's tiles are not read.
    """

    path: str
    holds: int | None
    passes: int | None
    per: Literal["matrix", "expert", "token"]
    places: tuple[RuleBranch, ...]

    def kind(self) -> tuple[object, ...]:
        """Return the values whose change is a step.

        Kernels for vectors are compiled for each number of columns: these are of one kind.
        """
        if self.per == "token":
            return self.path, self.per
        return self.path, self.per, self.passes, self.holds if self.path == MMQ else None


class CudaProduct:
    """The rules of one release, specialised for one matrix.

    Raises
    ------
    ConfigError
        The rules of the weights' type are not read, or the depth is no multiple of its blocks.
    EvidenceError
        The release has no kernels for the type, or its rules for the GPU are not read.
    """

    def __init__(self, extraction: Extraction, query: CudaQuery) -> None:
        self.query = query
        self.rules = extraction.by_name()
        self._release = f"{extraction.package} {extraction.version}"
        self._weight = _weight_type(query)
        if query.columns < LEAST_COLUMNS:
            raise EvidenceError(
                f"{self._release}: rules for a matrix of one output are not read",
                remedy=f"Ask for {LEAST_COLUMNS} outputs or more",
            )
        smem = smem_per_block(query.sm)
        if query.sm < _LEAST_SM or smem is None:
            raise EvidenceError(
                f"{self._release}: rules for compute capability {query.sm} are not read",
                remedy="Ask for a GPU of 7.5 to 12.1",
            )
        self._smem = smem
        self._facts = {
            "weight": self._weight,
            "cc": 10 * query.sm,
            "columns": query.columns,
            "depth": query.depth,
            "ids": query.routed,
        }
        self._launches: dict[int, Launch] = {}
        self._widths = () if self._weight in _FLOATS else self._tiles()

    def launch(self, rows: int) -> Launch:
        """Return how a number of rows is processed."""
        if rows not in self._launches:
            self._launches[rows] = self._launch(rows)
        return self._launches[rows]

    def passes(self, rows: int) -> tuple[Passes, ...]:
        """Return the same as passes of one kind; a library's call counts as one."""
        launch = self.launch(rows)
        holds, times = launch.holds or rows, launch.passes or 1
        kind = Passes(
            path=launch.path, kernel=launch.per, holds=holds, serves=rows, times=times,
            places=launch.places,
        )  # fmt: skip
        return (kind,)

    def steps(self, most: int) -> list[Step]:
        """Return every number of rows up to `most` at which the kind of a launch changes."""
        return [
            step_to(rows, self.passes(rows - 1), self.passes(rows))
            for rows in range(2, most + 1)
            if self.launch(rows - 1).kind() != self.launch(rows).kind()
        ]

    def _evaluate(self, name: str, inputs: Mapping[str, Any]) -> tuple[Any, RuleBranch]:
        """Return a rule's value for this matrix, and the rule with its branch that gives it."""
        if name not in self.rules:
            raise EvidenceError(
                f"{self._release} states no rule {name}", remedy="Ask for another release"
            )
        facts = {**self._facts, **inputs}
        answer = self.rules[name].narrowed(facts, _VARYING).value(facts)
        return answer.value, (name, answer.branch)

    def _launch(self, rows: int) -> Launch:
        routed = self.query.routed
        path, place = self._evaluate("experts" if routed else "product", {"rows": rows})
        per: Literal["matrix", "expert", "token"] = "expert" if routed else "matrix"
        if path in UNREAD:
            return Launch(path=path, holds=None, passes=None, per=per, places=(place,))
        if path == MMQ:
            width, tiles, places = self._narrowest(rows)
            return Launch(path=path, holds=width, passes=tiles, per=per, places=(*places, place))
        holds, columns_place = self._evaluate(f"{path}_columns", {"rows": rows})
        if not holds:
            raise EvidenceError(
                f"{self._release}: {path} has no kernel for {rows} rows", remedy="Report it"
            )
        by_token = routed and path == "mmvq"
        return Launch(
            path=path,
            holds=holds,
            passes=rows if by_token else -(-rows // holds),
            per="token" if by_token else per,
            places=(columns_place, place),
        )

    def _tiles(self) -> tuple[_Tile, ...]:
        """Return the widths of tiles that the GPU can have, in the order in which they are tried.

        A width that takes no fewer passes than one before is not taken, so none ends the search.
        """
        table, table_place = self._table()
        widths, threads, tile_rows, layout = table
        facts = {"threads": threads, "tile_rows": tile_rows, "layout": layout}
        tiles, width = [], 0
        while width := self._evaluate("mmq_next", {"width": width, "tiles": _NO_WIDTH})[0]:
            if width in widths:
                shared, shared_place = self._evaluate("mmq_shared", {"width": width, **facts})
                if shared <= self._smem:
                    tiles.append((width, (shared_place, table_place)))
        if not tiles:
            raise EvidenceError(
                f"{self._release} has no tile of {self._weight} for {self._smem} bytes of shared "
                "memory",
                remedy="Ask for another type or GPU",
            )
        return tuple(tiles)

    def _table(self) -> tuple[tuple[Any, ...], RuleBranch]:
        """Return the tiles of the type, by its capability's table or by one that this refers to."""
        fallback, place = self._evaluate("mmq_fallback", {})
        table, _ = self._evaluate("mmq_family", {})
        seen = set()
        while isinstance(table, str) and table not in seen:
            seen.add(table)
            table, place = self._evaluate(f"mmq_config_{table}", {"fallback": fallback})
        if not isinstance(table, tuple):
            raise EvidenceError(
                f"{self._release} has no tiles for {self._weight} on compute capability "
                f"{self.query.sm}",
                remedy="Ask for another type or release",
            )
        return table, place

    def _narrowest(self, rows: int) -> tuple[int, int, tuple[RuleBranch, ...]]:
        """Return the first width with the fewest tiles, their number, and the rules."""
        found = []
        for width, places in self._widths:
            tiles, place = self._evaluate("mmq_tiles", {"rows": rows, "width": width})
            found.append((tiles, width, (place, *places)))
        if not found:
            raise EvidenceError(
                f"{self._release} has no tile of {self._weight}", remedy="Report it"
            )
        tiles, width, places = min(found, key=lambda item: item[0])
        return width, tiles, places


def _weight_type(query: CudaQuery) -> str:
    name = query.weight.upper()
    if name not in TYPES:
        raise ConfigError(
            f"no rules of weights of the type {query.weight!r:.60} are read",
            remedy=f"Choose from {', '.join(TYPES)}; a file of mixed types has several",
        )
    block = BY_NAME[name.lower()].elements
    if query.depth % block:
        raise ConfigError(
            f"{name} is stored in blocks of {block} elements, and the depth {query.depth} is no "
            "multiple of them",
            remedy=f"Give a --d-model that {block} divides",
        )
    return name
