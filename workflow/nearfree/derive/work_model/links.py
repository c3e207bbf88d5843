"""The features of collectives as arrays: bytes by algorithm, steps, links and nodes."""

import re
from typing import Any

import numpy as np
import polars as pl
from msgspec import convert

from nearfree.core.modules.collective import (
    MULTICAST as SWITCHED,
)
from nearfree.core.modules.collective import (
    ONE_SHOT as WHOLE,
)
from nearfree.core.modules.collective import (
    RING,
    payload_bytes,
    sent_ratio,
    setting_imbalance,
)
from nearfree.core.setting import FIELDS, Setting
from nearfree.derive.work_model.all_reduce import (
    ALGORITHMS,
    COLUMNS,
    FLASHINFER_ONE_SHOT,
    MULTICAST,
    ONE_SHOT,
    PUSH,
    SWITCHED_PULL,
    algorithm_at,
    rounds_of,
)
from nearfree.derive.work_model.family import Array, column, common, per_us

PAIR = 2
"""Two GPUs, which send only to each other."""
_NVLINK5, _GRACE = 5, "grace"
_NVLS_GPUS, _NVLS_SM = 8, 90
"""NCCL reduces in the switch on Hopper and later; in public tables from 8 GPUs on."""
_SMS = re.compile(r"_(\d+)_sms$")
_DEFAULT_SMS = 20.0
"""The default of DeepEP's Buffer.num_sms (DeepEP, deep_ep/buffer.py)."""
_SENT = {
    **dict.fromkeys((ONE_SHOT, PUSH, FLASHINFER_ONE_SHOT), WHOLE),
    **dict.fromkeys((MULTICAST, SWITCHED_PULL), SWITCHED),
}
_NORMAL = ("deepep_normal", "deepep_ht", "deepep_v2_context", "trtllm_deepep_ht")
"""Prefixes of kernels that send a token once to each rank with some of its experts."""


def collective_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return the features of any collective.

    `payload` of a rank, what it has `sent`, and `switched` where a switch sums it, are bytes,
    [rows, grid]; `link`, `network` and what of them is `reached` are bytes/us, [rows, 1];
    `nvlink5`, `grace`, `exchange` and `nvls` are 1 or 0.
    """
    settings = _settings(rows)
    link = per_us(rows, "link_gb_s")
    network = np.nan_to_num(per_us(rows, "network_gb_s"), nan=1.0)
    gpus = column(rows, "gpus")
    payload = np.array([payload_bytes(setting, 1) for setting in settings])[:, None] * n
    ring_share = np.array(
        [sent_ratio(setting.operation or "", setting.gpus or 1) for setting in settings]
    )
    nodes, fewest = column(rows, "nodes", 1.0), column(rows, "fewest", 1.0)
    operations = rows["operation"].to_numpy()[:, None]
    return {
        **common(rows, n),
        "payload": payload,
        "sent": payload * ring_share[:, None],
        "switched": payload * (1.0 + 1.0 / gpus),
        "gpus": gpus,
        "nodes": nodes,
        "link": link,
        "reached": np.where(nodes > 1, np.minimum(link, fewest * network), link),
        "network": network,
        "nvlink5": (column(rows, "nvlink", 0.0) >= _NVLINK5).astype(float),
        "grace": (rows["host_cpu"] == _GRACE).fill_null(value=False).to_numpy()[:, None] * 1.0,
        "steps": (gpus - 1.0) * np.where(operations == "all_reduce", 2.0, 1.0),
        "exchange": (operations == "all_to_all").astype(float),
        "nvls": _nvls(rows, operations),
    }


_SETTING_COLUMNS = tuple(
    name for name, field in FIELDS.items() if "collective" in field.modules and name != "module"
)


def _settings(rows: pl.DataFrame) -> list[Setting]:
    return [
        convert({name: value for name, value in row.items() if value is not None}, Setting)
        for row in rows.select("module", *_SETTING_COLUMNS).iter_rows(named=True)
    ]


def _nvls(rows: pl.DataFrame, operations: Array) -> Array:
    """Return 1 where the switch can reduce, else 0, [rows, 1]; it reduces only floats."""
    floats = rows["dtype"].is_in(["bfloat16", "float16"]).to_numpy()[:, None]
    supported = (column(rows, "gpus") >= _NVLS_GPUS) & (column(rows, "sm") >= _NVLS_SM)
    return np.asarray((floats & supported & (operations == "all_reduce")).astype(float))


def pcie_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with 1 or 0, [rows, 1]: direct access of GPUs, an own kernel, no graph.

    Over PCIe engines' own kernels support two GPUs (`all_reduce.algorithm_of`).
    """
    features = collective_features(rows, n)
    direct = features["gpus"] <= column(rows, "direct_gpus")
    engines = rows["backend"].is_in(["vllm", "sglang"]).to_numpy()[:, None]
    kernels = rows["kernel"].fill_null(rows["api"]).fill_null("")
    return {
        **features,
        "direct": direct * 1.0,
        "own": (direct & engines & (features["gpus"] == PAIR)) * 1.0,
        "eager": kernels.str.ends_with("eager").to_numpy()[:, None] * 1.0,
    }


