"""ggml's passes over the weights of a product on a CPU, by the number of rows.

Rows are those of the activations: the positions of all requests together. A pass streams the
weights once for the rows that it holds. The matrix has `columns` outputs and `depth` inputs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.events import Branch
from nearfree.sources.answers.ggml_cpu import UNREAD, facts_of, with_implied
from nearfree.sources.extraction import Extraction

ORDER, PANELS = "mechanism_order", "mechanism_panels"
_FLOATS, _BLOCKS = "tinyBLAS", "tinyBLAS_Q0_AVX"
TYPES = {
    name.lower(): name
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K",
                 "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S",
                 "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
}  # fmt: skip
"""Types of weights, by their names in lower case."""
RuleBranch = tuple[str, Branch]
"""A rule's name, and its branch that applies."""
CHOOSING = frozenset(
    {"repack_rows", "tiled", "expert_tiled", "sgemm", "vector", "product", "experts"}
)
"""Rules that set the number of rows from which a path is taken, on CPUs and GPUs."""


class ProductQuery(Struct, frozen=True, kw_only=True):
    """A matrix of weights on a CPU.

    `weight` is its type as users spell it, `flags` the CPU flags that the library is compiled for,
    `repack` whether weights may be repacked (`use_extra_bufts`), `threads` the number of threads
    that share a product.
    """

    weight: str
    columns: int
    depth: int
    flags: frozenset[str]
    threads: int = 1
    repack: bool = True


class Passes(Struct, frozen=True, kw_only=True):
    """Passes of one kind: `times` of them, each holding up to `holds` rows, `serves` in total.

    `windows` is the number of times that they unpack the weights, or read an expert's from memory,
    if that is not once per pass.
    Numbers are whole, but for experts they are expectations.
    """

    path: str
    kernel: str
    holds: int
    serves: float
    times: float
    places: tuple[RuleBranch, ...]
    windows: float | None = None

    @property
    def unpacked(self) -> float:
        """The number of times that the weights are unpacked."""
        return self.times if self.windows is None else self.windows

    def kind(self) -> tuple[str, str, int, float]:
        """Return the values whose change is a step."""
        return self.path, self.kernel, self.holds, self.times


class RowProduct(Protocol):
    """The rules of one matrix's product, on a CPU or a GPU."""

    def passes(self, rows: int) -> tuple[Passes, ...]:
        """Return the passes that a number of rows takes, in their order."""


class Step(Struct, frozen=True, kw_only=True):
    """A number of rows at which the passes differ from those of one row less, and its rule.

    `before` and `after` are the numbers of passes; `places` are the rules of the new passes, each
    with its branch that applies.
    """

    rows: int
    rule: str
    path: str
    before: float
    after: float
    places: tuple[RuleBranch, ...]


def step_to(rows: int, before: tuple[Passes, ...], after: tuple[Passes, ...]) -> Step:
    """Return the step to the passes `after` of some rows from the passes `before` it.

    It is that of the first new path, else of the first new kind of passes, else of the first
    dropped one. If the path changes, the rule that chooses the path decides.
    """
    kinds_before, kinds_after = ([item.kind() for item in passes] for passes in (before, after))
    former_paths = {item.path for item in before}
    candidates = (
        *(item for item in after if item.path not in former_paths),
        *(item for item in after if item.kind() not in kinds_before),
        *(item for item in before if item.kind() not in kinds_after),
        after[0],
    )
    subject = candidates[0]
    names = [name for name, _ in subject.places]
    is_new_path = subject.path not in former_paths
    choosing = [name for name in names if is_new_path and name in CHOOSING]
    return Step(
        rows=rows,
        rule=(choosing or names)[0],
        path=subject.path,
        before=sum(item.times for item in before),
        after=sum(item.times for item in after),
        places=subject.places,
    )


