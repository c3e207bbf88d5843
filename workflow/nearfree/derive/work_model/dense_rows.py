"""How the dense products of questions take their rows, where an engine's rules say it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from nearfree.backends.records import backends_of
from nearfree.core.modules.dense_ffn import DenseQuestion
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.family import Array, Features
from nearfree.errors import NearfreeError

ENGINES = [name for name, backend in backends_of("gemm").items() if backend.rules]
"""The backends whose rules speak of dense products."""


def dense_sizes(rows: pl.DataFrame, n: Array, resolver: Resolver) -> dict[str, Array]:
    """Return the rows of all tiles and the passes over the weights, by product of the module.

    Parameters
    ----------
    rows
        Questions of `gemm`, or of `dense_ffn`: one module at a time.
    n
        Their grids, [rows, grid].

    Returns
    -------
    `padded_0` and `passes_0` of the first product, and so on, [rows, grid], with NaN where no rule
    says them; and over the products `row_tile` and `weight_passes`, the largest, with 0
    there. Nothing where no question is of an engine with such rules.
    """
    if not rows["backend"].is_in(ENGINES).any():
        return {}
    count = 2 if rows["module"][0] == "dense_ffn" else 1
    tokens = (rows["batch"].to_numpy()[:, None] * n).astype(np.int64)
    sizes = np.full((count, 3, *n.shape), np.nan)
    for place, row in enumerate(rows.iter_rows(named=True)):
        for number, asked in enumerate(dense_questions(row)):
            try:
                steps = resolver.dense(asked)
                found = [steps.at(each) for each in tokens[place].tolist()]
            except NearfreeError:
                continue  # its tile is a hypothesis, and the answer's evidence says why
            sizes[number, :, place] = np.array(
                [(each.padded, each.passes, each.value) for each in found]
            ).T
    named = {
        f"{name}_{number}": sizes[number, part]
        for number in range(count)
        for part, name in enumerate(("padded", "passes"))
    }
    known = np.nan_to_num(sizes)
    return named | {"weight_passes": known[:, 1].max(axis=0), "row_tile": known[:, 2].max(axis=0)}


def without_rules(features: Features) -> Features:
    """Return the features of products without what an engine's rules say of their rows.

    So were constants and residuals of measured products made: curves of the engine's own kernels
    have the steps of its rules, and a form that said them, too, would count them twice.
    """
    ruled = ("padded_", "passes_")
    return {name: each for name, each in features.items() if not name.startswith(ruled)}


def dense_place(row: Mapping[str, Any], tokens: int, resolver: Resolver) -> str | None:
    """Return where the rows of a question's products stand, or why they do not.

    Parameters
    ----------
    row
        A question with the facts of its platform.
    tokens
        Rows of its input.

    Returns
    -------
    File, lines and digest of each product's rule; None where no engine is asked about.
    """
    places = []
    for asked in dense_questions(row):
        try:
            places.append(resolver.dense(asked).evidence(tokens))
        except NearfreeError as error:
            places.append(f"no rule, tiles of 16 to 128 rows assumed: {error.what}")
    return "; ".join(dict.fromkeys(places)) or None


def dense_questions(row: Mapping[str, Any]) -> Iterator[DenseQuestion]:
    """Yield a module's products as an engine runs them, which merges the two of a gated FFN."""
    if row["backend"] not in ENGINES:
        return
    sides = [(row["d_model"], row["d_ff"])]
    if row["module"] == "dense_ffn":
        width = row["d_ff"] * (2 if row["gated"] else 1)
        sides = [(row["d_model"], width), (row["d_ff"], row["d_model"])]
    for depth, columns in sides:
        yield DenseQuestion(
            backend=row["backend"],
            backend_version=row["backend_version"],
            dtype=row["dtype"],
            weights=row["weights"],
            columns=columns,
            depth=depth,
            sm=row["sm"],
            sm_count=row["sm_count"],
            kernel=row.get("dense_kernel"),
        )