def algorithm_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with `algorithm` at each point, an index into ALGORITHMS, and `rounds`.

    `sent` are the algorithm's bytes, `pushed` those of a push.
    """
    features = collective_features(rows, n)
    payload = features["payload"]
    algorithms, sent, rounds = (np.zeros(payload.shape) for _ in range(3))
    questions = rows.with_columns(pl.coalesce("kernel", "api").alias("kernel")).select(COLUMNS)
    for row, question in enumerate(questions.iter_rows(named=True)):
        gpus = question["gpus"]
        for point, size in enumerate(payload[row]):
            algorithm = algorithm_at(question, size)
            algorithms[row, point] = ALGORITHMS.index(algorithm)
            share = sent_ratio("all_reduce", gpus, _SENT.get(algorithm, RING))
            sent[row, point] = size * share
            rounds[row, point] = rounds_of(algorithm, gpus, size)
    pushed = payload * (features["gpus"] - 1.0)
    return features | {"algorithm": algorithms, "sent": sent, "pushed": pushed, "rounds": rounds}


def exchange_features(rows: pl.DataFrame, n: Array) -> dict[str, Any]:
    """Return features with the bytes that the busiest rank moves in its node and between nodes.

    Low-latency kernels send each of a token's k copies, the others one copy to each rank with some
    of its experts: of g ranks with random experts (g - 1) (1 - (1 - 1/g)^k) other ranks.
    """
    features = collective_features(rows, n)
    gpus, top_k = features["gpus"], column(rows, "top_k")
    node_gpus = column(rows, "node_gpus", np.inf)
    kernels = rows["kernel"].fill_null(rows["api"]).fill_null("").to_list()
    per_rank = np.array([kernel.startswith(_NORMAL) for kernel in kernels])[:, None]
    sms = [float(match[1]) if (match := _SMS.search(kernel)) else _DEFAULT_SMS
           for kernel in kernels]  # fmt: skip
    busiest = np.array([setting_imbalance(setting) for setting in _settings(rows)])[:, None]
    nodes = np.ceil(gpus / node_gpus)
    local_gpus = np.minimum(gpus, node_gpus)
    row_bytes = features["payload"] / top_k * busiest

    def reached(groups: Array) -> Array:
        return np.asarray(1.0 - (1.0 - 1.0 / groups) ** top_k)

    local_copies = np.where(
        per_rank, (local_gpus - 1.0) * reached(gpus), top_k * (local_gpus - 1.0) / gpus
    )
    remote_copies = np.where(
        per_rank, (nodes - 1.0) * reached(nodes), top_k * (gpus - local_gpus) / gpus
    )
    return {
        **features,
        "sent": row_bytes * local_copies,
        "between": row_bytes * remote_copies,
        "copying_sms": np.array(sms)[:, None],
    }