class Product:
    """The rules of one release, specialised for one matrix.

    Raises
    ------
    ConfigError
        The rules of the weights' type are not read.
    EvidenceError
        The CPU or the type has kernels whose rules are not read.
    """

    order_rule = ORDER

    def __init__(self, extraction: Extraction, query: ProductQuery) -> None:
        if query.weight.lower() not in TYPES:
            raise ConfigError(
                f"no rules of weights of the type {query.weight!r} are read",
                remedy=f"Choose from {', '.join(TYPES)}; a file of mixed types has several",
            )
        self.query = query
        self.rules = extraction.by_name()
        self._release = f"{extraction.package} {extraction.version}"
        self._weight = TYPES[query.weight.lower()]
        self._facts = facts_of(query.flags)
        unread = sorted(with_implied(query.flags) & UNREAD)
        if unread and query.repack:
            raise EvidenceError(
                f"{self._release} has kernels for {unread[0]} that are not read",
                remedy="Ask without repacked weights, or for another CPU",
            )
        self._order = self._evaluate(self.order_rule, {})[0].split(", ")
        self._paths = self._ways()
        self._passes: dict[int, tuple[Passes, ...]] = {}

    def _ways(self) -> dict[str, Callable[[int], list[Passes] | None]]:
        """Return the function of each path: passes of a number of rows, None for another path."""
        return {
            "repack": self._repacked,
            "tiled": self._tiled,
            "sgemm": self._sgemm,
            "panels": self._panels,
            "vector": self._vector,
        }

    def passes(self, rows: int) -> tuple[Passes, ...]:
        """Return the passes that a number of rows takes, in their order."""
        if rows not in self._passes:
            self._passes[rows] = tuple(self._passes_of(rows))
        return self._passes[rows]

    def _passes_of(self, rows: int) -> list[Passes]:
        for path in self._order:
            passes = self._paths[path](rows)
            if passes is not None:
                served = sum(kind.serves for kind in passes)
                if served != rows:
                    raise EvidenceError(
                        f"{self._release}: {path} serves {served} of {rows} rows",
                        remedy="Report it",
                    )
                return passes
        raise EvidenceError(f"{self._release} has no path for {rows} rows", remedy="Report it")

    def steps(self, most: int) -> list[Step]:
        """Return every number of rows up to `most` at which the passes change."""
        steps = []
        for rows in range(2, most + 1):
            before, after = self.passes(rows - 1), self.passes(rows)
            if [item.kind() for item in before] != [item.kind() for item in after]:
                steps.append(step_to(rows, before, after))
        return steps

    def _evaluate(self, name: str, inputs: Mapping[str, Any]) -> tuple[Any, RuleBranch]:
        """Return a rule's value for this CPU, and the rule with its branch that gives it."""
        if name not in self.rules:
            raise EvidenceError(
                f"{self._release} states no rule {name}", remedy="Ask for another release"
            )
        answer = self.rules[name].value({**self._facts, **inputs})
        return answer.value, (name, answer.branch)

    def _repacked(self, rows: int) -> list[Passes] | None:
        """Return the passes over repacked weights: GEMM for groups of rows, GEMV for the rest."""
        kernel, kernel_place = self._repack_kernel()
        if not kernel:
            return None
        (gemm_rows, gemv_rows), rows_place = self._evaluate("repack_rows", {"rows": rows})
        places = (rows_place, kernel_place)
        passes = list(self._gemm(kernel, gemm_rows, places)) if gemm_rows else []
        if gemv_rows:
            passes.append(
                Passes(
                    path="repack_gemv", kernel=kernel, holds=1, serves=gemv_rows, times=gemv_rows,
                    places=places,
                )
            )  # fmt: skip
        return passes

    def _repack_kernel(self) -> tuple[str, RuleBranch]:
        """Return the layout of repacked weights, empty if the release does not repack them."""
        inputs = {"weight": self._weight, "columns": self.query.columns}
        kernel, place = self._evaluate("repack", inputs)
        return (kernel if self.query.repack else ""), place

    def _gemm(self, kernel: str, rows: int, places: tuple[RuleBranch, ...]) -> Iterator[Passes]:
        """Yield the passes of a repacked GEMM kernel, in its order."""
        rows_done, rule_name = 0, f"repack_gemm_{kernel}"
        while True:
            answer, place = self._evaluate(rule_name, {"rows": rows, "done": rows_done})
            if answer is None:
                raise EvidenceError(
                    f"{self._release}: no rows of {kernel} are read for this CPU",
                    remedy="Report it",
                )
            if not answer:
                return
            row_step, limit, group = answer
            yield Passes(
                path="repack_gemm",
                kernel=kernel,
                holds=row_step * group,
                serves=(limit - rows_done) * group,
                times=(limit - rows_done) // row_step,
                places=(place, *places),
            )
            rows_done = limit

    def _tiled(self, rows: int) -> list[Passes] | None:
        """Return the passes of the tiled kernel; None if the release does not take it."""
        # This path takes weights that are not repacked, even if repacking is allowed.
        is_tiled, tiled_place = self._evaluate(
            "tiled", {"weight": self._weight, "repacked": False, "rows": rows}
        )
        if not is_tiled:
            return None
        tile_rows, micro_place = self._evaluate("tiled_micro", {})
        window_rows, window_place = self._evaluate("tiled_window", {})
        chunk, chunk_rows = 0, 0
        while not chunk_rows:
            inputs = {"chunk": chunk, "columns": self.query.columns, "rows": rows}
            (chunk, chunk_rows), chunk_place = self._evaluate(
                "tiled_chunk", inputs | {"threads": self.query.threads}
            )
        parts = [min(chunk_rows, rows - first) for first in range(0, rows, chunk_rows)]
        parts = [
            min(window_rows, part - start)
            for part in parts
            for start in range(0, part, window_rows)
        ]
        times = sum(-(-part // tile_rows) for part in parts)
        return [
            Passes(
                path="tiled", kernel="microtile", holds=tile_rows, serves=rows, times=times,
                places=(micro_place, tiled_place, chunk_place, window_place), windows=len(parts),
            )
        ]  # fmt: skip

    def _sgemm(self, rows: int) -> list[Passes] | None:
        """Return the passes of llamafile's SGEMM; None if it takes no such product."""
        # ggml tries it with the original rows, then with the quantised ones.
        for activation in ("F32", self._activation()[0][0]):
            inputs = {"weight": self._weight, "activation": activation, "rows": rows}
            answer, place = self._evaluate("sgemm", inputs)
            if not answer:
                continue
            kernel, step = answer
            if kernel not in {_FLOATS, _BLOCKS}:
                raise EvidenceError(f"{self._release}: {kernel} is not read", remedy="Report it")
            passes = (
                self._floats(rows, step, place) if kernel == _FLOATS else self._blocks(rows, place)
            )
            if passes is not None:
                return passes
        return None

    def _floats(self, rows: int, step: int, place: RuleBranch) -> list[Passes] | None:
        """Return the passes of the kernel for floats; None if it has no tile for the matrix."""
        query = self.query
        inputs = {"rows": rows, "columns": query.columns, "depth": query.depth, "step": step}
        tile, tile_place = self._evaluate("float_tile", inputs | {"threads": query.threads})
        if not tile:
            return None
        tile_rows = tile[1]
        split, split_place = self._evaluate("float_split", {"rows": rows, "tile": tile_rows})
        tiles, rows_in_full_tiles, small_tile_rows = split
        full_tiles = rows_in_full_tiles // tile_rows
        return [
            Passes(
                path="sgemm", kernel=f"{_FLOATS}<{step}>", holds=holds, serves=holds * count,
                times=count, places=(tile_place, split_place, place),
            )
            for holds, count in ((tile_rows, full_tiles), (small_tile_rows, tiles - full_tiles))
            if count
        ]  # fmt: skip

    def _blocks(self, rows: int, place: RuleBranch) -> list[Passes]:
        """Return the passes of the kernel for quantised blocks, tile by tile."""
        passes, rows_left = [], rows
        while rows_left:
            (holds, rows_taken), tile_place = self._evaluate(
                "block_tile", {"rows": rows_left, "columns": self.query.columns}
            )
            if not 0 < rows_taken <= rows_left:
                raise EvidenceError(
                    f"{self._release}: a pass takes {rows_taken} of {rows_left} rows",
                    remedy="Report it",
                )
            passes.append(
                Passes(
                    path="sgemm", kernel=_BLOCKS, holds=holds, serves=rows_taken,
                    times=rows_taken // holds, places=(tile_place, place),
                )
            )  # fmt: skip
            rows_left -= rows_taken
        return passes

    def _panels(self, rows: int) -> None:
        """Refuse a type that the release takes by panels, whose rules are not read."""
        del rows
        if self._weight in self._evaluate(PANELS, {})[0].split(", "):
            raise EvidenceError(
                f"{self._release} takes {self._weight} by panels, which are not read",
                remedy="Ask for another type, or for a release without panels, such as 0.3.36",
            )

    def _activation(self) -> tuple[Any, RuleBranch]:
        return self._evaluate("vector", {"weight": self._weight})

    def _vector(self, rows: int) -> list[Passes]:
        """Return the passes of dot products, the path for all other products."""
        activation, place = self._activation()
        if not activation:
            raise EvidenceError(
                f"{self._release} has no dot product of {self._weight}",
                remedy="Ask for another type",
            )
        rows_per_pass, (_, block_place) = activation[1], self._evaluate("vector_block", {})
        return [
            Passes(
                path="vector", kernel="vec_dot", holds=rows_per_pass, serves=rows,
                times=-(-rows // rows_per_pass), places=(place, block_place),
            )
        ]  # fmt: skip
