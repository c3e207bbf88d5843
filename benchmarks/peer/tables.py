"""A copy of the SDK's tables without the models of a fold, and what its tables call a setting."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
from nearfree.derive.reference.folds import FOLDS, digests
from nearfree.errors import ConfigError

_MODELS = {
    "moe_ffn": {"hidden_size": "d_model", "num_experts": "experts", "topk": "top_k"},
    "gemm": {"k": "d_model"},
}
"""The columns that say which model a row is of, and what they are here."""
_TABLES = {"moe_ffn": "*/moe/*/*/*moe_perf.parquet", "gemm": "*/gemm/*/*/gemm_perf.parquet"}
_SYSTEMS = "aiconfigurator_core/systems/"


def fold_of(rows: pl.DataFrame) -> list[int]:
    """Return the fold of each row, which has the fields of a setting."""
    return [each[0] % FOLDS for each in digests(rows)]


def copy_without(systems: Path, copy: Path, module: str, fold: int) -> int:
    """Copy the tables of a module without a fold's models; return how many rows are left out.

    Every system, backend, release and format loses them. Tables of other modules are not copied.

    Parameters
    ----------
    systems
        The SDK's folder of systems; nothing in it is changed.
    copy
        Where to, a folder that is made or written anew.
    """
    copy.mkdir(parents=True, exist_ok=True)
    for path in systems.glob("*.yaml"):
        shutil.copyfile(path, copy / path.name)
    gone = 0
    for path in _tables(systems, module):
        place = copy / path.relative_to(systems)
        place.parent.mkdir(parents=True, exist_ok=True)
        for beside in path.parent.glob("*.yaml"):
            shutil.copyfile(beside, place.parent / beside.name)
        rows = pl.read_parquet(path)
        kept = _without(rows, module, fold)
        kept.write_parquet(place, compression="snappy")
        gone += rows.height - kept.height
    return gone


def _tables(systems: Path, module: str) -> Iterator[Path]:
    found = sorted((systems / "data").glob(_TABLES[module]))
    if not found:
        raise ConfigError(
            f"{systems} has no table {_TABLES[module]}",
            remedy="Take a release of the SDK whose tables lie so, such as 0.12.0",
        )
    return iter(found)


def _without(rows: pl.DataFrame, module: str, fold: int) -> pl.DataFrame:
    names = _MODELS[module]
    models = rows.select(*names).unique(maintain_order=True)
    asked = models.rename(names).with_columns(pl.lit(module).alias("module"))
    gone = models.filter(pl.Series([each == fold for each in fold_of(asked)], dtype=pl.Boolean))
    return rows.join(gone, on=list(names), how="anti", maintain_order="left")


def place_of(systems: Path, member: str, sha256: str) -> tuple[str, str, str]:
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
            remedy="Install the SDK of the release that was imported",
        )
    _, system, _, backend, version, _ = PurePosixPath(member.removeprefix(_SYSTEMS)).parts
    return system, backend, version


def cuts_of(systems: Path, member: str, quant: str) -> dict[tuple[int, int, int, int], int]:
    """Return over how many GPUs a table of experts has each layer cut: the fewest of its rows.

    The key is d_model, d_ff of one GPU, experts and top_k: a table has the whole d_ff and the
    number of GPUs apart, and an imported curve what one GPU computes.
    """
    rows = pl.read_parquet(systems / member.removeprefix(_SYSTEMS)).filter(
        (pl.col("moe_dtype") == quant)
        & (pl.col("distribution") == "balanced")
        & (pl.col("moe_ep_size") == 1)
    )
    names = ("hidden_size", pl.col("inter_size") // pl.col("moe_tp_size"), "num_experts", "topk")
    fewest = rows.group_by(*names).agg(pl.col("moe_tp_size").min())
    found: dict[tuple[int, int, int, int], int] = {}
    for row in fewest.iter_rows():
        d_model, d_ff, experts, top_k, tp = (int(each) for each in row)
        found[d_model, d_ff, experts, top_k] = tp
    return found


def sizes(row: dict[str, Any], tp: int) -> dict[str, int]:
    """Return a setting's sizes by the SDK's names, cut over some GPUs as in its tables."""
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
