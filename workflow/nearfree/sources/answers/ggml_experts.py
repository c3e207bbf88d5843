"""ggml's passes over the weights of routed experts on a CPU, by the number of an expert's rows.

The rows of a forward's b N tokens are sorted by expert, and each expert with rows is multiplied by
its own (`ggml_mul_mat_id`). Here rows are those of one expert.
"""

from collections.abc import Callable

from nearfree.sources.answers.ggml import Passes, Product

EXPERT_PATH = "expert_"
"""What the names of paths of experts' products begin with."""
EXPERT_ORDER = "mechanism_expert_order"


class ExpertProduct(Product):
    """The rules of one release, specialised for one expert's matrix.

    `windows` of its passes is the number of times that its weights come from memory: once, or once
    for the rows of a block or window. The errors are those of `Product`.
    """

    order_rule = EXPERT_ORDER

    def _ways(self) -> dict[str, Callable[[int], list[Passes] | None]]:
        return {
            "repack": self._repacked,
            "tiled": self._tiled,
            "panels": self._panels,
            "vector": self._vector,
        }

    def _repacked(self, rows: int) -> list[Passes] | None:
        """Return the passes over repacked weights: one for each row, or for each few."""
        kernel, kernel_place = self._repack_kernel()
        if not kernel:
            return None
        holds, rows_place = self._evaluate("expert_repack_rows", {})
        return [
            Passes(
                path=f"{EXPERT_PATH}gemv", kernel=kernel, holds=holds, serves=rows,
                times=-(-rows // holds), places=(rows_place, kernel_place), windows=1,
            )
        ]  # fmt: skip

    def _tiled(self, rows: int) -> list[Passes] | None:
        """Return the passes of the tiled kernel; None if the release does not take it."""
        inputs = {"weight": self._weight, "repacked": False, "rows": rows}
        is_tiled, tiled_place = self._evaluate("expert_tiled", inputs)
        if not is_tiled:
            return None
        tile_rows, micro_place = self._evaluate("tiled_micro", {})
        window_rows, window_place = self._evaluate("expert_tiled_window", {})
        return [
            Passes(
                path=f"{EXPERT_PATH}tiled", kernel="microtile", holds=tile_rows, serves=rows,
                times=-(-rows // tile_rows), places=(micro_place, tiled_place, window_place),
                windows=-(-rows // window_rows),
            )
        ]  # fmt: skip

    def _vector(self, rows: int) -> list[Passes]:
        """Return the passes of dot products, the path for all other experts."""
        _, place = self._activation()
        (block_rows, dot_rows), block_place = self._evaluate("expert_block", {})
        return [
            Passes(
                path=f"{EXPERT_PATH}vector", kernel="vec_dot", holds=dot_rows, serves=rows,
                times=-(-rows // dot_rows), places=(block_place, place),
                windows=-(-rows // block_rows),
            )
        ]  # fmt: skip
