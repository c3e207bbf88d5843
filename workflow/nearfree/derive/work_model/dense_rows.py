"""Row tiles and weight passes of questions' dense products, by an engine's rules."""

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
    """Return the padded rows and the passes over the weights, per product of the module.

    Parameters
    ----------
    rows
        Questions of `gemm`, or of `dense_ffn`: one module at a time.
    n
        Their grids, [rows, grid].

    Returns
    -------
    `padded_0` and `passes_0` of the first product, and so on, [rows, grid], NaN without a rule; and
    `row_tile` and `weight_passes`, the largest over the products, 0 without a rule. Empty if no
    question is of an engine with such rules.
    """
    if not rows["backend"].is_in(ENGINES).any():
        return {}
    count = 2 if rows["module"][0] == "dense_ffn" else 1
    tokens = (rows["batch"].to_numpy()[:, None] * n).astype(np.int64)
    sizes = np.full((count, 3, *n.shape), np.nan)
    for index, row in enumerate(rows.iter_rows(named=True)):
        for number, question in enumerate(dense_questions(row)):
            try:
                steps = resolver.dense(question)
                choices = [steps.at(m) for m in tokens[index].tolist()]
            except NearfreeError:
                continue  # its tile is a hypothesis, and the answer's evidence gives the reason
            sizes[number, :, index] = np.array(
                [(choice.padded, choice.passes, choice.value) for choice in choices]
            ).T
    per_product = {
        f"{name}_{number}": sizes[number, part]
        for number in range(count)
        for part, name in enumerate(("padded", "passes"))
    }
    passes, tiles = (np.nan_to_num(sizes)[:, part].max(axis=0) for part in (1, 2))
    return per_product | {"weight_passes": passes, "row_tile": tiles}


def without_rules(features: Features) -> Features:
    """Return the features of products without those of an engine's rules.

    Constants and residuals of measured products were fitted so: curves of the engine's own kernels
    contain the steps of its rules, and a form with these rules would count the steps twice.
    """
    prefixes = ("padded_", "passes_")
    return {name: value for name, value in features.items() if not name.startswith(prefixes)}


def dense_place(row: Mapping[str, Any], tokens: int, resolver: Resolver) -> str | None:
    """Return the source of the rules of a question's products, or the reason without one.

    Parameters
    ----------
    row
        A question with the facts of its platform.
    tokens
        Rows of its input, b N.

    Returns
    -------
    File, lines and digest of each product's rule; None if the backend has no such rules.
    """
    sources = []
    for question in dense_questions(row):
        try:
            sources.append(resolver.dense(question).evidence(tokens))
        except NearfreeError as error:
            sources.append(f"no rule, tiles of 16 to 128 rows assumed: {error.what}")
    return "; ".join(dict.fromkeys(sources)) or None


def dense_questions(row: Mapping[str, Any]) -> Iterator[DenseQuestion]:
    """Yield a module's products as an engine runs them: gate and up of an FFN are one."""
    if row["backend"] not in ENGINES:
        return
    shapes = [(row["d_model"], row["d_ff"])]
    if row["module"] == "dense_ffn":
        up_columns = row["d_ff"] * (2 if row["gated"] else 1)
        shapes = [(row["d_model"], up_columns), (row["d_ff"], row["d_model"])]
    for depth, columns in shapes:
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
