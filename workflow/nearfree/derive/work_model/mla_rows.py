"""Kernels and tiles of latent attention for questions: of a named kernel, or an engine's choice."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nearfree.core.modules.mla import NAIVE
from nearfree.derive.work_model.family import Array
from nearfree.errors import NearfreeError
from nearfree.sources.mla_paths import ENGINES, MlaPath, engine_paths, path_at
from nearfree.sources.mla_tiles import NAIVE_TILE, MlaTile, kernel_tile, measured_tile

SIZES = ("tile_rows", "rows_per_position", "row_axes", "naive")
"""What a tile gives a form: its rows, those of a position, row axes, and whether latents are first
widened to keys and values of each head."""


class _Call(NamedTuple):
    """What the kernel of a question follows from."""

    backend: str
    backend_version: str | None
    kernel: str | None
    heads: int
    sm: int
    api: str | None
    context: int

    @property
    def paths(self) -> Sequence[MlaPath] | None:
        """An engine's kernels by positions, None where the question names a kernel."""
        if self.backend not in ENGINES or self.kernel is not None or self.api == NAIVE:
            return None
        return engine_paths(self.backend, self.backend_version, self.sm)

    def tiles(self, grid: Sequence[int]) -> list[MlaTile]:
        """Return the tile at each number of positions."""
        paths = self.paths
        if paths is None:
            return [self._named()] * len(grid)
        found = {n: path_at(paths, n) for n in {*grid}}
        of = {
            n: NAIVE_TILE if path is None else kernel_tile(path.kernel, heads=self.heads,
                                                           sm=self.sm)
            for n, path in found.items()
        }  # fmt: skip
        return [of[n] for n in grid]

    def _named(self) -> MlaTile:
        return measured_tile(
            self.backend, self.kernel, heads=self.heads, sm=self.sm, cached=self.context > 0,
            absorbed=self.api != NAIVE,
        )  # fmt: skip

    def place(self, positions: int) -> str:
        """Return where the kernel at a number of positions stands, and how it tiles."""
        (tile,) = self.tiles([positions])
        path = None if self.paths is None else path_at(self.paths, positions)
        return tile.place if path is None else f"{path.place}; {tile.place}"


def _calls(rows: pl.DataFrame) -> list[_Call]:
    return [_Call(*row) for row in rows.select(_Call._fields).iter_rows()]


def mla_tiles(rows: pl.DataFrame, n: Array) -> tuple[dict[str, Array], list[str | None]]:
    """Return SIZES by name, [rows, grid], and of each row None or what is not known.

    Parameters
    ----------
    rows
        Questions of latent attention with the facts of their platform.
    n
        Their grids, [rows, grid].
    """
    sizes = np.ones((len(SIZES), *n.shape))
    refused: list[str | None] = []
    known: dict[tuple[object, ...], list[MlaTile] | str] = {}
    for place, (call, grid) in enumerate(zip(_calls(rows), n.astype(int).tolist(), strict=True)):
        key = (*call[:-1], call.context > 0, tuple(grid) if call.backend in ENGINES else len(grid))
        if key not in known:
            try:
                known[key] = call.tiles(grid)
            except NearfreeError as error:
                known[key] = error.what
        tiles = known[key]
        if isinstance(tiles, str):
            refused.append(tiles)
            continue
        refused.append(None)
        sizes[:, place] = np.array(
            [(each.rows, each.rows_per_position, 1 if each.shared else call.heads,
              each is NAIVE_TILE) for each in tiles]
        ).T  # fmt: skip
    return dict(zip(SIZES, sizes, strict=True)), refused


def mla_kernels(rows: pl.DataFrame) -> list[str]:
    """Return the kernel that decodes one position of each question, by the name of its tile."""
    return [call.tiles([1])[0].path for call in _calls(rows)]


def mla_places(rows: pl.DataFrame, positions: Sequence[int]) -> list[str]:
    """Return where the kernel and the tile of questions stand, at so many positions each."""
    return [call.place(n) for call, n in zip(_calls(rows), positions, strict=True)]
