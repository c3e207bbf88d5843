"""ggml's passes over the weights of a product on a CPU, by the number of rows.

Rows are those of the activations: the positions of all requests together. A pass streams the
weights once for the rows that it holds. The matrix has `columns` outputs and `depth` inputs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nearfree.errors import ConfigError, EvidenceError
from nearfree.sources.answers.ggml_cpu import UNREAD, facts_of, with_implied
from nearfree.sources.answers.ggml_passes import (
    TYPES,
    Passes,
    ProductQuery,
    RuleBranch,
    Step,
    first_change,
)
from nearfree.sources.extraction import Extraction
from nearfree.sources.language.rule import Answer

ORDER, PANELS = "mechanism_order", "mechanism_panels"
_FLOATS, _BLOCKS = "tinyBLAS", "tinyBLAS_Q0_AVX"


class Product:
    """The rules of one release, specialised for one matrix.

    Raises
    ------
    ConfigError
        The rules of the weights' type are not read.
    EvidenceError
        The CPU or the type has kernels whose rules are not read.
    """

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
        order = self._evaluate(ORDER, {})
        self._order = order.value.split(", ")
        self._paths: dict[str, Callable[[int], list[Passes] | None]] = {
            "repack": self._repacked,
            "tiled": self._tiled,
            "sgemm": self._sgemm,
            "panels": self._panels,
            "vector": self._vector,
        }
        self._passes: dict[int, tuple[Passes, ...]] = {}

    def passes(self, rows: int) -> tuple[Passes, ...]:
        """Return the passes that a number of rows takes, in their order."""
        if rows not in self._passes:
            for path in self._order:
                passes = self._paths[path](rows)
                if passes is not None:
                    served = sum(kind.serves for kind in passes)
                    if served != rows:
                        raise EvidenceError(
                            f"{self._release}: {path} serves {served} of {rows} rows",
                            remedy="Report it",
                        )
                    self._passes[rows] = tuple(passes)
                    break
            else:
                raise EvidenceError(
                    f"{self._release} has no path for {rows} rows", remedy="Report it"
                )
        return self._passes[rows]

    def steps(self, most: int) -> list[Step]:
        """Return every number of rows up to `most` at which the passes change."""
        steps = []
        for rows in range(2, most + 1):
            before, after = self.passes(rows - 1), self.passes(rows)
            if [item.kind() for item in before] != [item.kind() for item in after]:
                new, rule = first_change(before, after)
                step = Step(
                    rows=rows,
                    rule=rule,
                    path=new.path,
                    before=sum(item.times for item in before),
                    after=sum(item.times for item in after),
                    places=new.places,
                )
                steps.append(step)
        return steps

    def _evaluate(self, name: str, inputs: Mapping[str, Any]) -> Answer:
        if name not in self.rules:
            raise EvidenceError(
                f"{self._release} states no rule {name}", remedy="Ask for another release"
            )
        return self.rules[name].value({**self._facts, **inputs})

    def _repacked(self, rows: int) -> list[Passes] | None:
        """Return the passes over repacked weights: GEMM for groups of rows, GEMV for the rest."""
        inputs = {"weight": self._weight, "columns": self.query.columns}
        if not self.query.repack:
            return None
        kernel_answer = self._evaluate("repack", inputs)
        if not kernel_answer.value:
            return None
        kernel, rows_answer = kernel_answer.value, self._evaluate("repack_rows", {"rows": rows})
        gemm_rows, gemv_rows = rows_answer.value
        places = (("repack_rows", rows_answer.branch), ("repack", kernel_answer.branch))
        passes = list(self._gemm(kernel, gemm_rows, places)) if gemm_rows else []
        if gemv_rows:
            passes.append(
                Passes(
                    path="repack_gemv", kernel=kernel, holds=1, serves=gemv_rows, times=gemv_rows,
                    places=places,
                )
            )  # fmt: skip
        return passes

    def _gemm(self, kernel: str, rows: int, places: tuple[RuleBranch, ...]) -> Iterator[Passes]:
        """Yield the passes of a repacked GEMM kernel, in its order."""
        rows_done, rule_name = 0, f"repack_gemm_{kernel}"
        while True:
            answer = self._evaluate(rule_name, {"rows": rows, "done": rows_done})
            if answer.value is None:
                raise EvidenceError(
                    f"{self._release}: no rows of {kernel} are read for this CPU",
                    remedy="Report it",
                )
            if not answer.value:
                return
            row_step, limit, group = answer.value
            yield Passes(
                path="repack_gemm",
                kernel=kernel,
                holds=row_step * group,
                serves=(limit - rows_done) * group,
                times=(limit - rows_done) // row_step,
                places=((rule_name, answer.branch), *places),
            )
            rows_done = limit

    def _tiled(self, rows: int) -> list[Passes] | None:
        """Return the passes of the tiled kernel; None if the release does not take it."""
        # This path takes weights that are not repacked, even if repacking is allowed.
        tiled_answer = self._evaluate(
            "tiled", {"weight": self._weight, "repacked": False, "rows": rows}
        )
        if not tiled_answer.value:
            return None
        micro_answer = self._evaluate("tiled_micro", {})
        window_answer = self._evaluate("tiled_window", {})
        tile_rows, window_rows = micro_answer.value, window_answer.value
        chunk, chunk_rows = 0, 0
        while not chunk_rows:
            inputs = {"chunk": chunk, "columns": self.query.columns, "rows": rows}
            chunk_answer = self._evaluate("tiled_chunk", inputs | {"threads": self.query.threads})
            chunk, chunk_rows = chunk_answer.value
        parts = [min(chunk_rows, rows - first) for first in range(0, rows, chunk_rows)]
        parts = [
            min(window_rows, part - start)
            for part in parts
            for start in range(0, part, window_rows)
        ]
        times = sum(-(-part // tile_rows) for part in parts)
        places = (
            ("tiled_micro", micro_answer.branch),
            ("tiled", tiled_answer.branch),
            ("tiled_chunk", chunk_answer.branch),
            ("tiled_window", window_answer.branch),
        )
        return [
            Passes(
                path="tiled", kernel="microtile", holds=tile_rows, serves=rows, times=times,
                places=places, windows=len(parts),
            )
        ]  # fmt: skip

    def _sgemm(self, rows: int) -> list[Passes] | None:
        """Return the passes of llamafile's SGEMM; None if it takes no such product."""
        # ggml tries it with the original rows, then with the quantised ones.
        for activation in ("F32", self._activation().value[0]):
            inputs = {"weight": self._weight, "activation": activation, "rows": rows}
            answer = self._evaluate("sgemm", inputs)
            if not answer.value:
                continue
            kernel, step = answer.value
            place: RuleBranch = ("sgemm", answer.branch)
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
        tile_answer = self._evaluate("float_tile", inputs | {"threads": query.threads})
        if not tile_answer.value:
            return None
        tile_rows = tile_answer.value[1]
        split_answer = self._evaluate("float_split", {"rows": rows, "tile": tile_rows})
        tiles, rows_in_full_tiles, small_tile_rows = split_answer.value
        full_tiles = rows_in_full_tiles // tile_rows
        places = (("float_tile", tile_answer.branch), ("float_split", split_answer.branch), place)
        return [
            Passes(
                path="sgemm", kernel=f"{_FLOATS}<{step}>", holds=holds, serves=holds * count,
                times=count, places=places,
            )
            for holds, count in ((tile_rows, full_tiles), (small_tile_rows, tiles - full_tiles))
            if count
        ]  # fmt: skip

    def _blocks(self, rows: int, place: RuleBranch) -> list[Passes]:
        """Return the passes of the kernel for quantised blocks, tile by tile."""
        passes, rows_left = [], rows
        while rows_left:
            answer = self._evaluate(
                "block_tile", {"rows": rows_left, "columns": self.query.columns}
            )
            holds, rows_taken = answer.value
            if not 0 < rows_taken <= rows_left:
                raise EvidenceError(
                    f"{self._release}: a pass takes {rows_taken} of {rows_left} rows",
                    remedy="Report it",
                )
            passes.append(
                Passes(
                    path="sgemm", kernel=_BLOCKS, holds=holds, serves=rows_taken,
                    times=rows_taken // holds, places=(("block_tile", answer.branch), place),
                )
            )  # fmt: skip
            rows_left -= rows_taken
        return passes

    def _panels(self, rows: int) -> None:
        """Refuse a type that the release takes by panels, whose rules are not read."""
        del rows
        if self._weight in self._evaluate(PANELS, {}).value.split(", "):
            raise EvidenceError(
                f"{self._release} takes {self._weight} by panels, which are not read",
                remedy="Ask for another type",
            )

    def _activation(self) -> Answer:
        return self._evaluate("vector", {"weight": self._weight})

    def _vector(self, rows: int) -> list[Passes]:
        """Return the passes of dot products, the path for all other products."""
        answer = self._activation()
        if not answer.value:
            raise EvidenceError(
                f"{self._release} has no dot product of {self._weight}",
                remedy="Ask for another type",
            )
        rows_per_pass, block_answer = answer.value[1], self._evaluate("vector_block", {})
        return [
            Passes(
                path="vector", kernel="vec_dot", holds=rows_per_pass, serves=rows,
                times=-(-rows // rows_per_pass),
                places=(("vector", answer.branch), ("vector_block", block_answer.branch)),
            )
        ]  # fmt: skip
