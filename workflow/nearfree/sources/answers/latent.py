"""The tiles of a call of latent attention: of a named kernel, or of an engine's choice."""

from collections.abc import Sequence

from msgspec import Struct

from nearfree.core.modules.mla import NAIVE, MlaQuestion
from nearfree.errors import EvidenceError
from nearfree.sources.mla_paths import ENGINES, MlaPath, engine_paths, path_at
from nearfree.sources.mla_tiles import NAIVE_TILE, MlaTile, kernel_tile, measured_tile, sparse_tile

WIDE = ("bfloat16", "float16", "float32")
"""Formats of 16 bits or more."""


class LatentCall(Struct, frozen=True, kw_only=True):
    """One call: backend, heads per rank, and the GPU's compute capability.

    `kernel` is None if an engine chooses it. `selected` holds if an indexer selects the positions,
    `few_bits` if the cache has fewer than 16 bits per element.
    """

    backend: str
    backend_version: str | None
    kernel: str | None
    heads: int
    sm: int
    absorbed: bool
    cached: bool
    selected: bool = False
    few_bits: bool = False

    @classmethod
    def of(cls, question: MlaQuestion) -> "LatentCall":
        """Return the call of a question; EvidenceError if it names no compute capability."""
        if question.sm is None:
            raise EvidenceError(
                f"the GPU that {question.backend} runs on has no compute capability",
                remedy="Ask for a platform with `sm` in config/platforms.yaml",
            )
        return cls(
            backend=question.backend,
            backend_version=question.backend_version,
            kernel=question.kernel,
            heads=question.heads,
            sm=question.sm,
            absorbed=question.api != NAIVE,
            cached=question.context > 0,
            selected=question.selected is not None,
            few_bits=(question.kv_dtype or question.dtype) not in WIDE,
        )

    @property
    def paths(self) -> Sequence[MlaPath] | None:
        """An engine's kernels by positions; None if the backend does not choose by positions.

        Raises
        ------
        EvidenceError
            The release is not given, or its choice on such a GPU is unknown.
        """
        is_engine_choice = self.backend in ENGINES and self.kernel is None and self.absorbed
        if not is_engine_choice or self.selected:
            return None
        return engine_paths(self.backend, self.backend_version, self.sm, few_bits=self.few_bits)

    def tiles(self, grid: Sequence[int]) -> list[MlaTile]:
        """Return the tile at each number of positions; raises the errors of `paths`."""
        if self.selected:
            return [sparse_tile(heads=self.heads, sm=self.sm)] * len(grid)
        if self.paths is None:
            tile = measured_tile(
                self.backend, self.kernel, heads=self.heads, sm=self.sm, cached=self.cached,
                absorbed=self.absorbed,
            )  # fmt: skip
            return [tile] * len(grid)
        paths = (path_at(self.paths, positions) for positions in grid)
        return [
            kernel_tile(path.kernel, heads=self.heads, sm=self.sm) if path else NAIVE_TILE
            for path in paths
        ]

    def _path(self, positions: int) -> MlaPath | None:
        return None if self.paths is None else path_at(self.paths, positions)

    def place(self, positions: int) -> str:
        """Return the source of the kernel and of the tile at a number of positions."""
        (tile,) = self.tiles([positions])
        path = self._path(positions)
        return tile.place if path is None else f"{path.place}; {tile.place}"

    def last_alike(self, positions: int) -> tuple[float, str]:
        """Return the last N with the kernel and number of tiles of `positions`, and the source.

        Raises
        ------
        EvidenceError
            The call is not absorbed, or the release does not decode so many positions.
        """
        (tile,) = self.tiles([positions])
        if tile is NAIVE_TILE:
            raise EvidenceError(
                f"{self.backend} does not decode {positions} positions",
                remedy="Ask from a baseline that the release decodes",
            )
        count = -(-positions * tile.rows_per_position // tile.rows)
        tile_limit = count * tile.rows // tile.rows_per_position
        path = self._path(positions)
        path_limit = path.most if path and path.most else tile_limit
        return float(min(tile_limit, path_limit)), self.place(positions)
