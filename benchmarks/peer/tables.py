"""Copy the SDK's tables without the models of a fold, and map settings to the SDK's names."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from nearfree.derive.reference.folds import FOLDS, model_digests
from nearfree.errors import ConfigError

_MODEL_COLUMNS = {
    "moe_ffn": {"hidden_size": "d_model", "num_experts": "experts", "topk": "top_k"},
    "gemm": {"k": "d_model"},
}
"""The columns that identify a row's model, and the corresponding fields of a setting."""
_TABLES = {"moe_ffn": "*/moe/*/*/*moe_perf.parquet", "gemm": "*/gemm/*/*/gemm_perf.parquet"}
_SYSTEMS = "aiconfigurator_core/systems/"


def fold_of(rows: pl.DataFrame) -> list[int]:
    """Return the fold of each row; rows have the fields of a setting."""
    return [digest[0] % FOLDS for digest in model_digests(rows)]


def copy_without(systems: Path, copy: Path, module: str, fold: int) -> int:
    """Copy the tables of a module without a fold's models; return the number of rows left out.

    The models are removed for every system, backend, release and format. Tables of other modules
    are not copied.

    Parameters
    ----------
    systems
        The SDK's folder of systems, which is not changed.
    copy
        The target folder, made or overwritten.
    """
    copy.mkdir(parents=True, exist_ok=True)
    for path in systems.glob("*.yaml"):
        shutil.copyfile(path, copy / path.name)
    deleted = 0
    for path in _tables(systems, module):
        target = copy / path.relative_to(systems)
        target.parent.mkdir(parents=True, exist_ok=True)
        for listing in path.parent.glob("*.yaml"):
            shutil.copyfile(listing, target.parent / listing.name)
        rows = pl.read_parquet(path)
        remaining = _without(rows, module, fold)
        remaining.write_parquet(target, compression="snappy")
        deleted += rows.height - remaining.height
    return deleted


def _tables(systems: Path, module: str) -> Iterator[Path]:
    paths = sorted((systems / "data").glob(_TABLES[module]))
    if not paths:
        raise ConfigError(
            f"{systems} has no table {_TABLES[module]}",
            remedy="Use a release of the SDK with this layout of tables, such as 0.12.0",
        )
    return iter(paths)


def _without(rows: pl.DataFrame, module: str, fold: int) -> pl.DataFrame:
    names = _MODEL_COLUMNS[module]
    models = rows.select(*names).unique(maintain_order=True)
    settings = models.rename(names).with_columns(pl.lit(module).alias("module"))
    in_fold = [model_fold == fold for model_fold in fold_of(settings)]
    deleted = models.filter(pl.Series(in_fold, dtype=pl.Boolean))
    return rows.join(deleted, on=list(names), how="anti", maintain_order="left")


def table_place(systems: Path, member: str, sha256: str) -> tuple[str, str, str]:
    """Return system, backend and release of the table that a curve was imported from.

    Raises
    ------
    ConfigError
        The SDK has no such table, or one with other bytes.
    """
    path = systems / member.removeprefix(_SYSTEMS)
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise ConfigError(
            f"the SDK's own {member} is not what was imported",
            remedy="Install the release of the SDK that was imported",
        )
    _, system, _, backend, version, _ = PurePosixPath(member.removeprefix(_SYSTEMS)).parts
    return system, backend, version


def gpus_per_layer(systems: Path, member: str, quant: str) -> dict[tuple[int, int, int, int], int]:
    """Return the smallest number of GPUs over which a table of experts shards each layer.

    The key is d_model, d_ff per GPU, experts and top_k. The table has the whole d_ff and the number
    of GPUs; an imported curve has one GPU's part.
    """
    rows = pl.read_parquet(systems / member.removeprefix(_SYSTEMS)).filter(
        (pl.col("moe_dtype") == quant)
        & (pl.col("distribution") == "balanced")
        & (pl.col("moe_ep_size") == 1)
    )
    names = ("hidden_size", pl.col("inter_size") // pl.col("moe_tp_size"), "num_experts", "topk")
    smallest = rows.group_by(*names).agg(pl.col("moe_tp_size").min())
    gpus: dict[tuple[int, int, int, int], int] = {}
    for row in smallest.iter_rows():
        d_model, d_ff, experts, top_k, tp = (int(value) for value in row)
        gpus[d_model, d_ff, experts, top_k] = tp
    return gpus


def sizes(row: dict[str, Any], tp: int) -> dict[str, int]:
    """Return a setting's sizes by the SDK's names, with its layer sharded over `tp` GPUs."""
    if row["module"] == "gemm":
        return {"n": row["d_ff"], "k": row["d_model"]}
    return {
        "hidden_size": row["d_model"],
        "inter_size": row["d_ff"] * tp,
        "moe_tp_size": tp,
        "num_experts": row["experts"],
        "topk": row["top_k"],
        "gated": row["gated"] is not False,
    }
