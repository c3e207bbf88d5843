"""How ggml takes the rows of a product on a CPU: its passes over the weights, as a release says.

The rows are those of activations, positions of all requests together. A pass streams the weights
once past the rows that it holds; the matrix is of `columns` outputs by `depth` inputs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nearfree.errors import ConfigError, EvidenceError
from nearfree.sources.answers.ggml_cpu import UNREAD, facts_of, with_implied
from nearfree.sources.answers.ggml_passes import (
    TYPES,
    Passes,
    Place,
    ProductQuery,
    Step,
    changed,
)
from nearfree.sources.extraction import Extraction
from nearfree.sources.language.rule import Answer

ORDER, PANELS = "mechanism_order", "mechanism_panels"
_FLOATS, _BLOCKS = "tinyBLAS", "tinyBLAS_Q0_AVX"


class Product:
    """The rules of one release, ready for one matrix.

    Raises
    ------
    ConfigError
        The weights' type is none whose rules are read.
    EvidenceError
        The CPU or the type has kernels that are not read.
    """

    def __init__(self, extraction: Extraction, query: ProductQuery) -> None:
        if query.weight.lower() not in TYPES:
            raise ConfigError(
                f"no rules of weights of the type {query.weight!r} are read",
                remedy=f"Choose from {', '.join(TYPES)}; a file of mixed types has several",
            )
        self.query = query
        self.rules = extraction.by_name()
        self._who = f"{extraction.package} {extraction.version}"
        self._weight = TYPES[query.weight.lower()]
        self._facts = facts_of(query.flags)
        unread = sorted(with_implied(query.flags) & UNREAD)
        if unread and query.repack:
            raise EvidenceError(
                f"{self._who} has kernels for {unread[0]} that are not read",
                remedy="Ask without repacked weights, or for another CPU",
            )
        order = self._answer(ORDER, {})
        self._order = order.value.split(", ")
        self._ways: dict[str, Callable[[int], list[Passes] | None]] = {
            "repack": self._repacked,
            "tiled": self._tiled,
            "sgemm": self._sgemm,
            "panels": self._panels,
            "vector": self._vector,
        }
        self._passes: dict[int, tuple[Passes, ...]] = {}

    def passes(self, rows: int) -> tuple[Passes, ...]:
        """Return the passes that some rows take, in their order."""
        if rows not in self._passes:
            for way in self._order:
                found = self._ways[way](rows)
                if found is not None:
                    served = sum(each.serves for each in found)
                    if served != rows:
                        raise EvidenceError(
                            f"{self._who}: {way} serves {served} of {rows} rows", remedy="Report it"
                        )
                    self._passes[rows] = tuple(found)
                    break
            else:
                raise EvidenceError(f"{self._who} has no way for {rows} rows", remedy="Report it")
        return self._passes[rows]

    def steps(self, most: int) -> list[Step]:
        """Return every number of rows up to `most` at which the passes change."""
        found = []
        for rows in range(2, most + 1):
            before, after = self.passes(rows - 1), self.passes(rows)
            if [each.kind() for each in before] != [each.kind() for each in after]:
                new, rule = changed(before, after)
                step = Step(
                    rows=rows,
                    rule=rule,
                    path=new.path,
                    before=sum(each.times for each in before),
                    after=sum(each.times for each in after),
                    places=new.places,
                )
                found.append(step)
        return found

    def _answer(self, name: str, known: Mapping[str, Any]) -> Answer:
        if name not in self.rules:
            raise EvidenceError(
                f"{self._who} states no rule {name}", remedy="Ask for another release"
            )
        return self.rules[name].value({**self._facts, **known})

    def _repacked(self, rows: int) -> list[Passes] | None:
        known = {"weight": self._weight, "columns": self.query.columns}
        if not self.query.repack:
            return None
        chosen = self._answer("repack", known)
        if not chosen.value:
            return None
        kernel, both = chosen.value, self._answer("repack_rows", {"rows": rows})
        several, single = both.value
        places = (("repack_rows", both.branch), ("repack", chosen.branch))
        found = list(self._gemm(kernel, several, places)) if several else []
        if single:
            found.append(
                Passes(
                    path="repack_gemv", kernel=kernel, holds=1, serves=single, times=single,
                    places=places,
                )
            )  # fmt: skip
        return found

    def _gemm(self, kernel: str, rows: int, places: tuple[Place, ...]) -> Iterator[Passes]:
        done, name = 0, f"repack_gemm_{kernel}"
        while True:
            answer = self._answer(name, {"rows": rows, "done": done})
            if answer.value is None:
                raise EvidenceError(
                    f"{self._who}: no rows of {kernel} are read for this CPU", remedy="Report it"
                )
            if not answer.value:
                return
            step, limit, group = answer.value
            yield Passes(
                path="repack_gemm",
                kernel=kernel,
                holds=step * group,
                serves=(limit - done) * group,
                times=(limit - done) // step,
                places=((name, answer.branch), *places),
            )
            done = limit

    def _tiled(self, rows: int) -> list[Passes] | None:
        # Weights that are not repacked come here, whatever was asked for.
        taken = self._answer("tiled", {"weight": self._weight, "repacked": False, "rows": rows})
        if not taken.value:
            return None
        micro, windows = self._answer("tiled_micro", {}), self._answer("tiled_window", {})
        edge, window = micro.value, windows.value
        chunk, size = 0, 0
        while not size:
            known = {"chunk": chunk, "columns": self.query.columns, "rows": rows}
            divided = self._answer("tiled_chunk", known | {"threads": self.query.threads})
            chunk, size = divided.value
        parts = [min(size, rows - first) for first in range(0, rows, size)]
        parts = [min(window, each - w) for each in parts for w in range(0, each, window)]
        times = sum(-(-each // edge) for each in parts)
        places = (
            ("tiled_micro", micro.branch),
            ("tiled", taken.branch),
            ("tiled_chunk", divided.branch),
            ("tiled_window", windows.branch),
        )
        return [
            Passes(
                path="tiled", kernel="microtile", holds=edge, serves=rows, times=times,
                places=places, windows=len(parts),
            )
        ]  # fmt: skip

    def _sgemm(self, rows: int) -> list[Passes] | None:
        # It is tried with the rows as they come, and again as they are quantised.
        for activation in ("F32", self._activation().value[0]):
            known = {"weight": self._weight, "activation": activation, "rows": rows}
            chosen = self._answer("sgemm", known)
            if not chosen.value:
                continue
            kernel, step = chosen.value
            place: Place = ("sgemm", chosen.branch)
            if kernel not in {_FLOATS, _BLOCKS}:
                raise EvidenceError(f"{self._who}: {kernel} is not read", remedy="Report it")
            found = (
                self._floats(rows, step, place) if kernel == _FLOATS else self._blocks(rows, place)
            )
            if found is not None:
                return found
        return None

    def _floats(self, rows: int, step: int, place: Place) -> list[Passes] | None:
        query = self.query
        known = {"rows": rows, "columns": query.columns, "depth": query.depth, "step": step}
        tile = self._answer("float_tile", known | {"threads": query.threads})
        if not tile.value:
            return None
        width = tile.value[1]
        split = self._answer("float_split", {"rows": rows, "tile": width})
        tiles, full, smaller = split.value
        times = full // width
        places = (("float_tile", tile.branch), ("float_split", split.branch), place)
        return [
            Passes(
                path="sgemm", kernel=f"{_FLOATS}<{step}>", holds=holds, serves=holds * number,
                times=number, places=places,
            )
            for holds, number in ((width, times), (smaller, tiles - times))
            if number
        ]  # fmt: skip

    def _blocks(self, rows: int, place: Place) -> list[Passes]:
        found, left = [], rows
        while left:
            tile = self._answer("block_tile", {"rows": left, "columns": self.query.columns})
            holds, taken = tile.value
            if not 0 < taken <= left:
                raise EvidenceError(
                    f"{self._who}: a pass takes {taken} of {left} rows", remedy="Report it"
                )
            found.append(
                Passes(
                    path="sgemm", kernel=_BLOCKS, holds=holds, serves=taken, times=taken // holds,
                    places=(("block_tile", tile.branch), place),
                )
            )  # fmt: skip
            left -= taken
        return found

    def _panels(self, rows: int) -> None:
        del rows
        if self._weight in self._answer(PANELS, {}).value.split(", "):
            raise EvidenceError(
                f"{self._who} takes {self._weight} by panels, which are not read",
                remedy="Ask for another type",
            )

    def _activation(self) -> Answer:
        return self._answer("vector", {"weight": self._weight})

    def _vector(self, rows: int) -> list[Passes]:
        answer = self._activation()
        if not answer.value:
            raise EvidenceError(
                f"{self._who} has no dot product of {self._weight}", remedy="Ask for another type"
            )
        held, block = answer.value[1], self._answer("vector_block", {})
        return [
            Passes(
                path="vector", kernel="vec_dot", holds=held, serves=rows, times=-(-rows // held),
                places=(("vector", answer.branch), ("vector_block", block.branch)),
            )
        ]  # fmt: skip
